"""The example of a compose file, as far as that goes without containers: each service of examples/cluster/compose.yaml runs
its command with its configuration, environment and volumes in a network namespace of its own, with the names of the others.

The programs are those of this build and of the Go module `gonats`, not those of the images. Needs PyYAML, and root or a
system that lets users make namespaces.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import yaml

from cluster_nodes import wait_until
from harness import INTEROP, Failure, Report
from namespaces import enter, sh

STERNA = os.environ["STERNA_BIN"]
FILE = INTEROP.parent / "examples" / "cluster" / "compose.yaml"
FOLDER = Path(os.environ["STERNA_BUILD"]) / "compose"
# What this runner does. A key that it does not know is a failure, so that nothing stays untried in silence.
KNOWN = {"image", "command", "environment", "volumes", "networks", "ports", "depends_on", "restart", "tmpfs", "ulimits",
         "stop_grace_period"}
# How long a command may take.
RUN_S = 60
USER = ["-u", "ann", "-P", "try-it"]


class Service:
    """A container without its image."""

    def __init__(self, name: str, number: int, settings: dict, addresses: dict[str, str]):
        unknown = set(settings) - KNOWN
        if unknown:
            raise Failure(f"{name}: this runner does not know {sorted(unknown)}")
        self.name, self.settings, self.address = name, settings, addresses[name]
        self.root = FOLDER / name
        self.root.mkdir(parents=True)
        self.hosts = self.root / "hosts"
        self.hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{ip} {host}\n" for host, ip in addresses.items()))
        sh(
            f"""
            ip netns add {name}
            ip link add veth{number} type veth peer name eth0 netns {name}
            ip link set veth{number} master network up
            ip -n {name} link set lo up
            ip -n {name} address add {self.address}/24 dev eth0
            ip -n {name} link set eth0 up
            """
        )

    def start(self) -> None:
        """Its command, where its files and folders are in their places."""
        mounts = [f"mount --bind {self.hosts} /etc/hosts"]
        environment = {"PATH": os.environ["PATH"]}
        is_nats = self.settings["image"].startswith("nats:")
        if is_nats:
            command = ["nats-server", *self.settings["command"]]
        else:
            # As the image has it: `xtask/src/package/image.rs`.
            command = [STERNA, *self.settings.get("command", ["serve"])]
            environment |= {"STATE_DIRECTORY": "/var/lib/sterna", "STERNA_CONFIG": "/etc/sterna/sterna.toml"}
        environment |= self.settings.get("environment", {})
        targets = {}
        for volume in self.settings.get("volumes", []):
            source, target = volume.split(":")[:2]
            path = FILE.parent / source if source.startswith(".") else self.root / source
            if not source.startswith("."):
                path.mkdir(exist_ok=True)
            if not path.exists():
                raise Failure(f"{self.name}: there is no {path}")
            targets[Path(target)] = path
        for folder in self.settings.get("tmpfs", []):
            path = self.root / "tmpfs"
            path.mkdir(exist_ok=True)
            targets[Path(folder.split(":")[0])] = path
        # A root of its own over the machine's, so that places can be made that it has not.
        overlay = self.root / "overlay"
        mounts.append(f"mkdir -p {overlay} && mount -t tmpfs tmpfs {overlay}")
        mounts.append(f"mkdir {overlay}/upper {overlay}/work {overlay}/root")
        mounts.append(
            f"mount -t overlay overlay -o lowerdir=/,upperdir={overlay}/upper,workdir={overlay}/work {overlay}/root"
        )
        for target, source in targets.items():
            inside = f"{overlay}/root{target}"
            make = f"mkdir -p {inside}" if source.is_dir() else f"mkdir -p {inside.rsplit('/', 1)[0]} && touch {inside}"
            mounts.append(f"{make} && mount --bind {source} {inside}")
        for place in ("proc", "dev", str(FOLDER.parent).lstrip("/"), str(Path(STERNA).parent).lstrip("/")):
            mounts.append(f"mkdir -p {overlay}/root/{place} && mount --rbind /{place} {overlay}/root/{place}")
        mounts.append(f"mount --bind {self.hosts} {overlay}/root/etc/hosts")
        script = "\n".join([*mounts, f'exec chroot {overlay}/root "$@"'])
        with (self.root / "log").open("wb") as log:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", self.name, "sh", "-ec", script, "sh", *command],
                env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )

    def log(self) -> str:
        return (self.root / "log").read_text(errors="replace")

    def run(self, *arguments: str) -> subprocess.CompletedProcess:
        command = ["ip", "netns", "exec", self.name, STERNA, *arguments]
        try:
            return subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise Failure(f"{self.name}: {arguments[0]} did not end within {RUN_S} s: {self.log()[-2000:]}") from error


def runs(services: dict[str, Service]) -> None:
    nodes = [service for name, service in services.items() if name.startswith("node")]
    for service in services.values():
        service.start()

    def ready() -> bool:
        for service in services.values():
            if service.process.poll() is not None:
                raise Failure(f"{service.name} ended: {service.log()[-2000:]}")
        done = nodes[0].run("cluster", "status", "--json", *USER)
        return done.returncode == 0 and done.stdout.count('"state":"ready"') == len(nodes)

    try:
        wait_until("all nodes are ready", ready, 60)
    except TimeoutError as error:
        logs = "; ".join(f"{service.name}: {service.log()[-1000:]}" for service in services.values())
        raise Failure(f"{error}: {nodes[0].run('cluster', 'status', *USER)}, {logs}") from error


def crosses(services: dict[str, Service]) -> None:
    """The two commands that the file's first lines show, from node to node."""
    first, second = services["node-1"], services["node-2"]
    reader = subprocess.Popen(
        ["ip", "netns", "exec", second.name, STERNA, "sub", "mqtt://ann:try-it@127.0.0.1:1883", "-t", "hello/#", "-C", "1"],
        stdout=subprocess.PIPE, text=True,
    )
    for _ in range(50):
        done = first.run("pub", "mqtt://ann:try-it@127.0.0.1:1883", "-t", "hello/world", "-m", "Hello from afar", "-q", "1")
        if done.returncode != 0:
            raise Failure(f"pub: {done.stderr}")
        if reader.poll() is not None:
            break
        time.sleep(0.2)
    out, _ = reader.communicate(timeout=30)
    if out != "Hello from afar\n":
        raise Failure(f"got {out!r}")
    stranger = first.run("pub", "mqtt://127.0.0.1:1883", "-t", "hello/world", "-m", "x", "-q", "1", "--maximum-reconnect-times", "0")
    if stranger.returncode == 0:
        raise Failure("a client without a password was let in")


