"""MQTT over QUIC on aioquic: packets on streams, with full say over which stream carries what.

There is no MQTT client for QUIC in Python; this is a small one, made of aioquic's transport and the codec in `wire`.
It is independent of the project's own QUIC and MQTT code.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aioquic.asyncio import QuicConnectionProtocol, connect
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.packet import QuicErrorCode

import wire
from harness import Failure, Listener

PATIENCE_S = 30.0
# What an idle connection survives; the broker may set less.
IDLE_S = 30.0


@dataclass
class Fin:
    """The peer finished its side of the stream."""


@dataclass
class Reset:
    """The peer reset the stream."""

    code: int


@dataclass
class Stop:
    """The peer asked this side to stop sending."""

    code: int


class Stream:
    """One stream: bytes out, packets in."""

    def __init__(self, quic: QuicClient, number: int):
        self.quic, self.number = quic, number
        self.parser = wire.Parser(quic.level)
        self.arrived: asyncio.Queue = asyncio.Queue()
        self.early: list[wire.Packet] = []
        self.bytes = 0

    def send(self, data: bytes, fin: bool = False) -> None:
        self.quic.make_lower(self.number)
        self.quic._quic.send_stream_data(self.number, data, fin)
        # Once for all that is written in this turn.
        self.quic._transmit_soon()

    def reset(self, code: int) -> None:
        self.quic._quic.reset_stream(self.number, code)
        self.quic.transmit()

    async def next(self, timeout: float = PATIENCE_S):
        """The next packet, Fin, Reset or Stop; None when nothing comes in time."""
        if self.early:
            return self.early.pop(0)
        return await self._arrival(timeout)

    async def _arrival(self, timeout: float):
        try:
            return await asyncio.wait_for(self.arrived.get(), timeout)
        except TimeoutError:
            return None

    def copies(self) -> int:
        """How many messages wait here."""
        waiting = [*self.early, *self.arrived._queue]
        return sum(isinstance(one, wire.Packet) and one.kind == wire.PUBLISH for one in waiting)

    async def expect(self, kind: int, timeout: float = PATIENCE_S) -> wire.Packet:
        """The next packet, which has to be of this kind; messages may come before an acknowledgement."""
        aside = []
        while True:
            got = await self.next(timeout)
            if kind != wire.PUBLISH and isinstance(got, wire.Packet) and got.kind == wire.PUBLISH:
                aside.append(got)
                continue
            break
        self.early = aside + self.early
        if isinstance(got, wire.Packet) and got.kind == kind:
            return got
        if got is None:
            end = f" ({self.quic.ending})" if self.quic.ending else ""
            raise Failure(f"no {wire.NAMES[kind]} on stream {self.number} within {timeout} s{end}")
        raise Failure(f"{got} on stream {self.number} instead of {wire.NAMES[kind]}")

    async def quiet(self, seconds: float, why: str) -> None:
        got = await self.next(seconds)
        if got is not None:
            raise Failure(f"{why}: {got} on stream {self.number}")


class Nowhere:
    """A socket that loses everything."""

    def sendto(self, data, address) -> None:
        pass

    def close(self) -> None:
        pass


class QuicClient(QuicConnectionProtocol):
    """A QUIC connection and its streams. `level` is the MQTT version that its streams speak."""

    level = 5

    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.streams: dict[int, Stream] = {}
        self.by_server: list[int] = []
        self.datagrams: asyncio.Queue[bytes] = asyncio.Queue()
        self.alpn: str | None = None
        self.early_data_accepted = self.resumed = False
        self.ending: str | None = None
        self.over: asyncio.Future = asyncio.get_event_loop().create_future()

    # ------------------------------------------------------------------ streams

    def bidirectional(self, number: int | None = None) -> Stream:
        """The next stream of the client, or the one with this identifier; it appears when it is written to."""
        if number is None:
            number = max([self._quic.get_next_available_stream_id()]
                         + [one + 4 for one in self.streams if one % 4 == 0])
        return self.streams.setdefault(number, Stream(self, number))

    def make_lower(self, number: int) -> None:
        """Lets lower streams be written to later: the library takes a skipped one for a finished one."""
        for lower in range(number % 4, number, 4):
            if lower not in self._quic._streams and not self._quic._stream_is_discarded(lower):
                self._quic._get_or_create_stream_for_send(lower)

    def unidirectional(self) -> Stream:
        number = max([self._quic.get_next_available_stream_id(is_unidirectional=True)]
                     + [one + 4 for one in self.streams if one % 4 == 2])
        return self.streams.setdefault(number, Stream(self, number))

    async def connect_mqtt(self, stream: Stream | None = None, **options) -> wire.Packet:
        """CONNECT on the control stream, the first one."""
        stream = stream or self.bidirectional(0)
        stream.send(wire.connect(level=self.level, **options))
        answer = await stream.expect(wire.CONNACK)
        if answer.reason:
            raise Failure(f"CONNACK with 0x{answer.reason:02X}")
        return answer

    async def terminated(self, timeout: float = PATIENCE_S) -> events.ConnectionTerminated:
        """Waits for the end of the connection."""
        try:
            return await asyncio.wait_for(asyncio.shield(self.over), timeout)
        except TimeoutError:
            raise Failure(f"the connection is still open after {timeout} s") from None

    def end(self, code: int = 0, reason: str = "") -> None:
        """Closes the connection with an application code."""
        self._quic.close(error_code=code, reason_phrase=reason)
        self.transmit()

    def vanish(self) -> None:
        """Sends nothing any more, not even a close: what a device without power does."""
        self._transport.close()
        self._transport = Nowhere()

    async def move(self, new_identifier: bool = True) -> None:
        """Goes on from another port, and forgets the old one with all that is on its way there.

        With a new connection identifier that is a client that moves (RFC 9000 section 9.2), with the same one a router
        that gave it another port.
        """
        old = self._transport
        place = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        place.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        place.bind(("::", 0, 0, 0))
        if new_identifier:
            self.change_connection_id()
        # The library takes the transport that was made last.
        await asyncio.get_running_loop().create_datagram_endpoint(lambda: self, sock=place)
        old.abort()

    # ------------------------------------------------------------------ events

    def quic_event_received(self, event: events.QuicEvent) -> None:
        if isinstance(event, (events.StreamDataReceived, events.StreamReset, events.StopSendingReceived)):
            # Not to the library's own streams, which it would finish as soon as nobody holds them.
            self._stream_event(event)
            return
        super().quic_event_received(event)
        if isinstance(event, events.HandshakeCompleted):
            self.alpn, self.resumed = event.alpn_protocol, event.session_resumed
            self.early_data_accepted = event.early_data_accepted
        elif isinstance(event, events.DatagramFrameReceived):
            self.datagrams.put_nowait(event.data)
        elif isinstance(event, events.ConnectionTerminated):
            kind = "transport" if event.frame_type is not None else "application"
            self.ending = f"closed with {kind} code 0x{event.error_code:X} {event.reason_phrase}".rstrip()
            if not self.over.done():
                self.over.set_result(event)
            self.ended(event)

    def _stream_event(self, event) -> None:
        stream = self.streams.get(event.stream_id)
        if stream is None:
            if event.stream_id % 2:
                self.by_server.append(event.stream_id)
            stream = self.streams.setdefault(event.stream_id, Stream(self, event.stream_id))
        if isinstance(event, events.StreamReset):
            self.received(stream, Reset(event.error_code))
        elif isinstance(event, events.StopSendingReceived):
            self.received(stream, Stop(event.error_code))
        else:
            stream.bytes += len(event.data)
            for packet in stream.parser.feed(event.data):
                self.received(stream, packet)
            if event.end_stream:
                self.received(stream, Fin())

    def received(self, stream: Stream, what) -> None:
        stream.arrived.put_nowait(what)

    def ended(self, event: events.ConnectionTerminated) -> None:
        """Called once when the connection is over."""


def configuration(listener: Listener, alpn=("mqtt",), **settings) -> QuicConfiguration:
    made = QuicConfiguration(is_client=True, alpn_protocols=list(alpn) if alpn else None, idle_timeout=IDLE_S,
                             server_name=listener.host, **settings)
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_verify_locations(listener.certificate)
    return made


@asynccontextmanager
async def opened(listener: Listener, level: int = 5, alpn=("mqtt",), ticket=None, tickets=None, early: bool = False,
                 kind=QuicClient, **settings):
    """A QUIC connection. `tickets` gets each session ticket; `early` gives it out before the handshake is done."""
    settings.setdefault("max_datagram_frame_size", None)
    made = configuration(listener, alpn, session_ticket=ticket, **settings)

    def create(*arguments, **keywords):
        client = kind(*arguments, **keywords)
        client.level = level
        return client

    try:
        async with connect(listener.host, listener.port, configuration=made, create_protocol=create,
                           session_ticket_handler=tickets, wait_connected=False) as quic:
            if not early:
                quic.transmit()
                await asyncio.wait_for(quic.wait_connected(), PATIENCE_S)
            yield quic
    except TimeoutError:
        raise Failure(f"the QUIC handshake was not done within {PATIENCE_S} s") from None
    except ConnectionError as why:
        raise Failure(f"the QUIC connection failed: {why or type(why).__name__}") from None


def alert(code: int) -> int | None:
    """The TLS alert in a QUIC error code, RFC 9001 section 4.8."""
    return code - QuicErrorCode.CRYPTO_ERROR if 0x100 <= code < 0x200 else None
