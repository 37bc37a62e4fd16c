"""Raw AMQP connections: bytes to the broker over TCP, TLS or WebSocket, with nothing between that would correct them."""

from __future__ import annotations

import time

import amqp_wire as wire
from harness import Failure, Listener
from raw import PATIENCE_S, Closed, Raw


class RawAmqp(Raw):
    """A blocking connection. `send` writes bytes as they are; `frame` reads one frame."""

    subprotocol = "amqp"

    def __init__(self, listener: Listener, timeout: float = PATIENCE_S):
        super().__init__(listener, timeout=timeout)
        self.parser = wire.Parser()

    def frame(self, timeout: float = PATIENCE_S) -> wire.Frame | None:
        """The next frame that is not empty, or None. Raises Closed at the end."""
        until = time.monotonic() + timeout
        while True:
            left = until - time.monotonic()
            if left <= 0 and not self.ready:
                return None
            got = self.packet(max(left, 0.001))
            if got is None or got.kind < 0 or got.code is not None:
                return got

    def next(self, code: int, timeout: float = PATIENCE_S) -> wire.Frame:
        """The next frame, which has to be of this kind; flows may come before others."""
        name = wire.NAMES[code]
        while True:
            try:
                got = self.frame(timeout)
            except Closed as why:
                raise Failure(f"closed ({why}) instead of {name}") from None
            if got is None:
                raise Failure(f"no {name} within {timeout} s")
            if got.code == code:
                return got
            if got.code != wire.FLOW:
                raise Failure(f"{got} instead of {name}")

    def header(self, raw: bytes = wire.HEADER) -> None:
        self.send(raw)
        got = self.frame()
        if got is None or got.kind >= 0 or got.payload != raw:
            raise Failure(f"{got} in answer to {raw!r}")

    def opened(self, **options) -> wire.Frame:
        self.send(wire.HEADER + wire.open_(**options))
        got = self.frame()
        if got is None or got.payload != wire.HEADER:
            raise Failure(f"{got} in answer to the protocol header")
        return self.next(wire.OPEN)

    def begun(self, channel: int = 0, container: str = "raw", **options) -> wire.Frame:
        self.opened(container=container)
        self.send(wire.begin(channel, **options))
        return self.next(wire.BEGIN)

    def sending(self, address: str, name: str = "out", handle: int = 0, channel: int = 0, **options) -> int:
        """A link to this address in a session that was begun; returns its credit."""
        self.send(wire.attach_sender(name, handle, wire.target(address), channel, **options))
        answer = self.next(wire.ATTACH)
        if answer.field(6) is None:
            raise Failure(f"attach was refused with {self.next(wire.DETACH)}")
        while True:
            got = self.next(wire.FLOW)
            if got.field(4) is not None:
                return got.field(6) or 0

    def receiving(self, of: wire.Typed, credit: int, name: str = "in", handle: int = 0, channel: int = 0,
                  **options) -> None:
        self.send(wire.attach_receiver(name, handle, of, channel, **options))
        answer = self.next(wire.ATTACH)
        if answer.field(5) is None:
            raise Failure(f"attach was refused with {self.next(wire.DETACH)}")
        if credit:
            self.send(wire.flow(handle, credit, 0, channel))

    def ending(self, timeout: float = PATIENCE_S) -> tuple[list[wire.Frame], str]:
        """Reads until the broker closes: the frames that came before, and how it ended."""
        until, frames = time.monotonic() + timeout, []
        while True:
            try:
                got = self.frame(max(0.01, until - time.monotonic()))
            except Closed as why:
                return frames, str(why)
            if got is None:
                shown = f" (got {'; '.join(map(str, frames))})" if frames else ""
                raise Failure(f"the connection is still open after {timeout} s{shown[:300]}")
            frames.append(got)
