"""Wills over the end of the broker: clients of paho that are connected when it is killed, or stopped in order.

  wills.py [WORD]...   all rows, or those with one of the words in their name

STERNA_BIN is the broker's program, STERNA_BUILD a folder. Needs paho-mqtt.
"""

from __future__ import annotations

import os
import shutil
import sys
import urllib.request
from pathlib import Path

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from cluster_nodes import Program, free_ports, wait_until
from harness import LEVELS, Failure, Report

STERNA = os.environ["STERNA_BIN"]
FOLDER = Path(os.environ["STERNA_BUILD"]) / "wills"
# Long enough for a client on a busy machine to come back; each row waits for it once.
GRACE_MS = 15_000
CONFIG = """
data_directory = "{folder}"
shards = 1

[[listener]]
url = "mqtt://127.0.0.1:{mqtt}"

[[listener]]
url = "admin://127.0.0.1:{admin}"
anonymous = true

[mqtt]
will_grace_ms = {grace_ms}
"""


class Broker(Program):
    def __init__(self, folder: Path):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        self.mqtt, self.admin = free_ports(2)
        config = folder / "sterna.toml"
        config.write_text(
            CONFIG.format(folder=folder / "data", mqtt=self.mqtt, admin=self.admin, grace_ms=GRACE_MS)
        )
        super().__init__([STERNA, "serve", "--config", str(config)], folder / "log")

    def start(self) -> None:
        super().start()
        wait_until("the broker is ready", self.is_ready)

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/readyz", timeout=60) as answer:
                return answer.status == 200
        except OSError:
            return False


def client(level: int, name: str) -> paho.Client:
    one = paho.Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=level)
    one.reconnect_delay_set(min_delay=1, max_delay=1)
    return one


class Device:
    """A client whose state is retained: "online" by its own word at each connection, "offline" by its will."""

    def __init__(self, broker: Broker, level: int, name: str):
        self.name, self.topic = name, f"state/{name}"
        # How often its "online" was acknowledged.
        self.births = 0
        self.client = client(level, name)
        self.client.will_set(self.topic, "offline", qos=1, retain=True)
        self.client.on_connect = lambda *_: self.client.publish(self.topic, "online", qos=1, retain=True)
        self.client.on_publish = self.published
        self.client.connect("127.0.0.1", broker.mqtt, keepalive=60)
        self.client.loop_start()
        wait_until(f"{name} is online", lambda: self.births == 1)

    def published(self, *_: object) -> None:
        self.births += 1

    def stays_away(self) -> None:
        """It is switched off: it says nothing, and does not come back."""
        self.client.on_connect = None
        self.client.reconnect = lambda: paho.MQTT_ERR_CONN_REFUSED
        self.client._sock_close()  # noqa: SLF001  paho has no other way to go without DISCONNECT
        self.client.loop_stop()

    def says_goodbye(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


class Watcher:
    """What comes for each topic, in order."""

    def __init__(self, broker: Broker, level: int):
        self.seen: dict[str, list[str]] = {}
        self.client = client(level, f"watcher-{level}")
        self.client.on_message = lambda _client, _data, message: self.seen.setdefault(message.topic, []).append(
            message.payload.decode()
        )
        self.client.on_connect = lambda *_: self.client.subscribe("state/#", qos=1)
        self.client.connect("127.0.0.1", broker.mqtt, keepalive=600)
        self.client.loop_start()

    def last(self, device: Device) -> str | None:
        return (self.seen.get(device.topic) or [None])[-1]

    def end(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def expect(device: Device, found: object, wanted: object) -> None:
    if found != wanted:
        raise Failure(f"{device.name}: {found}, not {wanted}")


def play(broker: Broker, level: int, end) -> None:
    """A device that is never heard of again, one that returns, and one that had said goodbye."""
    broker.start()
    names = [f"{word}-{level}" for word in ("lost", "back", "done")]
    lost, back, done = (Device(broker, level, name) for name in names)
    done.says_goodbye()
    # One that comes behind the goodbye, and is acknowledged, says that the broker has read it.
    behind = Device(broker, level, f"behind-{level}")
    behind.says_goodbye()
    end()
    lost.stays_away()
    broker.start()
    watcher = Watcher(broker, level)
    # It comes back by itself, and says again that it is there.
    wait_until("the device is back", lambda: back.births >= 2)
    # Its will comes when the grace is over. By then that of the other would have come, too.
    wait_until("the will of the lost device", lambda: watcher.last(lost) == "offline")
    expect(lost, watcher.seen[lost.topic], ["online", "offline"])
    expect(done, watcher.seen[done.topic], ["online"])
    # A will before its return would be right; none may come behind it.
    expect(back, watcher.last(back), "online")
    expect(back, watcher.seen[back.topic].count("offline"), 0)
    back.says_goodbye()
    watcher.end()
    later = Watcher(broker, level)
    wait_until("what is retained", lambda: len(later.seen) == 4)
    for device, wanted in ((lost, "offline"), (back, "online"), (done, "online")):
        expect(device, later.seen[device.topic], [wanted])
    later.end()


def main() -> None:
    report = Report()
    for how in ("kill", "stop"):
        for level in (4, 5):
            name = f"{how}/{LEVELS[level]}"
            if sys.argv[1:] and not any(word in name for word in sys.argv[1:]):
                continue
            broker = Broker(FOLDER / f"{how}-{level}")
            try:
                play(broker, level, broker.kill if how == "kill" else broker.stop)
                report.ok(name)
            except (Failure, TimeoutError) as error:
                report.not_ok(name, str(error))
            finally:
                broker.kill()
    report.exit()


if __name__ == "__main__":
    main()
