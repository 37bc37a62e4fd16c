"""Publishers under a nemesis (`cluster_nemesis.py`): each publishes numbers on a topic of its own, or to a queue, and keeps a ledger.
Standard library only.
"""

from __future__ import annotations

import http.client
import os
import subprocess
import threading
import time

import amqp_wire
import wire
from amqp_raw import RawAmqp
from cluster_history import Ledger
from cluster_nodes import COUNT, Node
from harness import Failure, Listener
from mqtt_client import PUBACK, PUBCOMP, PUBREC, Client
from raw import Closed

STERNA = os.environ["STERNA_BIN"]
PACE_S = 0.01


class Publisher:
    """Publishes numbers on a topic of its own, at a pace, from any node that answers. What has no acknowledgement is
    not sent again: it may have arrived or not."""

    def __init__(self, name: str, nodes: list[Node], first: int, topics: str = "ledger"):
        self.name, self.nodes, self.at = name, nodes, first
        self.topic = f"{topics}/{name}"
        self.ledger = Ledger()
        self.goes = threading.Event()
        self.ends = False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def node(self) -> Node:
        return self.nodes[self.at % COUNT]

    def elsewhere(self) -> None:
        self.at += 1
        time.sleep(0.1)

    def run(self) -> None:
        while not self.ends:
            if not self.goes.wait(0.2):
                self.idle()
                continue
            try:
                self.publish()
            except (OSError, RuntimeError, http.client.HTTPException, subprocess.TimeoutExpired):
                self.drop()
                self.elsewhere()
            time.sleep(PACE_S)

    def idle(self) -> None:
        """Called while nothing is to be published."""

    def drop(self) -> None:
        """Forgets a broken connection."""


class MqttPublisher(Publisher):
    """Keeps one connection, with some messages without an acknowledgement."""

    WINDOW = 16

    def __init__(self, name: str, nodes: list[Node], first: int, qos: int, topics: str = "ledger"):
        self.qos, self.link, self.open = qos, None, {}
        super().__init__(name, nodes, first, topics)

    def connect(self) -> Client:
        if not self.link:
            self.open = {}
            self.ledger.connections.append(self.ledger.sent + 1)
            self.link = Client(self.node().ports["mqtt"], f"publisher-{self.name}", timeout_s=5)
        return self.link

    def publish(self) -> None:
        link = self.connect()
        if len(self.open) < self.WINDOW:
            self.ledger.sent += 1
            identifier = self.ledger.sent % 65_535 + 1
            self.open[identifier] = self.ledger.sent
            payload = f"{self.name} {self.ledger.sent}".encode()
            link.out += wire.publish(self.topic, payload, self.qos, identifier, level=4)
        self.exchange()

    def exchange(self) -> None:
        if not self.link:
            return
        self.link.flush()
        for kind, body in self.link.packets():
            identifier = int.from_bytes(body[:2], "big")
            if kind & 0xF0 == PUBREC:
                # From here on the broker has it.
                self.ledger.acknowledged.add(self.open[identifier])
                self.link.out += wire.ack(wire.PUBREL, identifier, level=4)
            elif kind & 0xF0 in (PUBACK, PUBCOMP):
                self.ledger.acknowledged.add(self.open.pop(identifier))
        self.link.flush()

    def idle(self) -> None:
        try:
            self.exchange()
        except (OSError, KeyError):
            self.drop()

    def drop(self) -> None:
        if self.link:
            self.link.close()
        self.link = None


class HttpPublisher(Publisher):
    """One request after the other."""

    link: http.client.HTTPConnection | None = None

    def publish(self) -> None:
        if not self.link:
            self.ledger.connections.append(self.ledger.sent + 1)
            self.link = http.client.HTTPConnection("127.0.0.1", self.node().ports["http"], timeout=8)
        self.ledger.sent += 1
        number = self.ledger.sent
        self.link.request("POST", f"/v1/topics/{self.topic}", f"{self.name} {number}", {
            "Content-Type": "text/plain", "Sterna-QoS": "1"})
        answer = self.link.getresponse()
        answer.read()
        if answer.status < 300:
            self.ledger.acknowledged.add(number)
        else:
            self.ledger.refused.add(number)

    def drop(self) -> None:
        if self.link:
            self.link.close()
        self.link = None


