"""The client on aioquic as a driver of the common scenario: one QUIC stream, JSON lines in and out (README.md)."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from contextlib import AsyncExitStack
from importlib.metadata import version

import wire
from harness import LINE_LIMIT_BYTES, Failure, Listener, pack_properties, unpack_properties
from quic_client import QuicClient, opened

WINDOW = 100


def out(line: dict) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


class Connection(QuicClient):
    """An MQTT client on the control stream of one QUIC connection."""

    request: dict

    def begin(self, request: dict) -> None:
        self.request = request
        self.control = self.bidirectional(0)
        self.identifier = 0
        self.connacked = False
        self.waiting: dict[tuple[int, int], asyncio.Future] = {}
        self.window = asyncio.Semaphore(WINDOW)
        self.unacknowledged: list[wire.Packet] = []
        self.incoming: dict[int, wire.Packet] = {}
        self.aliases: dict[int, str] = {}
        self.reason = None
        self.tasks: set[asyncio.Task] = set()
        will = request["will"]
        if will:
            will = {**will, "payload": base64.b64decode(will["payload"]),
                    "properties": unpack_properties(will["properties"])}
        self.control.send(wire.connect(
            self.level, request["id"], request["clean"], request["keep_alive"],
            unpack_properties(request["properties"]), will,
        ))

    def next_identifier(self) -> int:
        self.identifier = self.identifier % 65_535 + 1
        return self.identifier

    async def exchange(self, kind: int, pid: int, data: bytes) -> wire.Packet:
        """Sends a packet and waits for the one that answers it."""
        future = self.waiting[kind, pid] = asyncio.get_running_loop().create_future()
        self.control.send(data)
        return await future

    # ------------------------------------------------------------------ packets

    def received(self, stream, what) -> None:
        if not isinstance(what, wire.Packet):
            return
        if what.kind == wire.CONNACK:
            self._connack(what)
        elif what.kind == wire.PUBLISH:
            self._publish(what)
        elif what.kind == wire.PUBREL:
            self.incoming.pop(what.pid, None)
            self.control.send(wire.ack(wire.PUBCOMP, what.pid, self.level))
        elif what.kind == wire.DISCONNECT:
            self.reason = what.reason
            self.end()
        elif what.kind != wire.PINGRESP:
            future = self.waiting.pop((what.kind, what.pid), None)
            if what.kind == wire.PUBREC and future is None:
                raise wire.WireError(f"PUBREC for {what.pid}, which is not in flight")
            if future and not future.done():
                future.set_result(what)

    def _connack(self, packet: wire.Packet) -> None:
        number = self.request["n"]
        if packet.reason:
            out({"n": number, "error": "refused", "reason": packet.reason})
            return
        self.connacked = True
        self.window = asyncio.Semaphore(min(WINDOW, packet.properties.get("receive_maximum", WINDOW)))
        keep_alive = packet.properties.get("server_keep_alive", self.request["keep_alive"])
        if keep_alive:
            self.start(self._ping(keep_alive))
        out({"n": number, "ok": {"session_present": packet.session_present,
                                 "properties": pack_properties(packet.properties)}})

    def _publish(self, packet: wire.Packet) -> None:
        alias = packet.properties.get("topic_alias")
        if alias is not None:
            if not packet.topic:
                packet.topic = self.aliases[alias]
            self.aliases[alias] = packet.topic
        if packet.qos == 2 and packet.pid in self.incoming:
            self._acknowledge(packet)
            return
        if packet.qos == 2:
            self.incoming[packet.pid] = packet
        out({"event": "message", "client": self.request["client"], "topic": packet.topic,
             "payload": base64.b64encode(packet.payload).decode(), "qos": packet.qos, "retain": packet.retain,
             "dup": packet.dup, "properties": pack_properties(packet.properties)})
        if self.request["manual_ack"]:
            self.unacknowledged.append(packet)
        else:
            self._acknowledge(packet)

    def _acknowledge(self, packet: wire.Packet) -> None:
        if packet.qos:
            kind = wire.PUBACK if packet.qos == 1 else wire.PUBREC
            self.control.send(wire.ack(kind, packet.pid, self.level))

    async def _ping(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds * 0.8)
            self.control.send(wire.pingreq())

    def start(self, work) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def ended(self, event) -> None:
        for task in list(self.tasks):
            if task is not asyncio.current_task():
                task.cancel()
        for future in self.waiting.values():
            if not future.done():
                future.set_exception(Failure(self.ending))
        self.waiting.clear()
        if not self.connacked:
            out({"n": self.request["n"], "error": self.ending})
        out({"event": "closed", "client": self.request["client"], "reason": self.reason, "detail": self.ending})

    # ------------------------------------------------------------------ commands

    async def subscribe(self, request: dict) -> dict:
        pid, props = self.next_identifier(), {}
        if request["identifier"] is not None:
            props["subscription_identifiers"] = [request["identifier"]]
        filters = [(one["filter"], one["qos"] if self.level < 5 else
                    one["qos"] | one["no_local"] << 2 | one["retain_as_published"] << 3 | one["retain_handling"] << 4)
                   for one in request["filters"]]
        answer = await self.exchange(wire.SUBACK, pid, wire.subscribe(pid, filters, self.level, props))
        return {"codes": answer.codes}

    async def unsubscribe(self, request: dict) -> dict:
        pid = self.next_identifier()
        data = wire.unsubscribe(pid, request["filters"], self.level)
        answer = await self.exchange(wire.UNSUBACK, pid, data)
        return {"codes": answer.codes if self.level >= 5 else None}

    async def publish(self, request: dict) -> dict:
        return await self._send(request["topic"], base64.b64decode(request["payload"]), request["qos"],
                                request["retain"], unpack_properties(request["properties"]))

    async def _send(self, topic: str, payload: bytes, qos: int, retain: bool, props: dict) -> dict:
        if not qos:
            self.control.send(wire.publish(topic, payload, 0, None, retain, level=self.level, props=props))
            return {}
        async with self.window:
            pid = self.next_identifier()
            data = wire.publish(topic, payload, qos, pid, retain, level=self.level, props=props)
            answer = await self.exchange(wire.PUBACK if qos == 1 else wire.PUBREC, pid, data)
            if answer.reason >= 0x80:
                raise Failure(f"{answer}")
            if qos == 2:
                done = await self.exchange(wire.PUBCOMP, pid, wire.ack(wire.PUBREL, pid, self.level))
                if done.reason:
                    raise Failure(f"{done}")
            return {"reason": answer.reason}

    async def burst(self, request: dict) -> dict:
        await asyncio.gather(*(self._send(request["topic"], str(number).encode(), request["qos"], False, {})
                               for number in range(request["count"])))
        return {}

    async def ack(self, request: dict) -> dict:
        for _ in range(request["count"]):
            self._acknowledge(self.unacknowledged.pop(0))
        return {}

    async def disconnect(self, request: dict) -> dict:
        # DISCONNECT, the end of the stream, and then the connection with code 0.
        data = wire.disconnect(self.level, request["reason"], unpack_properties(request["properties"]))
        self.control.send(data, fin=True)
        try:
            await asyncio.wait_for(asyncio.shield(self.over), 0.5)
        except TimeoutError:
            self.end()
        await self.terminated()
        return {}

    async def abort(self, request: dict) -> dict:
        self.end(1, "gone")
        await self.terminated()
        return {}


clients: dict[int, Connection] = {}


async def live(request: dict) -> None:
    """One connection from its opening to its end."""
    listener = Listener(request["url"], request["ca"])
    async with AsyncExitStack() as stack:
        try:
            one = await stack.enter_async_context(opened(listener, request["level"], kind=Connection))
        except (Failure, OSError) as why:
            out({"n": request["n"], "error": str(why)})
            return
        clients[request["client"]] = one
        one.begin(request)
        await one.wait_closed()


async def perform(request: dict) -> None:
    one = clients.get(request["client"])
    try:
        if one is None or one.over.done():
            if request["op"] in ("disconnect", "abort"):
                out({"n": request["n"], "ok": {}})
                return
            raise Failure("the connection has ended")
        out({"n": request["n"], "ok": await getattr(one, request["op"])(request)})
    except asyncio.CancelledError:
        raise
    except Exception as error:  # the scenario decides what it means
        out({"n": request["n"], "error": f"{error}"})


async def main() -> None:
    out({"hello": {"client": f"aioquic {version('aioquic')}", "transports": ["quic"], "levels": [4, 5], "cannot": {}}})
    reader = asyncio.StreamReader(limit=LINE_LIMIT_BYTES)
    loop, tasks = asyncio.get_running_loop(), set()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        request = json.loads(line)
        work = live(request) if request["op"] == "connect" else perform(request)
        task = asyncio.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)


if __name__ == "__main__":
    asyncio.run(main())
