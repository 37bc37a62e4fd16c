"""Attacks on the running broker by QUIC itself: `quic_attacks.py [--only TEXT]`.

Rows 25 and 26 of the project's attack list: transport parameters that are not valid, frames that are not, and floods
of frames that are. Frames are written by hand into packets of aioquic. As in `attacks.py`, another client is served
within a second meanwhile, and the broker's memory comes back. Environment: as there.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import socket
import ssl
from contextlib import asynccontextmanager

from aioquic import tls
from aioquic.asyncio import QuicConnectionProtocol
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicPacketType

from attacks import Runner, expect
from harness import Failure, Listener, Report, all_listeners
from http_client import to_varint
from raw import PATIENCE_S

(INTERNAL, REFUSED, FLOW_CONTROL, STREAM_LIMIT, STREAM_STATE, FINAL_SIZE, ENCODING, PARAMETERS, ID_LIMIT, VIOLATION,
 TOKEN, APPLICATION, CRYPTO_BUFFER) = range(1, 14)
LARGEST = (1 << 62) - 1
# Bytes of a packet that are left to frames.
ROOM = 1100


class Hostile(QuicConnection):
    """A connection that says what it is told to."""

    parameters: bytes | None = None

    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.frames: list[bytes] = []

    def _serialize_transport_parameters(self) -> bytes:
        own = super()._serialize_transport_parameters()
        return own if self.parameters is None else self.parameters(own)

    def _write_application(self, builder, network_path, now) -> None:
        crypto = self._cryptos[tls.Epoch.ONE_RTT]
        if self.frames and crypto.send.is_valid():
            builder.start_packet(QuicPacketType.ONE_RTT, crypto)
            room = ROOM
            while self.frames and len(self.frames[0]) <= room:
                frame = self.frames[0]
                room -= len(frame)
                # The first byte is the type, as far as the builder knows.
                builder.start_frame(frame[0] & 0x3F, capacity=len(frame)).push_bytes(frame[1:])
                self.frames.pop(0)
                if builder.remaining_flight_space < ROOM:
                    break
        super()._write_application(builder, network_path, now)


class Talker(QuicConnectionProtocol):
    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.over: asyncio.Future = asyncio.get_event_loop().create_future()

    def quic_event_received(self, event: events.QuicEvent) -> None:
        if isinstance(event, events.ConnectionTerminated) and not self.over.done():
            self.over.set_result(event)
        super().quic_event_received(event)

    async def say(self, *frames: bytes) -> None:
        """Sends frames; many of them take a while."""
        quic: Hostile = self._quic
        quic.frames += frames
        while quic.frames and not self.over.done():
            # Nobody is to hold it back.
            quic._loss._cc.congestion_window = 1 << 30
            quic._loss._pacer.next_send_time = lambda now: None
            self.transmit()
            await asyncio.sleep(0)

    async def code(self, timeout: float = PATIENCE_S) -> int | None:
        """The code with which the broker ended the connection; None while it lives, and where nothing came any more."""
        try:
            event = await asyncio.wait_for(asyncio.shield(self.over), timeout)
        except TimeoutError:
            return None
        # This end's own idle timeout has a code, too.
        return None if event.reason_phrase == "Idle timeout" else event.error_code

    async def lives(self) -> bool:
        try:
            # This end has all that it sent to look through.
            await asyncio.wait_for(self.ping(), PATIENCE_S)
        except (TimeoutError, ConnectionError):
            return False
        return not self.over.done()


@asynccontextmanager
async def opened(at: Listener, parameters=None):
    made = QuicConfiguration(is_client=True, alpn_protocols=["mqtt"], server_name="localhost", idle_timeout=20)
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_verify_locations(at.certificate)
    quic = Hostile(configuration=made)
    quic.parameters = parameters
    loop = asyncio.get_running_loop()
    place = (await loop.getaddrinfo(at.host, at.port, type=socket.SOCK_DGRAM))[0]
    transport, talker = await loop.create_datagram_endpoint(lambda: Talker(quic), family=place[0], remote_addr=place[4])
    # The protocol sends to an address, and the socket has one already.
    transport.sendto = lambda data, _, send=transport.sendto: send(data)
    try:
        talker.connect(place[4])
        if parameters is None:
            await asyncio.wait_for(talker.wait_connected(), PATIENCE_S)
            # It takes more of the broker's identifiers than it has asked for.
            quic._local_active_connection_id_limit = 1 << 20
        yield talker
    finally:
        talker.close()
        transport.close()


# --------------------------------------------------------------------------- row 25: transport parameters


def parameter(number: int, value: bytes, length: int | None = None) -> bytes:
    return to_varint(number) + to_varint(len(value) if length is None else length) + value


def more(number: int, value: bytes, length: int | None = None):
    return lambda own: own + parameter(number, value, length)


# What a client must not say (RFC 9000, sections 7.4 and 18).
PARAMETERS_TABLE = {
    "nothing": lambda own: b"",
    "cut off in the midst": lambda own: own[: len(own) // 2 + 1],
    "cut off at the last byte": lambda own: own[:-1],
    "a length beyond the end": more(0x3F00, b"x", 60),
    "a length of 2^62": more(0x3F00, b"", LARGEST),
    "half a number": lambda own: own + b"\xc0",
    "the same one twice": lambda own: own + parameter(0x04, to_varint(7)),
    "an integer of no bytes": more(0x0E, b""),
    "an integer with a byte too many": more(0x0E, to_varint(4) + b"\0"),
    "an ack delay exponent of 21": lambda own: replaced(own, 0x0A, to_varint(21)),
    "a max_ack_delay of 2^14": lambda own: replaced(own, 0x0B, to_varint(1 << 14)),
    "packets of 1199 bytes": more(0x03, to_varint(1199)),
    "one connection identifier": lambda own: replaced(own, 0x0E, to_varint(1)),
    "2^60 + 1 streams": lambda own: replaced(own, 0x08, to_varint((1 << 60) + 1)),
    "a server's original identifier": more(0x00, b"12345678"),
    "a server's reset token": more(0x02, b"x" * 16),
    "a server's preferred address": more(0x0D, b"\0" * 41),
    "a server's Retry": more(0x10, b"12345678"),
    "a flag with a value": more(0x0C, b"x"),
    "an identifier that is not the packet's": lambda own: replaced(own, 0x0F, b"another!"),
    "no identifier": lambda own: replaced(own, 0x0F, None),
    "an identifier of 21 bytes": lambda own: replaced(own, 0x0F, b"x" * 21),
}


def replaced(own: bytes, number: int, value: bytes | None) -> bytes:
    """Other transport parameters: one has another value, or is left out."""
    out, at = b"", 0
    while at < len(own):
        begin = at
        key, at = read(own, at)
        length, at = read(own, at)
        at += length
        if key != number:
            out += own[begin:at]
    return out if value is None else out + parameter(number, value)


def read(data: bytes, at: int) -> tuple[int, int]:
    size = 1 << (data[at] >> 6)
    return int.from_bytes(data[at : at + size], "big") & ((1 << (8 * size - 2)) - 1), at + size


async def refused(at: Listener, parameters) -> int | None:
    async with opened(at, parameters) as talker:
        return await talker.code()


# --------------------------------------------------------------------------- row 26: frames


def v(*numbers: int) -> bytes:
    return b"".join(map(to_varint, numbers))


def ack(largest: int, first: int, *ranges: int) -> bytes:
    return b"\x02" + v(largest, 0, len(ranges) // 2, first, *ranges)


def new_id(sequence: int, prior: int, identifier: bytes | None = None, size: int | None = None) -> bytes:
    identifier = secrets.token_bytes(8) if identifier is None else identifier
    size = len(identifier) if size is None else size
    return b"\x18" + v(sequence, prior) + bytes([size]) + identifier + secrets.token_bytes(16)


# Frames that end the connection, with one of these codes (RFC 9000, sections 4, 12.4, 13.1 and 19).
FRAMES = {
    "an unknown type": (b"\x3f", {ENCODING}),
    "HANDSHAKE_DONE of a client": (b"\x1e", {VIOLATION}),
    "NEW_TOKEN of a client": (b"\x07" + v(4) + b"abcd", {VIOLATION}),
    "an acknowledgement of what was not sent": (ack(1_000_000, 0), {VIOLATION}),
    "an acknowledgement of 2^62 packets": (ack(LARGEST, LARGEST), {VIOLATION, ENCODING}),
    "an acknowledgement below 0": (ack(5, 9), {ENCODING, VIOLATION}),
    "ranges below 0": (ack(5, 0, 3, 3), {ENCODING, VIOLATION}),
    "ranges that are not there": (b"\x02" + v(1, 0, LARGEST, 0), {ENCODING}),
    "a stream beyond the limit": (b"\x0a" + v(4 * 100_000, 1) + b"x", {STREAM_LIMIT}),
    "a stream of the server's": (b"\x0a" + v(1, 1) + b"x", {STREAM_STATE, STREAM_LIMIT}),
    "bytes beyond the window": (b"\x0e" + v(0, LARGEST - 8, 1) + b"x", {FLOW_CONTROL, ENCODING}),
    "bytes beyond 2^62": (b"\x0e" + v(0, LARGEST, 2) + b"xx", {FLOW_CONTROL, ENCODING}),
    "a stream frame that is cut off": (b"\x0a" + v(0, 60) + b"x", {ENCODING}),
    "another final size": (b"\x0b" + v(0, 4) + b"abcd" + b"\x04" + v(0, 0, 9), {FINAL_SIZE}),
    "a reset of a stream that only the server sends on": (b"\x04" + v(3, 0, 0), {STREAM_STATE}),
    "a stop of a stream that the server has not opened": (b"\x05" + v(1, 0), {STREAM_STATE}),
    "2^60 + 1 streams": (b"\x12" + v((1 << 60) + 1), {ENCODING, STREAM_LIMIT}),
    "blocked at 2^60 + 1 streams": (b"\x16" + v((1 << 60) + 1), {ENCODING, STREAM_LIMIT}),
    "handshake bytes far ahead": (b"\x06" + v(1 << 20, 1) + b"x", {CRYPTO_BUFFER}),
    "handshake bytes beyond 2^62": (b"\x06" + v(LARGEST, 2) + b"xx", {CRYPTO_BUFFER, ENCODING}),
    "an identifier of no bytes": (new_id(1, 0, b""), {ENCODING, VIOLATION}),
    "an identifier of 21 bytes": (new_id(1, 0, b"x" * 21), {ENCODING, VIOLATION}),
    "identifiers that retire later ones": (new_id(1, 7), {ENCODING, VIOLATION}),
    "more identifiers than it may have": (b"".join(new_id(number, 0) for number in range(5, 24)), {ID_LIMIT}),
    "retires what was not issued": (b"\x19" + v(1_000), {VIOLATION}),
    "a response to no challenge": (b"\x1b" + b"x" * 8, {VIOLATION, None}),
}

# Frames that are valid, and a flood: the connection lives, or ends with one of these codes. Where it is None, the
# client has made up or given up identifiers, so that the two do not hear each other any more.
FLOODS = {
    "challenges": (lambda n: b"\x1a" + secrets.token_bytes(8), 20_000, {VIOLATION}),
    "pings": (lambda n: b"\x01", 200_000, set()),
    "identifiers that retire all before them": (lambda n: new_id(n + 10, n + 10), 20_000, {ID_LIMIT, VIOLATION, None}),
    "the same identifier retired again": (lambda n: b"\x19" + v(0), 20_000, {VIOLATION, None}),
    "blocked": (lambda n: b"\x14" + v(n), 100_000, set()),
    "blocked streams": (lambda n: b"\x15" + v(0, n), 100_000, {STREAM_STATE}),
    "more room": (lambda n: b"\x10" + v(n), 100_000, set()),
    "streams that are opened and reset": (lambda n: b"\x04" + v(4 * n + 4, 1, 0), 20_000, {STREAM_LIMIT}),
    "streams that are opened and stopped": (lambda n: b"\x05" + v(4 * n + 4, 1), 20_000, {STREAM_LIMIT, STREAM_STATE}),
    "empty stream frames": (lambda n: b"\x0a" + v(0, 0), 100_000, set()),
    "a byte here and there": (lambda n: b"\x0e" + v(0, 2 * n + 2, 1) + b"x", 60_000, {FLOW_CONTROL, INTERNAL}),
    "handshake bytes here and there": (lambda n: b"\x06" + v(2 * n + 2, 1) + b"x", 20_000, {CRYPTO_BUFFER, INTERNAL}),
    "acknowledgements with holes": (lambda n: ack(400, 0, *[0, 0] * 60), 5_000, {VIOLATION, ENCODING}),
    "datagrams": (lambda n: b"\x31" + v(1) + b"x", 50_000, {VIOLATION, 0}),
}


async def ends(at: Listener, frames: bytes, codes: set) -> None:
    async with opened(at) as talker:
        await talker.say(frames)
        code = await talker.code(PATIENCE_S if None not in codes else 0.5)
        expect(code in codes, f"the broker answers with {code}, not with one of {codes}")


async def survives(at: Listener, make, count: int, codes: set) -> None:
    async with opened(at) as talker:
        await talker.say(*map(make, range(count)))
        if await talker.lives():
            return
        code = await talker.code()
        expect(code in codes, f"the broker ends the connection with {code}, not with one of {codes}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="only rows whose name contains this")
    only = parser.parse_args().only
    report, places = Report(), {}
    for one in all_listeners():
        places.setdefault(one.transport, one)
    if not {"tcp", "quic"} <= set(places):
        report.not_ok("quic-attacks", "the broker lacks a listener of quic-attacked.toml")
        report.exit()
    runner, at = Runner(report, {"tcp": places["tcp"]}), places["quic"]
    if not runner.pid:
        report.skip("memory", "the broker's process is not known; set STERNA_PID")

    def each(kind: str, table: dict, attempt) -> None:
        """The rows of a table, with one bystander and one look at the memory for all of it."""
        chosen = [name for name in table if only in f"{kind}/{name}"]

        def work() -> None:
            for name in chosen:
                label = f"{kind}/{name.replace(' ', '-')}"
                try:
                    asyncio.run(attempt(name))
                    report.ok(label)
                except (Failure, OSError, TimeoutError) as why:
                    report.not_ok(label, f"{type(why).__name__}: {why}")

        if chosen:
            runner.guarded(f"{kind}/memory-and-bystander", work)

    async def wrong_parameters(name: str) -> None:
        code = await refused(at, PARAMETERS_TABLE[name])
        # Without an answer the broker would wait for the rest of a handshake that is over.
        wrong = {PARAMETERS, VIOLATION, 0x100 + 109, 0x100 + 50}
        expect(code in wrong, f"the broker answers with {code}")

    each("25-parameters", PARAMETERS_TABLE, wrong_parameters)
    each("26-frames", FRAMES, lambda name: ends(at, *FRAMES[name]))
    each("26-floods", FLOODS, lambda name: survives(at, *FLOODS[name]))
    report.exit()


if __name__ == "__main__":
    main()
