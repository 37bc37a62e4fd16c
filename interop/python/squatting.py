"""Somebody takes the client identifiers of another's devices first, for ever, with Paho: nobody is kept out by that.

  squatting.py [WORD]...   all rows, or those with one of the words in their name

The suite has the broker of `rights.py`. STERNA_BIN is the broker's program. Needs paho-mqtt.
"""

from __future__ import annotations

import queue
import subprocess
import sys

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from cluster_nodes import wait_until
from harness import PATIENCE_S, Failure, Report
from rights import STERNA, World

FOREVER_S = 0xFFFFFFFF
LEVELS = {"3.1.1": mqtt.MQTTv311, "5": mqtt.MQTTv5}


class Device:
    """A client of a user, or of nobody, with a session that lasts for ever."""

    def __init__(self, world: World, level: str, name: str, user: str | None):
        self.events: queue.Queue = queue.Queue()
        self.came: queue.Queue = queue.Queue()
        options = {} if level == "5" else {"clean_session": False}
        self.client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id=name, protocol=LEVELS[level], reconnect_on_failure=False, **options
        )
        if user:
            self.client.username_pw_set(user, user)
        self.client.on_connect = lambda *given: self.events.put((given[2].session_present, given[3].value))
        self.client.on_subscribe = lambda *given: self.events.put(given[3][0].value)
        self.client.on_disconnect = lambda *_: self.events.put("disconnected")
        self.client.on_message = lambda _client, _data, message: self.came.put(message.payload.decode())
        if level == "5":
            properties = Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = FOREVER_S
            self.client.connect("127.0.0.1", world.mqtt, clean_start=False, properties=properties)
        else:
            self.client.connect("127.0.0.1", world.mqtt)
        self.client.loop_start()
        self.present, code = self.events.get(timeout=PATIENCE_S)
        if code:
            raise Failure(f"{name} of {user}: CONNACK {code:#x}")

    def subscribe(self, topic: str) -> None:
        self.client.subscribe(topic, qos=1)
        if (code := self.events.get(timeout=PATIENCE_S)) > 1:
            raise Failure(f"SUBACK {code:#x}")

    def wants(self, payload: str) -> None:
        if (got := self.came.get(timeout=PATIENCE_S)) != payload:
            raise Failure(f"{got!r} came, not {payload!r}")

    def stays(self) -> None:
        if not self.events.empty():
            raise Failure(f"it was told {self.events.get()}")

    def leave(self) -> None:
        self.client.disconnect()
        if (got := self.events.get(timeout=PATIENCE_S)) != "disconnected":
            raise Failure(f"it was told {got}")
        self.client.loop_stop()


def again(world: World) -> None:
    world.broker.kill()
    world.broker.start()
    wait_until("the broker is ready", world.is_ready)


def taken_first(world: World, level: str) -> None:
    """Bob and nobody take a device's identifier before it comes; the broker is killed and starts again."""
    name = f"device-{level}"
    for user in ("bob", None):
        squatter = Device(world, level, name, user)
        squatter.subscribe(f"theirs/{name}")
        squatter.leave()
    again(world)
    ann = Device(world, level, name, "ann")
    if ann.present:
        raise Failure("she was given another's session")
    ann.subscribe(f"hers/{name}")
    ann.leave()
    again(world)
    squatter = Device(world, level, name, "bob")
    if not squatter.present:
        raise Failure("his own session is gone")
    squatter.client.publish(f"hers/{name}", "for ann", qos=1).wait_for_publish(PATIENCE_S)
    squatter.client.publish(f"theirs/{name}", "for bob", qos=1).wait_for_publish(PATIENCE_S)
    ann = Device(world, level, name, "ann")
    if not ann.present:
        raise Failure("her session is gone")
    ann.wants("for ann")
    squatter.wants("for bob")
    # Both are connected by one identifier, and neither takes anything from the other.
    ann.stays()
    squatter.stays()
    squatter.leave()
    ann.leave()


def taken_over(world: World, level: str) -> None:
    """Within a user a client takes over. [MQTT-3.1.4-3]"""
    name = f"own-{level}"
    first = Device(world, level, name, "ann")
    second = Device(world, level, name, "ann")
    if not second.present or first.events.get(timeout=PATIENCE_S) != "disconnected":
        raise Failure("the session was not taken over")
    first.client.loop_stop()
    second.leave()


def operators(world: World, level: str) -> None:
    """An operator names the user, or is told the users."""
    name = f"named-{level}"
    for user in ("ann", "bob", None):
        Device(world, level, name, user).leave()

    def end(*whose: str) -> subprocess.CompletedProcess:
        command = [STERNA, "admin", "sessions", "end", name, *whose, "-L", f"admin://127.0.0.1:{world.admin}"]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)

    done = end()
    if not done.returncode or any(word not in done.stderr for word in ("--user ann", "--user bob", "--nobody")):
        raise Failure(f"{done.returncode}: {done.stderr}")
    for whose in (["--user", "bob"], ["--nobody"]):
        if (done := end(*whose)).returncode:
            raise Failure(f"{whose}: {done.stderr}")
    if world.admin_call("sessions", "show", name)["user"] != "ann":
        raise Failure("hers is not the one that is left")
    if not Device(world, level, name, "ann").present:
        raise Failure("her session is gone")


ROWS = {"taken-first": taken_first, "taken-over": taken_over, "operators": operators}


def main() -> None:
    report, words = Report(), sys.argv[1:]
    with World() as world:
        for row in ROWS:
            for level in LEVELS:
                name = f"{row}-{level}"
                if words and not any(word in name for word in words):
                    continue
                try:
                    ROWS[row](world, level)
                    report.ok(name)
                except (Failure, OSError, queue.Empty, subprocess.SubprocessError) as error:
                    report.not_ok(name, repr(error))
    report.exit()


if __name__ == "__main__":
    main()
