"""Three servers of NATS and three nodes of Sterna on loopback.

  cluster_nodes.py FOLDER   starts them, prints how to use them, and ends them on Ctrl-C

The environment: STERNA_BIN is the broker's program; `nats-server` is on the search path. Standard library only.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

COUNT = 3
# How long something may take that is expected: a hang is told from a slow machine, and nothing is measured. More than a group
# outlives the nodes of its members.
PATIENCE_S = 120
# A node is away after the first, and given up after the second. They are short, so that a suite sees a node go, and longer than
# a busy machine stands still. The second is longer than a row lets a node stand still that must not be given up.
LEASE_MS, ABSENCE_MS = 2_000, 20_000
# For suites that wait until a node is given up, and let none stand still that must not be.
SHORT_ABSENCE_MS = 6_000
PORTS = (10_000, 32_000)
SCHEMES = ("mqtt", "amqp", "http", "admin")

# Ports that this process has taken, and the file whose bytes it has locked for them. The locks end with it.
TAKEN: set[int] = set()
PORT_LOCKS = (Path(tempfile.gettempdir()) / f"sterna-test-ports-{os.getuid()}").open("a+b")


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, and that no other suite takes as long as this process lives.

    They are below those that the system gives to whoever asks for any. Each has a byte of a file, which is locked.
    """
    ports: list[int] = []
    while len(ports) < count:
        port = random.randrange(*PORTS)
        if port in TAKEN:
            continue
        try:
            fcntl.lockf(PORT_LOCKS, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            with socket.socket() as one:
                one.bind(("127.0.0.1", port))
        except OSError:
            continue
        TAKEN.add(port)
        ports.append(port)
    return ports


def wait_until(what: str, condition, patience_s: float = PATIENCE_S):
    """The first result of `condition` that is true; a TimeoutError that says what did not come true."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise TimeoutError(f"{what}: not within {patience_s} s")


class Program:
    """A process that can be killed and started again."""

    def __init__(self, arguments: list[str], log: Path, environment: dict[str, str] | None = None):
        self.arguments, self.log, self.environment = arguments, log, environment or {}
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            # Nothing of the caller's own broker.
            environment = {name: value for name, value in os.environ.items() if not name.startswith("STERNA_")}
            self.process = subprocess.Popen(
                self.arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**environment, **self.environment},
            )

    def pid(self) -> int:
        """The process that does the work."""
        assert self.process
        return self.process.pid

    def send(self, number: signal.Signals) -> None:
        assert self.process
        self.process.send_signal(number)

    def stand_still(self) -> None:
        """Stops all of it until SIGCONT. On a busy machine some threads run on for a while after the signal, and answer."""
        self.send(signal.SIGSTOP)

        def has_stopped() -> bool:
            for task in Path(f"/proc/{self.pid()}/task").iterdir():
                try:
                    state = (task / "stat").read_text().rpartition(")")[2].split()[0]
                except OSError:  # it has ended
                    continue
                if state != "T":
                    return False
            return True

        wait_until(f"{self.arguments[0]} stands still", has_stopped)

    def kill(self) -> None:
        """As a power cut does: nothing is said to anybody."""
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> int:
        """As it is asked to; the exit code."""
        assert self.process
        self.process.terminate()
        return self.ended()

    def ended(self) -> int:
        """Waits until it has ended; the exit code."""
        assert self.process
        code = self.process.wait(PATIENCE_S)
        self.process = None
        return code


class Nats(Program):
    """A server. `storage` are settings of its JetStream."""

    def __init__(
        self, folder: Path, number: int, ports: list[int], routes: list[int], settings: str = "", storage: str = ""
    ):
        self.port, self.route = ports[number], routes[number]
        folder = folder / f"nats-{number + 1}"
        folder.mkdir(parents=True)
        others = ", ".join(f"nats://127.0.0.1:{port}" for port in routes)
        config = folder / "nats.conf"
        config.write_text(
            f"server_name: nats-{number + 1}\n"
            f"listen: 127.0.0.1:{self.port}\n"
            f'jetstream {{ store_dir: "{folder / "data"}", max_file_store: 4GB, {storage} }}\n'
            f"cluster {{ name: nats, listen: 127.0.0.1:{routes[number]}, routes: [{others}] }}\n{settings}"
        )
        super().__init__(["nats-server", "-c", str(config)], folder / "log")


class Node(Program):
    def __init__(
        self, folder: Path, name: str, servers: list[int], settings: str = "", absence_ms: int = ABSENCE_MS
    ):
        self.name = name
        folder.mkdir(parents=True)
        self.ports = dict(zip(SCHEMES, free_ports(len(SCHEMES)), strict=True))
        urls = ", ".join(f'"nats://127.0.0.1:{port}"' for port in servers)
        listeners = "".join(
            f'[[listener]]\nurl = "{scheme}://127.0.0.1:{port}"\n\n' for scheme, port in self.ports.items()
        )
        self.config = folder / "sterna.toml"
        self.config.write_text(
            f'data_directory = "{folder / "data"}"\nshards = 2\n\n{listeners}'
            f"[store]\nenabled = false\n\n"
            f'[cluster]\nnats = [{urls}]\nnode = "{self.name}"\n'
            f"lease_ms = {LEASE_MS}\nabsence_ms = {absence_ms}\n{settings}"
        )
        arguments = [os.environ["STERNA_BIN"], "serve", "--config", str(self.config)]
        super().__init__(arguments, folder / "log")

    def url(self, scheme: str) -> str:
        return f"{scheme}://127.0.0.1:{self.ports[scheme]}"

    def page(self, path: str) -> str:
        url = f"http://127.0.0.1:{self.ports['admin']}{path}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.read().decode()
        except OSError:
            return ""

    def is_ready(self) -> bool:
        return self.page("/readyz") == "ready\n"

    def figure(self, name: str) -> float:
        """A figure of `/metrics`; -1 where the node does not run, or has none of this name. Waits for an answer that is late: a
        figure is compared with an earlier one, and -1 is less than all."""
        def answer() -> str:
            is_running = self.process is not None and self.process.poll() is None
            return self.page("/metrics") or ("" if is_running else "it does not run")

        for line in wait_until(f"{self.name} tells its figures", answer).splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
        return -1


class Programs:
    """Programs that start together, each after those that it needs, and end together."""

    programs: list[Program]

    def settle(self) -> None:
        """Waits until they know of each other."""
        raise NotImplementedError

    def mend(self, has_failed: bool) -> None:
        """Follows a row. One that failed leaves nothing to the next: all programs begin anew, without their data."""
        if has_failed:
            for program in reversed(self.programs):
                program.kill()
                shutil.rmtree(program.log.parent / "data", ignore_errors=True)
            for program in self.programs:
                program.start()
        self.settle()

    def __enter__(self) -> Self:
        try:
            for program in self.programs:
                program.start()
            self.settle()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for program in reversed(self.programs):
            program.kill()


class Cluster(Programs):
    """All of them, which end with it. The nodes have some more settings, and so has the storage of NATS."""

    def __init__(self, folder: Path, settings: str = "", absence_ms: int = ABSENCE_MS, storage: str = ""):
        self.absence_s = absence_ms / 1e3
        shutil.rmtree(folder, ignore_errors=True)
        ports, routes = free_ports(COUNT), free_ports(COUNT)
        self.nats = [Nats(folder, number, ports, routes, storage=storage) for number in range(COUNT)]
        self.servers = ports
        names = [f"node-{number + 1}" for number in range(COUNT)]
        self.nodes = [Node(folder / name, name, ports, settings, absence_ms) for name in names]
        self.programs = [*self.nats, *self.nodes]
        self.folder = folder

    def settle(self) -> None:
        """Waits until every node is ready and sees all others."""
        for node in self.nodes:
            wait_until(f"{node.name} is ready", node.is_ready)
        for node in self.nodes:
            wait_until(
                f"{node.name} sees the others", lambda node=node: node.figure("sterna_cluster_nodes_here") == COUNT - 1
            )


def ask_nats(cluster: Cluster, subject: str, payload: bytes = b"{}", user: str = "") -> dict:
    """Asks the API of JetStream, as a user whose password is `right`."""
    with socket.create_connection(("127.0.0.1", cluster.servers[0]), timeout=PATIENCE_S) as connection:
        lines = connection.makefile("rb")
        lines.readline()
        identity = {"user": user, "pass": "right"} if user else {}
        connect = json.dumps({"verbose": False, "pedantic": False, **identity})
        connection.sendall(
            f"CONNECT {connect}\r\nSUB _INBOX.suite 1\r\n".encode()
            + f"PUB {subject} _INBOX.suite {len(payload)}\r\n".encode() + payload + b"\r\n"
        )
        while True:
            line = lines.readline()
            if not line:
                raise ConnectionError("NATS ends the connection")
            if line.startswith(b"PING"):
                connection.sendall(b"PONG\r\n")
            if line.startswith(b"MSG"):
                return json.loads(lines.read(int(line.split()[-1])))


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    sterna = os.environ["STERNA_BIN"]
    folder = Path(sys.argv[1])
    with Cluster(folder) as cluster:
        print(f"Three servers of NATS and three nodes run in {folder}.\n")
        for node in cluster.nodes:
            print(f"{node.name}: {json.dumps({scheme: node.url(scheme) for scheme in SCHEMES})}")
        first, last = cluster.nodes[0], cluster.nodes[-1]
        print(f"\nsubscribe on one node:\n  {sterna} sub {last.url('amqp')} -t 'hello/#' -v")
        print(f"publish on another:\n  {sterna} pub {first.url('mqtt')} -q 1 -t hello/world -m 'Hello from afar'")
        print(f"see the cluster:\n  curl -s http://127.0.0.1:{first.ports['admin']}/metrics | grep sterna_cluster")
        pids = {program.log.parent.name: program.process.pid for program in [*cluster.nats, *cluster.nodes]}
        print(f"take one away:\n  kill -9 PID, of {json.dumps(pids)}\n\nCtrl-C ends all of them.", flush=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            print()


if __name__ == "__main__":
    main()
