"""A connection of MQTT for suites that count messages, or look at what a connection is told: the packets of `wire.py` on a
socket, and what the broker sends as the first byte of each packet and what follows its length. Standard library only.
"""

from __future__ import annotations

import select
import socket
import time

import wire

CHUNK_BYTES = 1 << 18
# The first byte of packets, without the flags of a PUBLISH.
CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 0x20, 0x30, 0x40, 0x50, 0x60, 0x70
SUBACK, DISCONNECT = 0x90, 0xE0


class Connection:
    """A connection whose CONNECT is sent. `options` are those of `wire.connect`."""

    def __init__(self, port: int, client_id: str, level: int = 4, timeout_s: float = 30, **options):
        self.level, self.timeout_s = level, timeout_s
        self.socket = socket.create_connection(("127.0.0.1", port), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.got, self.out = b"", bytearray()
        self.ready: list[tuple[int, bytes]] = []
        self.has_ended = False
        self.send(wire.connect(level, client_id, keep_alive=0, **options))

    def send(self, data: bytes) -> None:
        """Sends all of it."""
        self.out += data
        while self.out:
            select.select([], [self.socket], [], self.timeout_s)
            self.flush()

    def flush(self) -> None:
        """Sends what may be sent without waiting."""
        if self.out:
            try:
                sent = self.socket.send(self.out)
            except BlockingIOError:
                return
            del self.out[:sent]

    def packets(self):
        """The packets that have come. A ConnectionResetError where the connection has ended."""
        yield from self.ready
        self.ready = []
        try:
            data = self.socket.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionResetError("the broker has closed")
        data, at = self.got + data, 0
        while len(data) - at >= 2:
            length, shift, start = 0, 0, at + 1
            while start < len(data):
                digit = data[start]
                length |= (digit & 0x7F) << shift
                shift, start = shift + 7, start + 1
                if not digit & 0x80:
                    break
            else:
                break
            if len(data) < start + length:
                break
            yield data[at], data[start : start + length]
            at = start + length
        self.got = data[at:]

    def read(self, timeout_s: float | None = None) -> tuple[int, bytes] | None:
        """The next packet; `None` for the end of the connection. A TimeoutError where neither comes."""
        end = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        while not self.ready and not self.has_ended:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.socket], [], [], left)[0]:
                raise TimeoutError("the broker sends nothing")
            try:
                self.ready = list(self.packets())
            except ConnectionError:
                self.has_ended = True
        return self.ready.pop(0) if self.ready else None

    def subscribe(self, filters: list[str], qos: int) -> None:
        """Subscribes, and waits for the SUBACK, which is to be the next packet."""
        self.send(wire.subscribe(1, [(one, qos) for one in filters], self.level))
        answer = self.read()
        if answer is None or answer[0] != SUBACK or any(code > 2 for code in answer[1][-len(filters):]):
            raise RuntimeError(f"SUBSCRIBE was answered with {answer}")

    def close(self) -> None:
        """Ends it without a DISCONNECT."""
        self.socket.close()


class Client(Connection):
    """A connection that was let in, to a session that ends with it."""

    def __init__(self, port: int, client_id: str, **options):
        super().__init__(port, client_id, **options)
        answer = self.read()
        if answer is None or answer[0] != CONNACK or answer[1][1] != 0:
            raise RuntimeError(f"{client_id}: CONNECT was answered with {answer}")