class KeyedPublisher(HttpPublisher):
    """Repeats each request by its key, at one node after the other, until it is done. None may be done twice."""

    pending = 0

    def publish(self) -> None:
        if not self.pending:
            self.ledger.sent += 1
            self.pending = self.ledger.sent
            if self.pending == 1:
                # Each is done before the next begins: they come in one order, whichever connections they take.
                self.ledger.connections.append(1)
        self.attempt()

    def attempt(self) -> None:
        if not self.link:
            self.link = http.client.HTTPConnection("127.0.0.1", self.node().ports["http"], timeout=8)
        self.link.request("POST", f"/v1/topics/{self.topic}", f"{self.name} {self.pending}", {
            "Content-Type": "text/plain", "Sterna-QoS": "1", "Idempotency-Key": f"{self.name}-{self.pending}"})
        answer = self.link.getresponse()
        answer.read()
        if answer.status == 204:
            self.ledger.acknowledged.add(self.pending)
            self.pending = 0
        elif answer.status in (409, 503, 507):
            # Nobody has done it, or somebody who is to say so is not heard: it is asked for again.
            self.drop()
            self.elsewhere()
        else:
            raise RuntimeError(f"{self.name} was answered {answer.status}")

    def idle(self) -> None:
        if not self.pending:
            return
        try:
            self.attempt()
        except (OSError, http.client.HTTPException):
            self.drop()
            self.elsewhere()


class AmqpPublisher(Publisher):
    """One command for each message: the library's link, its transfer and its outcome."""

    def publish(self) -> None:
        self.ledger.sent += 1
        number = self.ledger.sent
        self.ledger.connections.append(number)
        done = subprocess.run(
            [STERNA, "pub", self.node().url("amqp"), "-t", self.topic, "-m", f"{self.name} {number}", "-q", "1",
             "--connect-timeout", "3", "--close-timeout", "8", "--maximum-reconnect-times", "0"],
            capture_output=True, timeout=20, check=False,
        )
        if done.returncode == 0:
            self.ledger.acknowledged.add(number)
        else:
            self.elsewhere()
        time.sleep(0.1)


class QueuePublisher(Publisher):
    """Sends to a queue of AMQP on one link, with some messages without an outcome. Its numbers are no topic's."""

    WINDOW = 16

    def __init__(self, name: str, nodes: list[Node], first: int, queue: str):
        self.queue, self.link, self.credit, self.delivery, self.open = queue, None, 0, 0, {}
        super().__init__(name, nodes, first)

    def connect(self) -> RawAmqp:
        if not self.link:
            self.open, self.delivery = {}, 0
            self.link = RawAmqp(Listener(self.node().url("amqp"), None), timeout=5)
            self.link.begun(container=f"publisher-{self.name}")
            self.credit = self.link.sending(f"queue/{self.queue}")
        return self.link

    def publish(self) -> None:
        try:
            link = self.connect()
            if len(self.open) < self.WINDOW and self.credit > 0:
                self.ledger.sent += 1
                self.open[self.delivery] = self.ledger.sent
                payload = amqp_wire.data(f"{self.name} {self.ledger.sent}".encode())
                link.send(amqp_wire.transfer(0, self.delivery, payload, str(self.delivery).encode()))
                self.delivery, self.credit = self.delivery + 1, self.credit - 1
            self.exchange()
        except (Failure, Closed) as error:
            raise ConnectionError(str(error)) from error

    def exchange(self) -> None:
        """Takes what has come."""
        while self.link and (got := self.link.frame(0.001)) is not None:
            if got.code == amqp_wire.FLOW and got.field(4) is not None:
                self.credit = (got.field(5) or 0) + (got.field(6) or 0) - self.delivery
            elif got.code == amqp_wire.DISPOSITION:
                first, last = got.field(1), got.field(2)
                for delivery in range(first, (first if last is None else last) + 1):
                    number, outcome = self.open.pop(delivery, None), getattr(got.field(4), "descriptor", None)
                    if number and outcome == amqp_wire.ACCEPTED:
                        self.ledger.acknowledged.add(number)
            elif got.code in (amqp_wire.DETACH, amqp_wire.END, amqp_wire.CLOSE):
                raise Closed(str(got))

    def idle(self) -> None:
        try:
            self.exchange()
        except (Failure, Closed, OSError):
            self.drop()

    def drop(self) -> None:
        if self.link:
            self.link.close()
        self.link = None
