"""A rule that is wrong for a moment, and a user who is missing for one, with Paho as the reader.

  rights.py [WORD]...   all rows, or those with one of the words in their name

The suite has a broker of its own, whose configuration it changes by `sterna admin reload`. STERNA_BIN is the broker's
program. Needs paho-mqtt.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from cluster_nodes import Program, free_ports, wait_until
from harness import PATIENCE_S, Failure, Report

STERNA = os.environ["STERNA_BIN"]
FOLDER = Path(os.environ["STERNA_BUILD"]) / "rights"
CONFIG = """
data_directory = "{folder}/data"

[[listener]]
url = "mqtt://127.0.0.1:{mqtt}"

[[listener]]
url = "admin://127.0.0.1:{admin}"
anonymous = true

[authentication]
password_file = "{folder}/users"
anonymous = true

[authorization]
admins = ["anonymous"]

[[authorization.rule]]
effect = "deny"
actions = ["subscribe"]
topics = ["{denied}"]
"""
NOT_AUTHORIZED = 0x87


class World:
    def __init__(self):
        self.mqtt, self.admin = free_ports(2)
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True, mode=0o700)
        self.users(["ann", "bob"])
        self.deny("else")
        self.broker = Program([STERNA, "serve", "--config", str(FOLDER / "sterna.toml")], FOLDER / "log")

    def __enter__(self) -> World:
        self.broker.start()
        wait_until("the broker is ready", self.is_ready)
        return self

    def __exit__(self, *_: object) -> None:
        self.broker.stop()

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/readyz", timeout=60) as answer:
                return answer.status == 200
        except OSError:
            return False

    def users(self, names: list[str]) -> None:
        """Writes the password file: each name is its own password."""
        file = FOLDER / "users"
        lines = []
        for name in names:
            known = [line for line in (file.read_text().splitlines() if file.exists() else [])
                     if line.startswith(f"{name}:")]
            lines += known or [self.record(name)]
        (FOLDER / "all").write_text("\n".join(lines) + "\n")
        (FOLDER / "all").replace(file)

    def record(self, name: str) -> str:
        file = FOLDER / f"record-{name}"
        if not file.exists():
            command = [STERNA, "passwd", "-b", "-c", "--iterations", "4096", str(file), name, name]
            subprocess.run(command, check=True, capture_output=True)
        return file.read_text().strip()

    def deny(self, topics: str) -> None:
        text = CONFIG.format(folder=FOLDER, mqtt=self.mqtt, admin=self.admin, denied=topics)
        (FOLDER / "sterna.toml").write_text(text)

    def admin_call(self, *words: str) -> dict:
        command = [STERNA, "admin", *words, "--json", "-L", f"admin://127.0.0.1:{self.admin}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        if done.returncode:
            raise Failure(f"{' '.join(words)}: {done.stderr}")
        return json.loads(done.stdout)

    def reload(self, lost: tuple[int, int]) -> None:
        for words in (["reload", "--dry-run"], ["reload"]):
            answer = self.admin_call(*words)
            got = answer["lost_subscriptions"], answer["lost_sessions"]
            if got != lost:
                raise Failure(f"{' '.join(words)}: {got} subscriptions and sessions lost their right, not {lost}")


class Reader:
    """A client of Paho with a session that stays."""

    def __init__(self, world: World, name: str, user: str):
        self.world, self.came = world, queue.Queue()
        self.events: queue.Queue = queue.Queue()
        self.client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=mqtt.MQTTv5)
        self.client.username_pw_set(user, user)
        self.client.on_message = lambda _client, _data, message: self.came.put(message.payload.decode())
        self.client.on_connect = lambda *given: self.events.put(("connect", given[2].session_present, given[3].value))
        self.client.on_subscribe = lambda *given: self.events.put(("subscribe", [code.value for code in given[3]]))
        self.client.on_disconnect = lambda *given: self.events.put(("disconnect", given[3].value))

    def event(self, wanted: str) -> tuple:
        found = self.events.get(timeout=PATIENCE_S)
        if found[0] != wanted:
            raise Failure(f"{found}, not {wanted}")
        return found

    def connect(self) -> bool:
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 3_600
        self.client.connect("127.0.0.1", self.world.mqtt, clean_start=False, properties=properties)
        self.client.loop_start()
        _, present, code = self.event("connect")
        if code:
            raise Failure(f"CONNACK {code:#x}")
        return present

    def subscribe(self, topic: str) -> int:
        self.client.subscribe(topic, qos=1)
        return self.event("subscribe")[1][0]

    def publish(self, topic: str, payload: str) -> None:
        self.client.publish(topic, payload, qos=1).wait_for_publish(PATIENCE_S)

    def wants(self, *payloads: str) -> None:
        """These come next, and no others: what comes is in the order of its publication."""
        for wanted in payloads:
            try:
                got = self.came.get(timeout=PATIENCE_S)
            except queue.Empty:
                raise Failure(f"{wanted!r} does not come") from None
            if got != wanted:
                raise Failure(f"{got!r} came, not {wanted!r}")

    def leave(self) -> None:
        self.client.disconnect()
        self.event("disconnect")
        self.client.loop_stop()

    def end(self) -> None:
        self.client.loop_stop()


def wrong_rule(world: World) -> None:
    """A connected reader is told nothing, and gets messages again."""
    reader, writer = Reader(world, "rule", "ann"), Reader(world, "rule-writer", "bob")
    reader.connect()
    writer.connect()
    reader.subscribe("rule/secret")
    reader.subscribe("rule/open")
    writer.publish("rule/secret", "before")
    world.deny("rule/secret")
    world.reload((1, 1))
    writer.publish("rule/secret", "while denied")
    if (code := reader.subscribe("rule/secret")) != NOT_AUTHORIZED:
        raise Failure(f"SUBACK {code:#x}")
    writer.publish("rule/open", "open")
    world.deny("else")
    world.reload((0, 0))
    writer.publish("rule/secret", "after")
    reader.wants("before", "open", "after")
    reader.leave()
    writer.leave()


def wrong_rule_while_away(world: World) -> None:
    """A reader that is away loses nothing but what was published while it was denied, also over a restart."""
    reader, writer = Reader(world, "away", "ann"), Reader(world, "away-writer", "bob")
    reader.connect()
    reader.subscribe("away/secret")
    reader.leave()
    writer.connect()
    writer.publish("away/secret", "before")
    world.deny("away/#")
    world.reload((1, 1))
    writer.publish("away/secret", "while denied")
    writer.leave()
    world.broker.kill()
    world.broker.start()
    wait_until("the broker is ready", world.is_ready)
    writer.connect()
    writer.publish("away/secret", "while denied, again")
    world.deny("else")
    world.reload((0, 0))
    writer.publish("away/secret", "after")
    if not reader.connect():
        raise Failure("the session is gone")
    reader.wants("before", "after")
    reader.leave()
    writer.leave()


def changed_while_stopped(world: World) -> None:
    """The rules take a right while no broker runs: what is published then is not the reader's, and what follows is."""
    reader, writer = Reader(world, "stopped", "ann"), Reader(world, "stopped-writer", "bob")
    reader.connect()
    reader.subscribe("stopped/secret")
    reader.leave()
    writer.connect()
    writer.publish("stopped/secret", "before")
    writer.leave()
    for denied, payload in (("stopped/#", "while denied"), ("else", "after")):
        world.broker.kill()
        world.deny(denied)
        world.broker.start()
        wait_until("the broker is ready", world.is_ready)
        writer = Reader(world, "stopped-writer", "bob")
        writer.connect()
        writer.publish("stopped/secret", payload)
        writer.leave()
    reader = Reader(world, "stopped", "ann")
    if not reader.connect():
        raise Failure("the session is gone")
    reader.wants("before", "after")
    reader.leave()