def stops(services: dict[str, Service]) -> None:
    """Within its grace period."""
    node = services["node-3"]
    grace = int(re.fullmatch(r"(\d+)s", node.settings["stop_grace_period"])[1])
    node.process.terminate()
    try:
        code = node.process.wait(grace)
    except subprocess.TimeoutExpired as error:
        raise Failure(f"not within {grace} s") from error
    if code != 0:
        raise Failure(f"it ended with {code}: {node.log()[-1000:]}")


def main() -> None:
    report = Report()
    enter()
    subprocess.run(["rm", "-rf", str(FOLDER)], check=True)
    settings = yaml.safe_load(FILE.read_text())["services"]
    addresses = {name: f"10.9.0.{number + 10}" for number, name in enumerate(settings)}
    try:
        sh("mount -t tmpfs tmpfs /run; ip link set lo up; ip link add network type bridge; ip link set network up")
    except subprocess.CalledProcessError as error:
        report.skip("the example of a compose file", f"no namespaces here: {error}")
        report.exit()
    services = {
        name: Service(name, number, settings[name], addresses) for number, name in enumerate(settings)
    }
    for name, row in (("all services run", runs), ("a message crosses", crosses), ("a node stops in its time", stops)):
        try:
            row(services)
        except (Failure, TimeoutError) as error:
            report.not_ok(name, str(error))
            break
        report.ok(name)
    report.exit()


if __name__ == "__main__":
    main()
