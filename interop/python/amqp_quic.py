"""AMQP over QUIC for clients that know TCP only: an adapter on aioquic, made from docs/amqp-over-quic.md alone.

A foreign client connects to the adapter by TCP; each connection is carried by a QUIC connection of its own with ALPN
`amqp`. Either everything rides the control stream (section 8 of the document), or the adapter takes the client's bytes
apart into frames, and each session rides a stream of its own (section 6), told apart by channel numbers.
"""

from __future__ import annotations

import asyncio
import ssl
import struct

from aioquic.asyncio import QuicConnectionProtocol, connect
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration

from harness import Listener

OPEN, BEGIN, END, CLOSE = 0x10, 0x11, 0x17, 0x18
CONTROL = 0


class Units:
    """Cuts a stream of bytes into protocol headers and frames."""

    def __init__(self):
        self.rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        self.rest += data
        found = []
        while len(self.rest) >= 8:
            size = 8 if self.rest[:4] == b"AMQP" else struct.unpack(">I", self.rest[:4])[0]
            if len(self.rest) < max(size, 8):
                break
            found.append(bytes(self.rest[:size]))
            del self.rest[:size]
        return found


def performative(unit: bytes) -> tuple[int | None, int]:
    """The code of a frame's performative, None for what belongs to the connection alone, and its channel."""
    if unit[:4] == b"AMQP" or unit[5] != 0:
        return None, 0
    channel = struct.unpack(">H", unit[6:8])[0]
    body = unit[unit[4] * 4 :]
    if not body:
        return None, channel
    if body[1] == 0x53:
        code = body[2]
    elif body[1] == 0x80:
        code = struct.unpack(">Q", body[2:10])[0]
    else:
        return 0, channel
    return (None if code in (OPEN, CLOSE) else code), channel


class Carrier(QuicConnectionProtocol):
    """One QUIC connection for one TCP connection."""

    def setup(self, writer: asyncio.StreamWriter, apart: bool, faults: list[str]) -> None:
        self.writer, self.apart, self.faults = writer, apart, faults
        self.outgoing, self.incoming = Units(), {}
        # Streams by the client's channel; which ends of a session have said `end`.
        self.streams: dict[int, int] = {}
        self.begun: set[int] = set()
        self.ends: dict[int, set[str]] = {}
        self.next_stream = 4
        self.over = asyncio.Event()

    def from_client(self, data: bytes) -> None:
        if not self.apart:
            self._quic.send_stream_data(CONTROL, data)
        else:
            for unit in self.outgoing.feed(data):
                self._quic.send_stream_data(self.stream_of(unit), unit)
                self.finish_ended()
        self.transmit()

    def stream_of(self, unit: bytes) -> int:
        code, channel = performative(unit)
        if code is None:
            return CONTROL
        if code == BEGIN:
            self.streams[channel] = self.next_stream
            self.next_stream += 4
        stream = self.streams.get(channel, CONTROL)
        if code == END:
            self.ends.setdefault(stream, set()).add("client")
            self.streams.pop(channel, None)
        return stream

    def finish_ended(self) -> None:
        # Section 10: after both `end` frames each side finishes the stream.
        for stream, said in list(self.ends.items()):
            if len(said) == 2 and stream != CONTROL:
                del self.ends[stream]
                self._quic.send_stream_data(stream, b"", end_stream=True)

    def from_broker(self, stream: int, data: bytes) -> None:
        if not self.apart:
            self.writer.write(data)
            return
        for unit in self.incoming.setdefault(stream, Units()).feed(data):
            code, channel = performative(unit)
            if code is None and stream != CONTROL:
                self.faults.append(f"a frame of the connection on stream {stream}")
            elif code is not None and stream == CONTROL:
                self.faults.append(f"performative 0x{code:02x} on channel {channel} came on the control stream")
            if code == END:
                self.ends.setdefault(stream, set()).add("broker")
            self.writer.write(unit)
        self.finish_ended()
        self.transmit()

    def quic_event_received(self, event: events.QuicEvent) -> None:
        if isinstance(event, events.StreamDataReceived):
            if event.stream_id % 4:
                self.faults.append(f"the broker opened stream {event.stream_id}")
            self.from_broker(event.stream_id, event.data)
            if event.end_stream and event.stream_id == CONTROL:
                self.over.set()
        elif isinstance(event, events.StreamReset):
            # Nothing on TCP says that a session was reset, so the whole is given up.
            self.over.set()
        elif isinstance(event, events.ConnectionTerminated):
            self.over.set()
        if not isinstance(event, events.StreamDataReceived):
            # Not to the library's own streams.
            super().quic_event_received(event)


class Adapter:
    """Listens on TCP for clients whose bytes go to a QUIC listener of the broker."""

    def __init__(self, to: Listener, apart: bool):
        self.to, self.apart, self.faults = to, apart, []
        self.carried: set[asyncio.Task] = set()

    async def start(self) -> Listener:
        self.server = await asyncio.start_server(self.accepted, "127.0.0.1", 0, limit=1 << 20)
        port = self.server.sockets[0].getsockname()[1]
        here = Listener(f"amqp://127.0.0.1:{port}", self.to.certificate)
        here.transport = "tcp"
        return here

    def accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self.carry(reader, writer))
        self.carried.add(task)
        task.add_done_callback(self.carried.discard)

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        settings = QuicConfiguration(is_client=True, alpn_protocols=["amqp"], server_name=self.to.host,
                                     idle_timeout=60.0)
        settings.verify_mode = ssl.CERT_REQUIRED
        settings.load_verify_locations(self.to.certificate)
        try:
            async with connect(self.to.host, self.to.port, configuration=settings, create_protocol=Carrier) as quic:
                quic.setup(writer, self.apart, self.faults)
                over = asyncio.create_task(quic.over.wait())
                reading = None
                while not over.done():
                    reading = asyncio.create_task(reader.read(1 << 16))
                    await asyncio.wait({over, reading}, return_when=asyncio.FIRST_COMPLETED)
                    if reading.done():
                        data = reading.result()
                        if not data:
                            break
                        quic.from_client(data)
                        # The library queues without a bound.
                        while sum(len(one.sender._buffer) for one in quic._quic._streams.values()) > 1 << 20:
                            await asyncio.sleep(0.005)
                for task in (over, reading):
                    if task is not None and not task.done():
                        task.cancel()
                quic._quic.close(error_code=0)
                quic.transmit()
        except (ConnectionError, OSError) as why:
            if not isinstance(why, (ConnectionResetError, BrokenPipeError)):
                self.faults.append(f"the QUIC connection failed: {why or type(why).__name__}")
        finally:
            writer.close()

    async def stop(self) -> None:
        self.server.close()
        for task in list(self.carried):
            task.cancel()
        await asyncio.gather(*self.carried, return_exceptions=True)
