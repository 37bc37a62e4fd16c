"""Raw connections: bytes to the broker over TCP, TLS or WebSocket, with nothing between that would correct them."""

from __future__ import annotations

import base64
import os
import secrets
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable
from pathlib import Path

import wire
from harness import Failure, Listener, ready

# How long an answer may take on a busy machine.
PATIENCE_S = 30.0
# How long a send waits for a broker that does not read.
BLOCKED_S = 10.0
# What a loop of so many rounds takes of a processor where limits of work hold as they are written.
PACE_ROUNDS, PACE_S = 500_000, 0.1
# How long a process is looked at, and which share of that it may have a processor, and may want one, where it rests. Beside
# others, each that wakes for a moment waits for its turn.
REST_S, REST_HAD, REST_WANTED = 0.4, 0.5, 0.9


class Closed(Exception):
    """The broker ended the connection."""


class Raw:
    """A blocking connection. `send` writes bytes as they are; `packet` reads one packet."""

    subprotocol = "mqtt"

    def __init__(self, listener: Listener, level: int = 5, timeout: float = PATIENCE_S):
        self.listener, self.level = listener, level
        self.parser, self.ready = wire.Parser(level), []
        self.socket = socket.create_connection((listener.host, listener.port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if listener.secure:
            context = ssl.create_default_context(cafile=listener.certificate)
            self.socket = context.wrap_socket(self.socket, server_hostname=listener.host)
        self.frames = None
        if listener.scheme in ("ws", "wss"):
            self.frames = bytearray()
            self._upgrade()
        self.socket.settimeout(BLOCKED_S)

    # ------------------------------------------------------------------ bytes

    def _upgrade(self) -> None:
        # [MQTT-6.0.0-3] [MQTT-6.0.0-4]
        key = base64.b64encode(secrets.token_bytes(16)).decode()
        self.socket.sendall(
            f"GET {self.listener.path} HTTP/1.1\r\nHost: {self.listener.host}:{self.listener.port}\r\n"
            f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: {self.subprotocol}\r\n\r\n".encode()
        )
        answer = b""
        while b"\r\n\r\n" not in answer:
            more = self.socket.recv(4096)
            if not more:
                raise Closed("during the WebSocket handshake")
            answer += more
        head, _, rest = answer.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        if " 101 " not in lines[0] + " ":
            raise Failure(f"the WebSocket handshake was answered with {lines[0]!r}")
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        if fields.get("sec-websocket-protocol") != self.subprotocol:
            raise Failure(f"the subprotocol is {fields.get('sec-websocket-protocol')!r}, not {self.subprotocol!r}")
        self.frames += rest

    def send(self, data: bytes) -> None:
        """Writes bytes; over WebSocket in one binary frame. A closed connection is no error here."""
        try:
            self.socket.sendall(self.websocket_frame(data) if self.frames is not None else data)
        except (BrokenPipeError, ConnectionError, ssl.SSLError, TimeoutError):
            pass

    def send_raw(self, data: bytes) -> None:
        """Writes bytes below WebSocket."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionError, ssl.SSLError, TimeoutError):
            pass

    @staticmethod
    def websocket_frame(data: bytes, opcode: int = 2, final: bool = True, claimed: int | None = None) -> bytes:
        """A masked WebSocket frame; `claimed` overrides its length."""
        length = len(data) if claimed is None else claimed
        head = bytes([(0x80 if final else 0) | opcode])
        if length < 126:
            head += bytes([0x80 | length])
        elif length < 65536:
            head += bytes([0x80 | 126]) + struct.pack(">H", length)
        else:
            head += bytes([0x80 | 127]) + struct.pack(">Q", length)
        return head + bytes(4) + data  # an all-zero mask is a mask

    def receive(self, timeout: float) -> bytes:
        """Some bytes of MQTT, or b"" when none came in time. Raises Closed at the end."""
        try:
            self.socket.settimeout(timeout)
            data = self.socket.recv(65536)
        except (TimeoutError, ssl.SSLWantReadError):
            return b""
        except (ConnectionError, ssl.SSLError, OSError) as error:
            raise Closed(str(error)) from None
        if not data:
            raise Closed("end of stream")
        if self.frames is None:
            return data
        self.frames += data
        return self._unframe()

    def _unframe(self) -> bytes:
        out = b""
        while len(self.frames) >= 2:
            opcode, length, at = self.frames[0] & 15, self.frames[1] & 0x7F, 2
            if self.frames[1] & 0x80:
                raise Failure("the broker masked a WebSocket frame")
            if length >= 126:
                size = 2 if length == 126 else 8
                if len(self.frames) < 2 + size:
                    break
                length, at = int.from_bytes(self.frames[2 : 2 + size], "big"), 2 + size
            if len(self.frames) < at + length:
                break
            body = bytes(self.frames[at : at + length])
            del self.frames[: at + length]
            if opcode == 8:
                code = struct.unpack(">H", body[:2])[0] if len(body) >= 2 else None
                if out:
                    return out
                raise Closed(f"WebSocket close {code}")
            if opcode in (0, 2):
                out += body
            elif opcode == 9:
                self.send_raw(self.websocket_frame(body, 10))
        return out

    # ------------------------------------------------------------------ packets

    def packet(self, timeout: float = PATIENCE_S) -> wire.Packet | None:
        """The next packet, or None when none came in time. Raises Closed at the end."""
        until = time.monotonic() + timeout
        while not self.ready:
            if self.frames:
                data = self._unframe()
                if data:
                    self.ready += self.parser.feed(data)
                    continue
            left = until - time.monotonic()
            if left <= 0:
                return None
            self.ready += self.parser.feed(self.receive(left))
        return self.ready.pop(0)

    def expect(self, kind: int, timeout: float = PATIENCE_S) -> wire.Packet:
        try:
            got = self.packet(timeout)
        except Closed as why:
            raise Failure(f"closed ({why}) instead of {wire.NAMES[kind]}") from None
        if got is None:
            raise Failure(f"no {wire.NAMES[kind]} within {timeout} s")
        if got.kind != kind:
            raise Failure(f"{got} instead of {wire.NAMES[kind]}")
        return got

    def connect(self, **options) -> wire.Packet:
        options.setdefault("client_id", "raw" + secrets.token_hex(6))
        self.send(wire.connect(level=self.level, **options))
        answer = self.expect(wire.CONNACK)
        if answer.reason:
            raise Failure(f"CONNACK with 0x{answer.reason:02X}")
        return answer

    def end(self, timeout: float = PATIENCE_S) -> tuple[list[wire.Packet], str]:
        """Reads until the broker closes: the packets that came before, and how it ended."""
        until, packets = time.monotonic() + timeout, []
        while True:
            try:
                got = self.packet(max(0.01, until - time.monotonic()))
            except Closed as why:
                return packets, str(why)
            if got is None:
                shown = f" (got {', '.join(map(str, packets))})" if packets else ""
                raise Failure(f"the connection is still open after {timeout} s{shown}")
            packets.append(got)

    def abort(self) -> None:
        """Ends the connection with a reset."""
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except OSError:
            pass
        self.close()

    def close(self) -> None:
        try:
            self.socket.close()
        except OSError:
            pass

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_) -> None:
        self.close()


def resident_kib(pid: int) -> int:
    """The resident memory of a process in KiB."""
    with open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
    raise Failure(f"process {pid} is gone")


def cpu_seconds(pid: int) -> float:
    """The processor time that a process has used."""
    with open(f"/proc/{pid}/stat") as status:
        fields = status.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def machine_pace() -> float:
    """How much longer this machine takes for the same, just now, than one on which limits hold as they are written; 1 at
    least. What one program computes beside others takes more of a processor's time, too: they share its caches.
    """
    before_s = time.thread_time()
    found = 0
    for number in range(PACE_ROUNDS):
        found ^= hash((number, found))
    return max(1.0, (time.thread_time() - before_s) / PACE_S)


class Work:
    """The processor time that a broker has used since this was made: a busy machine's other programs do not count.

    Without a process there is nothing to count, and nothing is too much.
    """

    def __init__(self, pid: int | None):
        self.pid, self.before_s = pid, cpu_seconds(pid) if pid else 0.0

    def seconds(self) -> float:
        return cpu_seconds(self.pid) - self.before_s if self.pid else 0.0

    def expect_below(self, limit_s: float, label: str) -> None:
        expect_work_below(self.seconds(), limit_s, label)


def expect_work_below(spent_s: float, limit_s: float, label: str) -> None:
    """Compares work with its limit, which grows where the machine is slow at the moment."""
    if spent_s < limit_s:
        return
    limit_s *= machine_pace()
    if spent_s >= limit_s:
        raise Failure(f"{label}: the broker worked {spent_s:.2f} s, and not less than {limit_s:.2f} s")


def wanted_seconds(pid: int) -> tuple[float, float]:
    """The time for which threads of a process have had a processor, and for which they wanted one."""
    had_ns = waited_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            fields = (task / "schedstat").read_text().split()
        except OSError:  # it has ended
            continue
        had_ns += int(fields[0])
        waited_ns += int(fields[1])
    return had_ns / 1e9, (had_ns + waited_ns) / 1e9


def comes_to_rest(pid: int, holds: Callable[[], bool]) -> bool:
    """Waits until a process has nothing to do but now and then; False where `holds` ends before.

    A process that has work to do is done at some time, however slow the machine is. One that spins never is: it always has
    a processor, or waits for one that others have.
    """
    while holds():
        before, begun_s = wanted_seconds(pid), time.monotonic()
        time.sleep(REST_S)
        had_s, wanted_s = (now - then for now, then in zip(wanted_seconds(pid), before, strict=True))
        took_s = time.monotonic() - begun_s
        if had_s < took_s * REST_HAD and wanted_s < took_s * REST_WANTED and holds():
            return True
    return False


def all_open(sockets: list[socket.socket]) -> bool:
    """Whether no peer has ended one of these connections. Nothing is read."""
    poll = select.poll()
    for one in sockets:
        poll.register(one, select.POLLRDHUP)
    return not poll.poll(0)


def broker_pid(listener: Listener) -> int | None:
    """The broker's process: as the runner or the broker says, or else the owner of the listening socket."""
    if value := os.environ.get("STERNA_PID") or ready().get("pid"):
        return int(value)
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in (line.split() for line in lines):
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == listener.port:
                inodes.add(f"socket:[{fields[9]}]")
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if any(os.readlink(one) in inodes for one in (folder / "fd").iterdir()):
                return int(folder.name)
        except OSError:
            continue
    return None
