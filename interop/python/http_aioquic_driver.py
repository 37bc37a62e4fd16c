"""aioquic's HTTP/3 as a driver of the HTTP scenario: JSON lines in, JSON lines out (../README.md)."""

from __future__ import annotations

import asyncio
import base64
import importlib.metadata
import json
import ssl
import sys
from contextlib import AsyncExitStack

from aioquic.asyncio import QuicConnectionProtocol, connect
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration

PATIENCE_S = 30.0
# What a driver's line may be long: content of 1 MiB in base64.
LINE_LIMIT_BYTES = 16 * 1024 * 1024
REQUEST_CANCELLED = 0x010C


def out(line: dict) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


class Exchange:
    """One request and its response."""

    def __init__(self, asked: dict, early: bool):
        self.number, self.response, self.stream = asked["n"], asked["r"], asked["stream"]
        self.asked_early = early
        self.head: dict | None = None
        self.content = b""
        self.over = False


class Http3(QuicConnectionProtocol):
    """A connection; each request is a stream."""

    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.http = H3Connection(self._quic)
        self.exchanges: dict[int, Exchange] = {}
        self.early_data_accepted: bool | None = None

    def ask(self, asked: dict, host: str) -> int:
        stream = self._quic.get_next_available_stream_id()
        early = not self._connected
        self.exchanges[stream] = Exchange(asked, early)
        fields = [(b":method", asked["method"].encode()), (b":scheme", b"https"),
                  (b":authority", asked.get("authority", host).encode()), (b":path", asked["target"].encode())]
        content = asked["content"]
        raw = base64.b64decode(content) if content is not None else b""
        if content is not None:
            fields.append((b"content-length", str(len(raw)).encode()))
        fields += [(name.lower().encode(), value.encode("latin-1")) for name, value in asked["fields"]
                   if name.lower() != "host"]
        self.http.send_headers(stream, fields, end_stream=not raw)
        if raw:
            self.http.send_data(stream, raw, end_stream=True)
        self.transmit()
        return stream

    def quic_event_received(self, event: events.QuicEvent) -> None:
        if isinstance(event, events.HandshakeCompleted):
            self.early_data_accepted = event.early_data_accepted
        elif isinstance(event, events.StreamReset):
            self._finish(event.stream_id, f"reset with 0x{event.error_code:X}")
        elif isinstance(event, events.ConnectionTerminated):
            for stream in list(self.exchanges):
                self._finish(stream, f"the connection ended with 0x{event.error_code:X} {event.reason_phrase}".rstrip())
        for one in self.http.handle_event(event):
            self._http_event(one)

    def _http_event(self, event) -> None:
        one = self.exchanges.get(getattr(event, "stream_id", None))
        if one is None:
            return
        if isinstance(event, HeadersReceived) and one.head is None:
            fields = [(name.decode(), value.decode("latin-1")) for name, value in event.headers]
            status = int(dict(fields)[":status"])
            if status < 200:
                return
            one.head = {"status": status, "fields": [pair for pair in fields if pair[0] != ":status"], "version": "3"}
            if one.asked_early:
                one.head["early"] = self.early_data_accepted is not False
            if one.stream:
                out({"n": one.number, "ok": one.head})
        elif isinstance(event, DataReceived) and event.data:
            if one.stream:
                out({"event": "data", "r": one.response, "data": base64.b64encode(event.data).decode()})
            else:
                one.content += event.data
        if event.stream_ended:
            self._finish(event.stream_id, None)

    def _finish(self, stream: int, error: str | None) -> None:
        one = self.exchanges.pop(stream, None)
        if one is None:
            return
        if one.head is None or error and not one.stream:
            out({"n": one.number, "error": error or "a response without fields"})
        elif one.stream:
            out({"event": "end", "r": one.response, "error": error})
        else:
            out({"n": one.number, "ok": {**one.head, "content": base64.b64encode(one.content).decode()}})

    def cancel(self, response: int) -> None:
        for stream, one in list(self.exchanges.items()):
            if one.response == response:
                del self.exchanges[stream]
                self._quic.stop_stream(stream, REQUEST_CANCELLED)
                self.transmit()


class Driver:
    def __init__(self):
        self.places: dict[int, dict] = {}
        self.connections: dict[int, Http3] = {}
        self.stacks: dict[int, AsyncExitStack] = {}
        self.opening: dict[int, asyncio.Lock] = {}
        # Tickets of earlier connections, by the name that the scenario gives.
        self.tickets: dict[str, list] = {}

    async def connection(self, c: int) -> Http3:
        async with self.opening.setdefault(c, asyncio.Lock()):
            if c not in self.connections:
                place = self.places[c]
                early = place.get("early", False)
                made = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, server_name=place["host"],
                                         idle_timeout=30.0, max_datagram_frame_size=65536,
                                         session_ticket=self.tickets[place["tickets"]].pop() if early else None)
                made.verify_mode = ssl.CERT_REQUIRED
                made.load_verify_locations(place["ca"])
                if place.get("cert"):
                    made.load_cert_chain(place["cert"], place["key"])
                stack = self.stacks[c] = AsyncExitStack()

                def keep(ticket) -> None:
                    if "tickets" in place:
                        self.tickets.setdefault(place["tickets"], []).append(ticket)

                quic = await stack.enter_async_context(connect(
                    place["host"], place["port"], configuration=made, create_protocol=Http3, wait_connected=False,
                    session_ticket_handler=keep))
                if not early:
                    quic.transmit()
                    await asyncio.wait_for(quic.wait_connected(), PATIENCE_S)
                self.connections[c] = quic
            return self.connections[c]

    async def take(self, asked: dict) -> None:
        n, op = asked["n"], asked["op"]
        try:
            if op == "open":
                self.places[asked["c"]] = asked
                out({"n": n, "ok": {}})
            elif op == "request":
                quic = await self.connection(asked["c"])
                place = self.places[asked["c"]]
                host = f"{place['host']}:{place['port']}"
                for name, value in asked["fields"]:
                    if name.lower() == "host":
                        host = value
                quic.ask(asked, host)
            elif op == "cancel":
                for quic in self.connections.values():
                    quic.cancel(asked["r"])
                out({"n": n, "ok": {}})
            elif op == "close":
                quic = self.connections.pop(asked["c"], None)
                if quic is not None:
                    quic.exchanges.clear()
                    await self.stacks.pop(asked["c"]).aclose()
                out({"n": n, "ok": {}})
            else:
                out({"n": n, "cannot": f"the driver has no {op}"})
        except TimeoutError:
            out({"n": n, "error": f"not connected within {PATIENCE_S} s"})
        except Exception as error:  # whatever it is, the scenario has to hear of it
            out({"n": n, "error": f"{type(error).__name__}: {error}"})

    async def run(self) -> None:
        out({"hello": {"client": f"aioquic {importlib.metadata.version('aioquic')}", "transports": ["h3"],
                       "certificates": True, "early_data": True}})
        reader = asyncio.StreamReader(limit=LINE_LIMIT_BYTES)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        tasks: set[asyncio.Task] = set()
        while line := await reader.readline():
            # In order up to the request, so that requests of a connection leave in the order in which they came.
            task = asyncio.create_task(self.take(json.loads(line)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)


if __name__ == "__main__":
    asyncio.run(Driver().run())