def missing_user(world: World) -> None:
    """A user who is missing for a moment has his session again."""
    reader, writer = Reader(world, "missing", "ann"), Reader(world, "missing-writer", "bob")
    reader.connect()
    reader.subscribe("missing/x")
    reader.client.reconnect_delay_set(3_600, 3_600)
    writer.connect()
    writer.publish("missing/x", "before")
    reader.wants("before")
    world.users(["bob"])
    lost = world.admin_call("reload", "--dry-run")["lost_sessions"]
    world.admin_call("reload")
    if not lost:
        raise Failure("no session of hers is counted")
    code = reader.event("disconnect")[1]
    if code != NOT_AUTHORIZED:
        raise Failure(f"DISCONNECT {code:#x}")
    reader.end()
    writer.publish("missing/x", "while missing")
    world.users(["ann", "bob"])
    world.reload((0, 0))
    writer.publish("missing/x", "after")
    again = Reader(world, "missing", "ann")
    if not again.connect():
        raise Failure("the session is gone")
    again.wants("after")
    again.leave()
    world.users(["bob"])
    world.admin_call("reload")
    if world.admin_call("sessions", "remove", "--user", "ann")["sessions"] < 1:
        raise Failure("no session of hers was removed")
    world.users(["ann", "bob"])
    world.reload((0, 0))
    last = Reader(world, "missing", "ann")
    if last.connect():
        raise Failure("the session was removed and is there")
    last.leave()
    writer.leave()


ROWS = {
    "wrong-rule": wrong_rule,
    "wrong-rule-while-away": wrong_rule_while_away,
    "changed-while-stopped": changed_while_stopped,
    "missing-user": missing_user,
}


def main() -> None:
    report, words = Report(), sys.argv[1:]
    with World() as world:
        for name, row in ROWS.items():
            if words and not any(word in name for word in words):
                continue
            try:
                row(world)
                report.ok(name)
            except (Failure, OSError, queue.Empty, subprocess.SubprocessError) as error:
                report.not_ok(name, repr(error))
    report.exit()


if __name__ == "__main__":
    main()
