"""Debian's mosquitto as a bridge to the broker, with its default settings: how an existing site meets a new one.

Each step starts a mosquitto of its own on a free port, which connects to the broker as a bridge in one version of the
protocol. What passes is watched with mosquitto_sub at both ends. Standard library only.
"""

from __future__ import annotations

import argparse
import asyncio
import getpass
import secrets
import shutil
import socket
import tempfile
from pathlib import Path

from harness import LEVELS, Failure, Listener, Report, listeners
from mosquitto import PATIENCE_S, STEP_LIMIT_S, Step, Subscriber, equal

BRIDGE_VERSIONS = {3: "mqttv31", 4: "mqttv311", 5: "mqttv50"}
# Where Debian puts it, which is not in everybody's search path.
MOSQUITTO = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
STEPS: list[tuple[str, object]] = []
AT_ONCE = 4


def step(name: str):
    def add(function):
        STEPS.append((name, function))
        return function

    return add


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Site:
    """A mosquitto that is a bridge to the broker, and what watches both."""

    def __init__(self, listener: Listener, level: int, folder: Path):
        self.listener, self.level, self.folder = listener, level, folder
        self.name = f"edge-{secrets.token_hex(4)}"
        # The tools speak 3.1.1 or 5.0 at both ends, whatever the bridge speaks between them.
        tools = max(level, 4)
        self.far = Step(listener, tools, folder)
        self.root = self.far.root
        self.port = free_port()
        self.near = Step(Listener(f"mqtt://127.0.0.1:{self.port}", None), tools, folder)
        self.process = None

    def state_topic(self) -> str:
        return f"$SYS/broker/connection/{self.name}/state"

    def configuration(self) -> str:
        lines = [
            # As root it would become a user who may not read the broker's certificate.
            f"user {getpass.getuser()}",
            f"listener {self.port} 127.0.0.1", "allow_anonymous true", "persistence false", "log_dest stderr",
            "connection sterna", f"address {self.listener.host}:{self.listener.port}",
            f"bridge_protocol_version {BRIDGE_VERSIONS[self.level]}", f"remote_clientid {self.name}",
            "restart_timeout 1",
            f'topic out/# out 2 "" {self.root}/', f'topic in/# in 2 "" {self.root}/',
            f'topic both/# both 2 "" {self.root}/',
        ]
        if self.listener.secure:
            lines.append(f"bridge_cafile {self.listener.certificate}")
        return "\n".join(lines) + "\n"

    async def start(self) -> None:
        """Starts it, and waits until the broker knows that the bridge is connected."""
        path = self.folder / "mosquitto.conf"
        path.write_text(self.configuration())
        with (self.folder / "mosquitto.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(MOSQUITTO, "-c", str(path), stdout=log, stderr=log)
        watcher = await self.watch_state()
        try:
            while (await watcher.message())["payload"] != "1":
                pass
        except Failure as why:
            raise Failure(f"the bridge is not connected ({why}): {self.log()}") from None
        # Its subscriptions follow the state: what comes through says that they are there.
        probe = await self.near.sub("-t", "in/probe")
        for _ in range(20):
            await self.far.pub("-t", f"{self.root}/in/probe", "-m", "x")
            try:
                await probe.message(0.3)
                return
            except Failure:
                continue
        raise Failure(f"nothing comes through the bridge: {self.log()}")

    async def watch_state(self) -> Subscriber:
        return await self.far.sub("-t", self.state_topic(), "-q", "1")

    def log(self) -> str:
        return " | ".join((self.folder / "mosquitto.log").read_text(errors="replace").splitlines()[-6:])

    async def kill(self) -> None:
        if self.process and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()

    async def clean_up(self) -> None:
        await self.near.clean_up()
        await self.far.clean_up()
        await self.kill()


@step("state")
async def state(s: Site) -> None:
    late = await s.watch_state()
    got = await late.message()
    equal((got["payload"], got["retain"]), ("1", 1), "state of a bridge that is connected")
    await s.kill()
    equal((await late.message())["payload"], "0", "state after the bridge was killed")
    later = await s.watch_state()
    got = await later.message()
    equal((got["payload"], got["retain"]), ("0", 1), "retained state of a bridge that is gone")
    await s.start()
    equal((await late.message())["payload"], "1", "state after the bridge came back")


@step("out")
async def out(s: Site) -> None:
    far = await s.far.sub("-t", f"{s.root}/#", "-q", "2")
    for qos in range(3):
        await s.near.pub("-t", "out/x", "-m", f"m{qos}", "-q", str(qos))
        got = await far.message()
        equal((got["topic"], got["payload"], got["qos"]), (f"{s.root}/out/x", f"m{qos}", qos), "message")


@step("in")
async def into(s: Site) -> None:
    near = await s.near.sub("-t", "in/#", "-q", "2")
    for qos in range(3):
        await s.far.pub("-t", f"{s.root}/in/x", "-m", f"m{qos}", "-q", str(qos))
        got = await near.message()
        equal((got["topic"], got["payload"], got["qos"]), ("in/x", f"m{qos}", qos), "message")


@step("both-without-echo")
async def both(s: Site) -> None:
    # [MQTT-3.8.3-3] what the bridge brings does not come back to it, or it would go round for ever
    near = await s.near.sub("-t", "both/#", "-q", "2")
    far = await s.far.sub("-t", f"{s.root}/both/#", "-q", "2")
    for qos in range(3):
        await s.near.pub("-t", "both/x", "-m", f"near{qos}", "-q", str(qos))
        await s.far.pub("-t", f"{s.root}/both/y", "-m", f"far{qos}", "-q", str(qos))
    wanted = sorted(f"{end}{qos}" for end in ("near", "far") for qos in range(3))
    for one, what in ((near, "at the bridge"), (far, "at the broker")):
        equal(sorted(m["payload"] for m in await one.messages(6)), wanted, what)
        await one.quiet(0.7, f"an echo {what}")


@step("retained")
async def retained(s: Site) -> None:
    # [MQTT-3.3.1-13] the flag stays as it was published, so that the other end retains the message too
    near = await s.near.sub("-t", "+/r", "-q", "1")
    await s.far.pub("-t", f"{s.root}/in/r", "-m", "in", "-q", "1", "-r")
    await near.message()
    far = await s.far.sub("-t", f"{s.root}/out/r", "-q", "1")
    await s.near.pub("-t", "out/r", "-m", "out", "-q", "1", "-r")
    await near.message()
    await far.message()
    for step, topic, payload in ((s.near, "in/r", "in"), (s.far, f"{s.root}/out/r", "out")):
        late = await step.sub("-t", topic, "-q", "1")
        got = await late.message()
        equal((got["payload"], got["retain"]), (payload, 1), f"retained message at {topic}")
    for topic in ("in/r", "out/r"):
        await s.far.pub("-t", f"{s.root}/{topic}", "-n", "-q", "1", "-r")


@step("retained-before")
async def retained_before(s: Site) -> None:
    """What was retained before the bridge came is there after it."""
    await s.kill()
    await s.far.pub("-t", f"{s.root}/in/old", "-m", "old", "-q", "1", "-r")
    await s.start()
    late = await s.near.sub("-t", "in/old", "-q", "1")
    got = await late.message()
    equal((got["payload"], got["retain"]), ("old", 1), "retained message")
    await s.far.pub("-t", f"{s.root}/in/old", "-n", "-q", "1", "-r")


async def run_step(listener, level, name, function, report, gate) -> None:
    label = f"{listener.transport}/{LEVELS[level]}/{name}"
    async with gate:
        with tempfile.TemporaryDirectory() as folder:
            site = Site(listener, level, Path(folder))
            try:
                await asyncio.wait_for(site.start(), STEP_LIMIT_S)
                await asyncio.wait_for(function(site), STEP_LIMIT_S)
                report.ok(label)
            except Failure as why:
                report.not_ok(label, str(why))
            except TimeoutError:
                report.not_ok(label, f"not done within {STEP_LIMIT_S} s: {site.log()}")
            except Exception as error:  # a fault of the suite must name itself and not end the others
                report.not_ok(label, f"{type(error).__name__}: {error}")
            finally:
                await site.clean_up()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="only steps whose transport/version/name contains this")
    arguments = parser.parse_args()
    report, places = Report(), listeners()
    if not Path(MOSQUITTO).exists():
        report.not_ok("mosquitto-bridge", "mosquitto is not installed (Debian: mosquitto)")
        report.exit()
    gate, tasks = asyncio.Semaphore(AT_ONCE), []
    for transport in ("tcp", "tls"):
        if transport not in places:
            report.skip(transport, "the broker has no such listener")
            continue
        for level in (3, 4, 5):
            for name, function in STEPS:
                if arguments.only in f"{transport}/{LEVELS[level]}/{name}":
                    tasks.append(run_step(places[transport], level, name, function, report, gate))
    await asyncio.gather(*tasks)
    report.exit()


if __name__ == "__main__":
    asyncio.run(main())
