"""Attacks on the broker's HTTP: `http_attacks.py [--only TEXT] [--transports h1,h1s,h2c,h2,h3]`.

What a client must not send, and what it must not be able to make the broker hold, on each version of HTTP. As in
attacks.py, another client is answered within a second meanwhile, and the broker's memory comes back after each row. The
broker has the settings of http-attacked.toml.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import secrets
import socket
import threading
import time
from contextlib import ExitStack

from attacks import Runner, expect
from harness import Failure, Listener, Report, all_listeners
from http_raw import Answer, RawHttp, request
from raw import PATIENCE_S, Closed, broker_pid, resident_kib

# As http-attacked.toml has them.
FIELDS_TIMEOUT_S, CONTENT_TIMEOUT_S, IDLE_TIMEOUT_S, STALLED_S = 3.0, 3.0, 5.0, 2
CONTENT_BYTES, REQUESTS, RESETS, SUBSCRIPTIONS, TOPICS = 262_144, 64, 64, 16, 500
KIB, MIB = 1024, 1 << 20
# What the broker may hold of a row, in KiB, beside what its limits say.
SLACK_KIB = 16 * KIB
ROWS: list[tuple[str, object, frozenset[str], bool]] = []


def row(name: str, *transports: str, waits: bool = False):
    """A row for these transports; those that only wait for the clock run side by side, at the end."""

    def add(function):
        ROWS.append((name, function, frozenset(transports), waits))
        return function

    return add


def topic(what: str) -> str:
    return f"/v1/topics/iop/attack/{secrets.token_hex(4)}/{what}"


def works(at: Listener) -> None:
    """A client in order is served."""
    with RawHttp(at) as one:
        one.send(request("POST", topic("works"), content=b"x"))
        expect(one.answer().status == 204, "a client in order is not served")


def grown(pid: int | None, before: int, limit_kib: int, what: str) -> None:
    if pid:
        kib = resident_kib(pid) - before
        expect(kib < limit_kib, f"{what} took {kib} KiB")


def resident(at: Listener) -> tuple[int | None, int]:
    pid = broker_pid(at)
    return pid, resident_kib(pid) if pid else 0


# --------------------------------------------------------------------------- HTTP/1.1: requests in requests

SMUGGLED = "smuggled"
# What comes after the head: an end of chunks, or content, and then another request, as it looks to who reads wrongly.
HIDDEN = "0\r\n\r\n{inner}"
# (what, head of the request after its first line, what follows, whether it may be taken at all)
SMUGGLING = [
    ("Content-Length and Transfer-Encoding", "Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n", HIDDEN),
    ("Transfer-Encoding and Content-Length", "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", HIDDEN),
    ("two lengths", "Content-Length: 5\r\nContent-Length: {length}\r\n", HIDDEN),
    ("two lengths in one", "Content-Length: 5, {length}\r\n", HIDDEN),
    ("a length with a sign", "Content-Length: +5\r\n", HIDDEN),
    ("a negative length", "Content-Length: -5\r\n", HIDDEN),
    ("a length in hexadecimal", "Content-Length: 0x5\r\n", HIDDEN),
    ("a length with letters", "Content-Length: 5a\r\n", HIDDEN),
    ("a length beyond 64 bits", "Content-Length: 18446744073709551621\r\n", HIDDEN),
    ("an empty length", "Content-Length:\r\n", HIDDEN),
    ("an unknown coding", "Transfer-Encoding: xchunked\r\nContent-Length: 5\r\n", HIDDEN),
    ("chunked and then another coding", "Transfer-Encoding: chunked, identity\r\n", HIDDEN),
    ("chunked twice", "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", HIDDEN),
    ("a space before the colon", "Transfer-Encoding : chunked\r\nContent-Length: 5\r\n", HIDDEN),
    ("a folded line", "Transfer-Encoding:\r\n chunked\r\nContent-Length: 5\r\n", HIDDEN),
    ("a carriage return alone", "X: y\rTransfer-Encoding: chunked\r\nContent-Length: 5\r\n", HIDDEN),
    ("a vertical tab", "Transfer-Encoding: \x0bchunked\r\nContent-Length: 5\r\n", HIDDEN),
    ("U+0000 in a value", "X: a\0b\r\nContent-Length: 5\r\n", HIDDEN),
    ("a name that is none", "X(: y\r\nContent-Length: 5\r\n", HIDDEN),
    ("a line without a colon", "Transfer-Encoding\r\nContent-Length: 5\r\n", HIDDEN),
]
# Those where one framing is clear, and may be followed: the connection ends after it (RFC 9112, section 6.1).
MAY_BE_TAKEN = {"Content-Length and Transfer-Encoding", "Transfer-Encoding and Content-Length"}


@row("smuggling", "h1", "h1s")
def smuggling(at: Listener) -> None:
    wrong = []
    for what, fields, after in SMUGGLING:
        hidden = topic(SMUGGLED)
        inner = request("PUT", hidden).decode("latin-1")
        body = after.format(inner=inner)
        data = f"POST {topic('outer')} HTTP/1.1\r\nHost: localhost\r\n{fields.format(length=len(body))}\r\n{body}"
        with RawHttp(at) as one:
            one.send(data.encode("latin-1"))
            rest = one.ending()
        answers = rest.count(b"HTTP/1.1 ")
        first = rest.split(b"\r\n")[0]
        if what in MAY_BE_TAKEN and answers == 1 and b" 204" in first:
            pass
        elif answers > 1 or answers and first.split()[1] not in (b"400", b"411", b"413", b"431", b"501"):
            wrong.append(f"{what}: {answers} answers, the first {first!r}")
        with RawHttp(at) as one:
            one.send(request("HEAD", hidden))
            if one.answer(head=True).status != 404:
                wrong.append(f"{what}: the hidden request was done")
    expect(not wrong, "; ".join(wrong))


@row("request-lines", "h1", "h1s")
def request_lines(at: Listener) -> None:
    wrong = []
    for what, data, statuses in [
        ("no Host", b"GET / HTTP/1.1\r\n\r\n", {400, 421}),
        ("two Hosts", b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", {400}),
        ("another Host in the target", b"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n", {400, 421}),
        ("user information", b"GET / HTTP/1.1\r\nHost: a@localhost\r\n\r\n", {400, 421}),
        ("version 9.9", b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n", {400, 505}),
        ("no version", b"GET /\r\n\r\n", {400}),
        ("two spaces", b"GET  / HTTP/1.1\r\nHost: localhost\r\n\r\n", {400}),
        ("a space in the target", b"GET /a b HTTP/1.1\r\nHost: localhost\r\n\r\n", {400}),
        ("a target without slash", b"GET v1/topics/a HTTP/1.1\r\nHost: localhost\r\n\r\n", {400, 404, 421}),
        ("an asterisk", b"GET * HTTP/1.1\r\nHost: localhost\r\n\r\n", {400, 404}),
        ("a method of 64 KiB", b"M" * 65536 + b" / HTTP/1.1\r\nHost: localhost\r\n\r\n", {400, 405, 414, 431, 501}),
        ("a fragment", b"GET /#x HTTP/1.1\r\nHost: localhost\r\n\r\n", {200, 400}),
        ("CONNECT", b"CONNECT evil.example:1 HTTP/1.1\r\nHost: evil.example:1\r\n\r\n", {400, 404, 405, 421, 501}),
        ("beyond ASCII in the target", b"GET /v1/topics/\xff?last HTTP/1.1\r\nHost: localhost\r\n\r\n", {400, 404}),
        ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(300) + b"\r\n\r\n", {400}),
        ("MQTT", b"\x10\x10\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x03abc\r\n\r\n", {400}),
    ]:
        with RawHttp(at) as one:
            one.send(data)
            try:
                got = one.answer()
                if got.status not in statuses:
                    wrong.append(f"{what}: {got.status}")
            except Closed:
                pass  # no answer is one, too
            except Failure as why:
                wrong.append(f"{what}: {why}")
    expect(not wrong, "; ".join(wrong))
    works(at)


@row("chunks", "h1", "h1s")
def chunks(at: Listener) -> None:
    wrong = []
    start = f"POST {topic('c')} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    for what, data in {
        "no number": b"zz\r\nab\r\n0\r\n\r\n",
        "a negative one": b"-1\r\nab\r\n0\r\n\r\n",
        "beyond 64 bits": b"fffffffffffffffff\r\nab\r\n",
        "2^64 - 1": b"ffffffffffffffff\r\nab\r\n",
        "more than was said": b"2\r\nabcdef\r\n0\r\n\r\n",
        "an empty size": b"\r\nab\r\n0\r\n\r\n",
        "an extension of 1 MiB": b"2;" + b"x" * MIB + b"\r\nab\r\n0\r\n\r\n",
        "100,000 small extensions": b"1;x=yyyyyyyyyyyyyyyy\r\na\r\n" * 100_000,
        "a trailer of 1 MiB": b"2\r\nab\r\n0\r\nX: " + b"x" * MIB + b"\r\n\r\n",
        "10,000 trailers": b"2\r\nab\r\n0\r\n" + b"X: y\r\n" * 10_000 + b"\r\n",
        "too much in all": b"8000\r\n" + b"x" * 0x8000 + b"\r\n" + (b"8000\r\n" + b"x" * 0x8000 + b"\r\n") * 12,
    }.items():
        with RawHttp(at) as one:
            one.send(start + data)
            try:
                got = one.answer()
                if got.status not in (400, 408, 413, 431):
                    wrong.append(f"{what}: {got.status}")
                one.ending()
            except Closed:
                pass
            except Failure as why:
                wrong.append(f"{what}: {why}")
    expect(not wrong, "; ".join(wrong))
    with RawHttp(at) as one:  # zeros before a size are in order, however many
        one.send(start + b"0" * 65536 + b"2\r\nab\r\n0\r\n\r\n")
        expect(one.answer().status in (204, 400, 431), "64 KiB of zeros")
    with RawHttp(at) as one:  # chunks in order, byte by byte
        for byte in start + b"2\r\nab\r\n3;x=y\r\ncde\r\n0\r\nX: y\r\n\r\n":
            one.send(bytes([byte]))
        expect(one.answer().status == 204, "chunks in order are refused")


@row("fields", "h1", "h1s")
def fields(at: Listener) -> None:
    wrong = []
    for what, data in {"one of 1 MiB": b"X: " + b"a" * MIB, "100,000": b"X: y\r\n" * 100_000,
                       "a name of 1 MiB": b"X" * MIB, "101 small ones": b"X: y\r\n" * 20_000,
                       "20 KiB": b"X: " + b"a" * 20_000}.items():
        with RawHttp(at) as one:
            one.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + data + b"\r\n\r\n")
            try:
                got = one.answer()
                if got.status not in (400, 431):
                    wrong.append(f"{what}: {got.status}")
            except Closed:
                pass
            except Failure as why:
                wrong.append(f"{what}: {why}")
    expect(not wrong, "; ".join(wrong))


@row("target-too-long", "h1", "h1s")
def target_too_long(at: Listener) -> None:
    with RawHttp(at) as one:
        one.send(request("GET", "/v1/topics/" + "a" * 12_000))
        got = one.answer()
        expect((got.status, got.problem()) == (414, "uri-too-long"), f"{got.status} {got.problem()}")


# --------------------------------------------------------------------------- HTTP/1.1: time and memory


def dripping(connections: list[RawHttp], pieces: bytes, seconds: float) -> None:
    """Sends a byte now and then on each."""
    until = time.monotonic() + seconds
    for byte in pieces:
        for one in connections:
            one.send(bytes([byte]))
        if time.monotonic() > until:
            return
        time.sleep(0.15)


@row("slow-head", "h1", "h1s", waits=True)
def slow_head(at: Listener) -> None:
    # Nothing, a part of a head and silence, and a head that never ends.
    with ExitStack() as stack:
        silent = [stack.enter_context(RawHttp(at)) for _ in range(20)]
        part = [stack.enter_context(RawHttp(at)) for _ in range(20)]
        slow = [stack.enter_context(RawHttp(at)) for _ in range(20)]
        for one in part:
            one.send(b"GET / HTTP/1.1\r\nHost: local")
        dripping(slow, b"GET / HTTP/1.1\r\nX: " + b"y" * 100, FIELDS_TIMEOUT_S + 1)
        for what, some in (("a head that never ends", slow), ("a part of a head", part), ("nothing", silent)):
            for one in some:
                try:
                    rest = one.ending(max(FIELDS_TIMEOUT_S, IDLE_TIMEOUT_S) + PATIENCE_S)
                except Failure as why:
                    raise Failure(f"{what}: {why}") from None
                status = rest.split(b" ")[1:2]
                expect(not rest or status in ([b"408"], [b"400"]), f"{what}: {rest[:60]!r}")


@row("slow-content", "h1", "h1s", waits=True)
def slow_content(at: Listener) -> None:
    with ExitStack() as stack:
        slow = [stack.enter_context(RawHttp(at)) for _ in range(20)]
        chunked = [stack.enter_context(RawHttp(at)) for _ in range(20)]
        for one in slow:
            one.send(request("POST", topic("s"), {"Content-Length": "1000"}))
        for one in chunked:
            one.send(request("POST", topic("s"), {"Transfer-Encoding": "chunked"}) + b"3e8\r\n")
        dripping(slow + chunked, b"x" * 100, CONTENT_TIMEOUT_S + 0.6)
        for one in slow + chunked:
            got = one.answer(CONTENT_TIMEOUT_S + PATIENCE_S)
            expect((got.status, got.problem()) == (408, "timeout"), f"{got.status} {got.problem()}")
            one.ending()


@row("claimed-content", "h1", "h1s")
def claimed(at: Listener) -> None:
    pid, before = resident(at)
    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(RawHttp(at)).send(request("POST", topic("s"), {"Content-Length": str(CONTENT_BYTES)}))
        time.sleep(0.3)
        grown(pid, before, 12 * KIB, "100 claims of 256 KiB")
    with RawHttp(at) as one:
        one.send(request("POST", topic("s"), {"Content-Length": str(CONTENT_BYTES + 1)}))
        got = one.answer()
        expect((got.status, got.problem()) == (413, "content-too-large"), f"{got.status} {got.problem()}")


@row("expect-continue", "h1")
def expect_continue(at: Listener) -> None:
    # RFC 9110, section 10.1.1: what is refused is refused before its content is sent.
    with RawHttp(at) as one:
        one.send(request("POST", topic("e"), {"Content-Length": "99999999", "Expect": "100-continue"}))
        expect(one.answer().status == 413, "content that is too large is asked for")
    with RawHttp(at) as one:
        one.send(request("POST", topic("e"), {"Content-Length": "2", "Expect": "100-continue"}))
        time.sleep(0.2)
        one.send(b"ab")
        expect(one.answer().status == 204, "with Expect: 100-continue")


@row("pipelining", "h1", "h1s")
def pipelining(at: Listener) -> None:
    # Answers in order; and what is asked without an answer being read stays with the client.
    with RawHttp(at) as one:
        for number in range(50):
            one.send(request("GET" if number % 2 else "POST", topic("p") + ("?last" if number % 2 else ""),
                             content=None if number % 2 else b"x"))
        got = [one.answer().status for _ in range(50)]
        expect(got == [204, 404] * 25, f"answers {got[:10]}")
    pid, before = resident(at)
    with RawHttp(at) as one:
        one.socket.settimeout(1.0)
        one.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        try:
            for _ in range(200):
                one.socket.sendall(request("GET", "/v1/openapi.json") * 100)
        except (TimeoutError, OSError):
            pass
        grown(pid, before, SLACK_KIB, "20,000 requests whose answers nobody reads")


@row("subscriber-that-does-not-read", "h1")
def not_reading(at: Listener) -> None:
    pid, before = resident(at)
    where = topic("slow")
    with RawHttp(at) as reader, RawHttp(at) as publisher, RawHttp(at) as other:
        reader.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.send(request("GET", where))
        name = re.search(rb"sterna-session: (\S+)", reader.receive(PATIENCE_S)).group(1).decode()
        other.send(request("GET", where))
        expect(b" 200 " in other.receive(PATIENCE_S)[:20], "the subscription of the other reader")
        ends = []

        def read_all() -> None:
            # In a thread of its own: one publication may take longer than a response may stand still.
            try:
                while True:
                    other.receive(PATIENCE_S)
            except Closed as why:
                ends.append(str(why))

        threading.Thread(target=read_all, daemon=True).start()
        for _ in range(600):
            publisher.send(request("POST", where, content=b"x" * 200_000))
            got = publisher.answer()
            expect(got.status in (204, 503), f"{got.status} for a publisher")
        expect(not ends, f"who reads is cut off as well: {ends}")
        # Two queues, two responses, and pages that the allocator has not given back: half of what was published.
        grown(pid, before, 60 * KIB, "120 MB for a subscriber that does not read")
        # After http.stalled_timeout_s without progress it is cut off, and its session with it after a while.
        until = time.monotonic() + 2 * STALLED_S + PATIENCE_S
        while True:
            publisher.send(request("GET", f"/v1/sessions/{name}"))
            got = publisher.answer()
            if got.status == 404 or not json.loads(got.content)["connected"]:
                break
            expect(time.monotonic() < until, "a response that takes nothing is not cut off")
            time.sleep(0.2)


@row("subscriptions-of-many", "h1", "h1s")
def many_subscriptions(at: Listener) -> None:
    pid, before = resident(at)
    with ExitStack() as stack:
        many = []
        for _ in range(150):
            # Each asks at once: a slow machine opens all of them in more time than one may be silent.
            many.append(stack.enter_context(RawHttp(at)))
            many[-1].send(request("GET", topic("m")))
        for one in many:
            expect(one.receive(PATIENCE_S)[9:12] in (b"200", b"507", b"503"), "an answer to a subscription")
        grown(pid, before, SLACK_KIB, "150 subscriptions")


@row("topics-and-keys", "h1")
def topics_and_keys(at: Listener) -> None:
    # What a client can make the broker remember has an end.
    pid, before = resident(at)
    with RawHttp(at) as one:
        refused: Answer | None = None
        for number in range(TOPICS + 10):
            one.send(request("PUT", topic(f"t{number}"), content=b""))
            got = one.answer()
            if got.status != 201:
                refused = got
                break
        expect(refused is not None, f"{TOPICS + 10} topics, set are {TOPICS}")
        expect((refused.status, refused.problem()) == (507, "too-many-topics"), f"{refused.status} {refused.problem()}")
        for _ in range(50):
            one.send(b"".join(request("POST", topic("k"), {"Idempotency-Key": secrets.token_hex(100)}, b"x")
                              for _ in range(100)))
            for _ in range(100):
                expect(one.answer().status == 204, "a publisher with keys")
        grown(pid, before, SLACK_KIB, "5,000 keys")


# --------------------------------------------------------------------------- running them

TRANSPORTS = {"h1": "http", "h1s": "https", "h2c": "http", "h2": "https", "h3": "h3"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="only rows whose transport/name contains this")
    parser.add_argument("--transports", default=",".join(TRANSPORTS), help="separated by commas")
    parser.add_argument("--timings", action="store_true", help="print how long each row took")
    arguments = parser.parse_args()
    # They add their rows to these.
    importlib.import_module("http_attacks_h2")
    importlib.import_module("http_attacks_h3")
    report, places = Report(), {}
    for one in all_listeners():
        one.secure = one.scheme in ("https", "h3")
        places.setdefault(one.scheme, one)
    if not {"http", "https", "h3", "mqtt"} <= set(places):
        report.not_ok("http-attacks", "the broker lacks a listener of http-attacked.toml")
        report.exit()
    runner = Runner(report, {"tcp": places["mqtt"]})
    if not runner.pid:
        report.skip("memory", "the broker's process is not known; set STERNA_PID")
    waiting = []
    for transport in arguments.transports.split(","):
        at = places[TRANSPORTS[transport]]
        for name, function, on, waits in ROWS:
            label = f"{transport}/{name}"
            if transport not in on or arguments.only not in label:
                continue
            if waits:
                waiting.append(threading.Thread(target=runner.guarded, args=(label, lambda f=function, a=at: f(a))))
                continue
            start = time.monotonic()
            runner.guarded(label, lambda function=function, at=at: function(at))
            if arguments.timings:
                print(f"# {time.monotonic() - start:.2f} s {label}", flush=True)
    for thread in waiting:
        thread.start()
    for thread in waiting:
        thread.join()
    report.exit()


if __name__ == "__main__":
    # The rows of the other modules are registered with the module, not with the program.
    importlib.import_module("http_attacks").main()
