#!/usr/bin/env python3
"""A device of the lab with aioquic below it: `sterna-lab run CAMPAIGN --device .../aioquic_device.py`.

docs/lab.md has the protocol. Needs aioquic (PyPI).
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import struct
import sys
import time
from urllib.parse import urlsplit

from aioquic.asyncio import connect
from harness import Listener

import wire
from quic_client import QuicClient, configuration

# Number and moment at a message's start: 4 and 8 bytes.
STAMP = struct.Struct(">IQ")
SCHED_RR = 2
PATIENCE_S = 60.0


def now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def say(**word) -> None:
    print(json.dumps(word), flush=True)


class Device:
    """One task's work."""

    def __init__(self, task: dict):
        self.task = task
        self.measured = {name: [] for name in
                         ("connect_ns", "sent_after_ns", "started_ns", "early_data", "round_trip_ns")}
        self.measured["congestion"] = "cubic"
        place = urlsplit(task["url"])
        if place.scheme != "mqtt+quic":
            raise ValueError(f"not a URL of MQTT over QUIC: {task['url']}")
        if task["streams"] or task["datagrams"] or task["qos"] > 1 or task["credentials"] != "none":
            raise ValueError("no streams, datagrams, QoS 2 or credentials with this device")
        self.address = place.hostname, place.port
        self.listener = Listener(f"mqtt+quic://{task['server_name']}:{place.port}", task["authority"])
        self.ticket = None
        self.cpu_s = 0.0

    def keep(self, ticket) -> None:
        if self.task["resumption"]:
            self.ticket = ticket

    def connecting(self):
        made = configuration(self.listener, session_ticket=self.ticket, max_datagram_frame_size=None,
                             congestion_control_algorithm="cubic")
        made.idle_timeout = PATIENCE_S
        early = self.task["early_data"] and self.ticket is not None
        return connect(*self.address, configuration=made, create_protocol=QuicClient,
                       session_ticket_handler=self.keep, wait_connected=not early)

    def connect_packet(self) -> bytes:
        return wire.connect(client_id=f"lab-aioquic-{os.getpid()}-{now_ns()}")

    def send(self, stream, number: int) -> int:
        task, at = self.task, now_ns()
        payload = STAMP.pack(number, at).ljust(task["payload_bytes"], b"\x5a")
        topic = f"lab/{number % task['topics']}"
        pid = number % 0xFFFE + 1 if task["qos"] else None
        stream.send(wire.publish(topic, payload, task["qos"], pid))
        return at

    async def settle(self, stream) -> None:
        if self.task["qos"]:
            await stream.expect(wire.PUBACK, PATIENCE_S)

    async def end(self, stream) -> None:
        # The library forgets unsent data of a connection that is closed.
        stream.send(wire.pingreq())
        await stream.expect(wire.PINGRESP, PATIENCE_S)
        stream.send(wire.disconnect(), fin=True)

    def look(self, quic) -> None:
        recovery = quic._quic._loss
        self.measured["rtt_ns"] = int(recovery._rtt_smoothed * 1e9)

    async def line(self) -> str:
        return await asyncio.to_thread(sys.stdin.readline)

    async def ready(self) -> None:
        say(event="ready")
        if not await self.line():
            raise ValueError("never told to go")
        self.cpu_s = time.process_time()

    async def done(self) -> None:
        self.measured["last_ns"] = now_ns()
        self.measured["cpu_ns"] = int((time.process_time() - self.cpu_s) * 1e9)
        self.measured["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self.measured["is_real_time"] = os.sched_getscheduler(0) & 0xFF == SCHED_RR
        say(event="finished")
        while await self.line():
            pass

    async def publisher(self) -> None:
        async with self.connected() as (quic, stream):
            await self.ready()
            start, late = now_ns(), []
            for number in range(self.task["messages"]):
                due = start + number * self.task["interval_ns"]
                await asyncio.sleep(max(0.0, (due - now_ns()) / 1e9))
                late.append(now_ns() - due)
                at = self.send(stream, number)
                self.measured.setdefault("first_ns", at)
            for _ in range(self.task["messages"]):
                await self.settle(stream)
            if self.task["interval_ns"] and late:
                late.sort()
                self.measured["late_p99_ns"] = late[(len(late) - 1) * 99 // 100]
                self.measured["late_max_ns"] = late[-1]
            self.look(quic)
            await self.done()
            await self.end(stream)

    async def stop_and_wait(self) -> None:
        async with self.connected() as (quic, stream):
            stream.send(wire.subscribe(1, [("lab/#", self.task["qos"])]))
            await stream.expect(wire.SUBACK, PATIENCE_S)
            await self.ready()
            self.measured["first_ns"] = now_ns()
            for number in range(self.task["messages"]):
                at = self.send(stream, number)
                while True:
                    got = await stream.expect(wire.PUBLISH, PATIENCE_S)
                    if got.qos:
                        stream.send(wire.ack(wire.PUBACK, got.pid))
                    if STAMP.unpack_from(got.payload)[0] == number:
                        break
                self.measured["round_trip_ns"].append(now_ns() - at)
            self.look(quic)
            await self.done()
            await self.end(stream)

    def connected(self):
        device = self

        class Connected:
            async def __aenter__(self):
                before = now_ns()
                self.context = device.connecting()
                quic = await self.context.__aenter__()
                stream = quic.bidirectional(0)
                stream.send(device.connect_packet())
                await stream.expect(wire.CONNACK, PATIENCE_S)
                device.measured["connect_ns"].append(now_ns() - before)
                return quic, stream

            async def __aexit__(self, *what):
                await self.context.__aexit__(*what)

        return Connected()

    async def connect_publish(self) -> None:
        await self.ready()
        for connection in range(self.task["connections"]):
            started = now_ns()
            self.measured.setdefault("first_ns", started)
            self.measured["started_ns"].append(started)
            await self.one_of_many(connection, started)
        await self.done()

    async def one_of_many(self, connection: int, started: int) -> None:
        task = self.task
        tried = bool(task["early_data"] and self.ticket)
        async with self.connecting() as quic:
            stream = quic.bidirectional(0)
            stream.send(self.connect_packet())
            connack = 0
            if task["wait_connack"]:
                await stream.expect(wire.CONNACK, PATIENCE_S)
                connack = now_ns()
            start, sent_after = now_ns(), 0
            for index in range(task["messages"]):
                if task["interval_ns"]:
                    due = start + index * task["interval_ns"]
                    await asyncio.sleep(max(0.0, (due - now_ns()) / 1e9))
                self.send(stream, connection * task["messages"] + index)
                if not connack and task["qos"]:
                    await stream.expect(wire.CONNACK, PATIENCE_S)
                    connack = now_ns()
                if not task["interval_ns"]:
                    await self.settle(stream)
                if index == 0:
                    sent_after = now_ns() - started
            if task["interval_ns"]:
                for _ in range(task["messages"]):
                    await self.settle(stream)
            if not connack:
                await stream.expect(wire.CONNACK, PATIENCE_S)
                connack = now_ns()
            self.measured["connect_ns"].append(connack - started)
            self.measured["sent_after_ns"].append(sent_after)
            fate = ("accepted" if quic.early_data_accepted else "rejected") if tried else "not tried"
            self.measured["early_data"].append(fate)
            self.look(quic)
            await self.end(stream)


async def main() -> int:
    try:
        task = json.loads(sys.stdin.readline())
        device = Device(task)
        work = {"publisher": device.publisher, "stop-and-wait": device.stop_and_wait,
                "connect-publish": device.connect_publish}.get(task["role"])
        if work is None:
            raise ValueError(f"no role {task['role']!r} with this device")
        await asyncio.wait_for(work(), task["time_limit_ms"] / 1e3)
    except Exception as why:  # Whatever it is, the lab is told.
        say(event="failed", reason=f"{type(why).__name__}: {why}")
        return 1
    say(event="result", **device.measured)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
