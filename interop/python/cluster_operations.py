"""The commands of docs/cluster-operations.md, word for word and in the order of that page, on machines that are folders.

  cluster_operations.py

Before each step foreign clients leave a ledger: sessions with unread messages (paho), a shared subscription, retained messages,
wills, and a queue (python-qpid-proton). After it they read what is owed: each message once, in its order, and nothing else.

`ssh`, `systemctl` and `curl` are scripts of this suite: a machine is a folder with its own `/etc`, `/var` and ports, and services
are processes. The environment: STERNA_BIN is the broker's program, STERNA_BUILD a folder; `nats-server` is on the search path.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import paho.mqtt.client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions
from proton import Message
from proton import Timeout
from proton.utils import BlockingConnection

from cluster import run_rows
from cluster_nodes import PATIENCE_S, free_ports, wait_until
from harness import Failure

STERNA = os.environ["STERNA_BIN"]
FOLDER = Path(os.environ["STERNA_BUILD"]) / "cluster-operations"
PAGE = Path(__file__).parents[2] / "docs" / "cluster-operations.md"
NAMES = [f"node-{number}" for number in range(1, 6)]
SERVERS = NAMES[:3]
LEASE_MS, ABSENCE_MS = 2_000, 6_000
# Messages of each ledger in a step, and how many of them are read before a step that moves all.
STEP, PART = 120, 40
# How long nothing must come.
SILENCE_S = 1.0

SSH = r"""#!/bin/bash
# ssh MACHINE COMMAND...: the paths of a machine are below its folder, and its listener of operators has a port of its own.
set -eu
machine=$1; shift
root=%(folder)s/$machine
[ -d "$root" ] || { echo "ssh: there is no machine $machine" >&2; exit 255; }
command=$(sed -e "s# /etc/# $root/etc/#g" -e "s# /var/# $root/var/#g" -e "s# /backup/# %(folder)s/backup/#g" \
    -e "s#http://localhost:9464#http://127.0.0.1:$(cat "$root/admin-port")#g" <<<" $*")
export MACHINE_ROOT=$root STERNA_ADMIN_URL=admin://127.0.0.1:$(cat "$root/admin-port")
exec bash -euc "$command"
"""

SYSTEMCTL = r"""#!/bin/bash
# systemctl start|stop SERVICE; disable --now SERVICE: on the machine of MACHINE_ROOT.
set -eu
root=$MACHINE_ROOT verb=$1; service=${*: -1}
pid=$root/$service.pid
case $verb in
start)
    # One that runs is left as it is.
    if [ -e "$pid" ] && kill -0 "$(cat "$pid")" 2>/dev/null; then exit 0; fi
    case $service in
    sterna) set -- sterna serve --config "$root/etc/sterna/sterna.toml" --data-dir "$root/var/lib/sterna" ;;
    nats) set -- nats-server -c "$root/etc/nats/nats.conf" ;;
    esac
    setsid "$@" >>"$root/$service.log" 2>&1 </dev/null &
    echo $! >"$pid"
    # The unit says when it has begun (Type=notify).
    [ "$service" = sterna ] || exit 0
    while kill -0 "$(cat "$pid")" 2>/dev/null; do
        (: <>"/dev/tcp/127.0.0.1/$(cat "$root/admin-port")") 2>/dev/null && exit 0
        sleep 0.05
    done ;;
stop | disable)
    if [ -e "$pid" ]; then
        number=$(cat "$pid"); rm "$pid"
        kill "$number" 2>/dev/null || true
        while kill -0 "$number" 2>/dev/null; do sleep 0.05; done
    fi ;;
*) echo "systemctl: $verb?" >&2; exit 2 ;;
esac
"""


class Machine:
    """A folder that stands for a machine."""

    def __init__(self, name: str):
        self.name, self.root = name, FOLDER / name
        self.ports = dict(zip(("mqtt", "amqp", "admin"), free_ports(3), strict=True))
        for folder in ("etc/sterna", "etc/nats", "var/lib/sterna", "var/lib/nats"):
            (self.root / folder).mkdir(parents=True)
        (self.root / "admin-port").write_text(f"{self.ports['admin']}\n")

    def pid(self, service: str) -> int | None:
        try:
            return int((self.root / f"{service}.pid").read_text())
        except FileNotFoundError:
            return None

    def kill(self, service: str) -> None:
        """As when the power is cut."""
        pid = self.pid(service)
        if pid is not None:
            (self.root / f"{service}.pid").unlink()
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                return
            wait_until(f"{service} of {self.name} is gone", lambda: is_gone(pid))

    def log(self, service: str = "sterna") -> str:
        return (self.root / f"{service}.log").read_text(errors="replace")

    def is_ready(self) -> bool:
        done = shell(f"ssh {self.name} curl -fs http://localhost:9464/readyz", check=False)
        return done.stdout == "ready\n"

    def configure(self, servers: list[int], replicas: int) -> None:
        """Writes the configuration of a node of the cluster, and that of a broker with a store."""
        listeners = "".join(f'[[listener]]\nurl = "{scheme}://127.0.0.1:{port}"\n' for scheme, port in self.ports.items())
        common = f'shards = 2\n{listeners}[authorization]\nadmins = ["anonymous"]\n[[amqp.queue]]\nname = "orders"\n'
        urls = ", ".join(f'"nats://127.0.0.1:{port}"' for port in servers)
        folder = self.root / "etc/sterna"
        (folder / "alone.toml").write_text(common)
        (folder / "cluster.toml").write_text(
            f"{common}[store]\nenabled = false\n[cluster]\nnats = [{urls}]\nnode = \"{self.name}\"\nreplicas = {replicas}\n"
            f"lease_ms = {LEASE_MS}\nabsence_ms = {ABSENCE_MS}\nmaximum_log_bytes = 200000000\n"
            "maximum_inbox_bytes = 100000000\n"
        )


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def shell(commands: str, check: bool = True) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STERNA_")}
    environment["PATH"] = f"{FOLDER / 'bin'}:{environment['PATH']}"
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", commands], capture_output=True, text=True, timeout=600,
                          stdin=subprocess.DEVNULL, env=environment, check=False)
    if check and done.returncode != 0:
        raise Failure(f"{commands}\nended with {done.returncode}: {done.stdout}{done.stderr}")
    return done


def steps() -> dict[str, str]:
    """The commands of the page, by the names that stand before them."""
    found = re.findall(r"<!-- run: (.*?) -->\n```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return dict(found)


def backup_user() -> str:
    """The user of NATS for backups, with the rights that the page names and no others."""
    rows = dict(re.findall(r"^\| (publishes to|subscribes to) \| (.*) \|$", PAGE.read_text(), re.MULTILINE))
    publish, subscribe = (json.dumps([subject.replace("NAME", "sterna") for subject in re.findall(r"`(.*?)`", rows[row])])
                          for row in ("publishes to", "subscribes to"))
    return f"{{ user: backup, password: right, permissions: {{ publish: {publish}, subscribe: {subscribe} }} }}"


class Ledger:
    """What clients were acknowledged and have not read, on any machines."""

    def __init__(self) -> None:
        self.number = 0
        self.unread: dict[str, list[int]] = {"once": [], "least": [], "jobs": [], "orders": []}
        self.retained: dict[str, str] = {}

    def copy(self) -> Ledger:
        other = Ledger()
        other.number, other.retained = self.number, dict(self.retained)
        other.unread = {name: list(numbers) for name, numbers in self.unread.items()}
        return other

    def write(self, machine: Machine, count: int = STEP) -> None:
        """Publishes to all: paho by MQTT 5, at QoS 1 and 2, and proton to the queue."""
        numbers = list(range(self.number, self.number + count))
        self.number += count
        with Client(machine, "") as publisher:
            waiting = []
            for number in numbers:
                for name, qos in (("once", 2), ("least", 1), ("jobs", 1)):
                    waiting.append(publisher.client.publish(f"ledger/{name}", str(number), qos))
            state = f"state/{numbers[0] % 7}"
            waiting.append(publisher.client.publish(state, str(numbers[0]), 1, retain=True))
            for one in waiting:
                one.wait_for_publish(PATIENCE_S)
                if not one.is_published():
                    raise Failure("a publication was not acknowledged")
        self.retained[state] = str(numbers[0])
        connection = BlockingConnection(f"amqp://127.0.0.1:{machine.ports['amqp']}", timeout=PATIENCE_S)
        sender = connection.create_sender("queue/orders")
        for number in numbers:
            sender.send(Message(body=str(number), durable=True))
        connection.close()
        for numbers_of in self.unread.values():
            numbers_of.extend(numbers)

    def read(self, machine: Machine, most: int | None = None) -> None:
        """Reads, and compares; all, or the first of each but those of QoS 2."""
        for name, topic in FILTERS.items():
            if most is None or name != "once":
                self.read_session(machine, name, topic, most)
        self.read_queue(machine, most)
        if most is None:
            self.look_at_retained(machine)

    def read_session(self, machine: Machine, name: str, topic: str, most: int | None) -> None:
        owed = self.unread[name]
        count = len(owed) if most is None else most
        with Client(machine, name, topic, settles=count) as reader:
            if not reader.is_present:
                raise Failure(f"{machine.name}: the session of {name} is not there")
            reader.wait_for(count)
            if most is None:
                reader.is_silent()
        got = reader.settled
        if got != owed[:count]:
            raise Failure(f"{machine.name}, {name}: {difference(got, owed[:count])}")
        del owed[:count]

    def read_queue(self, machine: Machine, most: int | None) -> None:
        owed = self.unread["orders"]
        count = len(owed) if most is None else most
        connection = BlockingConnection(f"amqp://127.0.0.1:{machine.ports['amqp']}", timeout=PATIENCE_S)
        receiver = connection.create_receiver("queue/orders", credit=1)
        got = []
        for _ in range(count):
            try:
                got.append(int(receiver.receive(timeout=PATIENCE_S).body))
            except Timeout:
                break
            receiver.accept()
        if most is None:
            try:
                got.append(int(receiver.receive(timeout=SILENCE_S).body))
            except Timeout:
                pass
        connection.close()
        if got != owed[:count]:
            raise Failure(f"{machine.name}, the queue: {difference(got, owed[:count])}")
        del owed[:count]

    def look_at_retained(self, machine: Machine) -> None:
        with Client(machine, "", "state/#") as reader:
            wait_until("the retained messages", lambda: len(reader.retained) >= len(self.retained))
            if reader.retained != self.retained:
                raise Failure(f"{machine.name}: retained {reader.retained}, and not {self.retained}")


WILLS = "wills/#"
FILTERS = {"once": "ledger/once", "least": "ledger/least", "jobs": "$share/workers/ledger/jobs"}


def difference(got: list[int], owed: list[int]) -> str:
    lost, more = sorted(set(owed) - set(got)), sorted(set(got) - set(owed))
    doubled = len(got) - len(set(got))
    return f"{len(got)} of {len(owed)}: lost {lost[:5]}, not owed {more[:5]}, {doubled} doubled, got {got[:5]}... {got[-5:]}"


class Client:
    """A client of MQTT 5 with paho. One with a name has a session that stays, and settles only so many messages."""

    def __init__(self, machine: Machine, name: str, topic: str | None = None, settles: int | None = None):
        self.settles, self.topic = settles, topic
        self.settled: list[int] = []
        self.extra: list[int] = []
        self.retained: dict[str, str] = {}
        self.arrived, self.is_connected = threading.Condition(), threading.Event()
        self.is_present = False
        self.refused = ""
        self.client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=name, protocol=paho.MQTTv5,
                                  manual_ack=settles is not None)
        self.client.max_inflight_messages_set(100)
        self.client.on_connect, self.client.on_message = self.on_connect, self.on_message
        self.client.on_subscribe = lambda *_: self.is_connected.set()
        options = Properties(PacketTypes.CONNECT)
        if name:
            options.SessionExpiryInterval = 86_400
            # One at a time: what was not settled was not sent.
            options.ReceiveMaximum = 1
        self.client.connect("127.0.0.1", machine.ports["mqtt"], keepalive=60, clean_start=not name, properties=options)
        self.client.loop_start()
        if not self.is_connected.wait(PATIENCE_S):
            raise Failure(f"{machine.name} does not let {name or 'a client'} in: {self.refused}")

    def on_connect(self, client, _data, flags, reason, _properties) -> None:
        if reason.is_failure:
            self.refused = str(reason)
            return
        self.is_present = flags.session_present
        # A session that is there has its subscription.
        if self.topic and not self.is_present:
            client.subscribe(self.topic, options=SubscribeOptions(qos=2))
        else:
            self.is_connected.set()

    def on_message(self, client, _data, message) -> None:
        with self.arrived:
            if self.settles is None:
                self.retained[message.topic] = message.payload.decode()
            elif len(self.settled) < self.settles:
                self.settled.append(int(message.payload))
                client.ack(message.mid, message.qos)
            else:
                self.extra.append(int(message.payload))
            self.arrived.notify_all()

    def wait_for(self, count: int) -> None:
        with self.arrived:
            self.arrived.wait_for(lambda: len(self.settled) >= count, PATIENCE_S)

    def is_silent(self) -> None:
        with self.arrived:
            if self.arrived.wait_for(lambda: self.extra, SILENCE_S):
                raise Failure(f"{self.extra} came, and nothing is owed any more")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.disconnect()
        self.client.loop_stop()


class World:
    """All machines, and what is owed."""

    def __init__(self) -> None:
        self.machines = {name: Machine(name) for name in NAMES}
        servers, routes = free_ports(3), free_ports(3)
        self.servers, self.routes = servers, routes
        for number, name in enumerate(SERVERS):
            self.write_nats(number, name)
        for machine in self.machines.values():
            machine.configure(servers, 3)
        for name in ("node-4", "node-5"):
            self.use(name, "cluster")
        self.use("node-1", "alone")
        bins = FOLDER / "bin"
        bins.mkdir()
        (FOLDER / "backup").mkdir()
        for program, text in (("ssh", SSH % {"folder": FOLDER}), ("systemctl", SYSTEMCTL)):
            (bins / program).write_text(text)
            (bins / program).chmod(0o755)
        (bins / "sterna").symlink_to(Path(STERNA).resolve())
        self.ledger = Ledger()
        self.steps = steps()
        self.ran: set[str] = set()
        self.died = 0
        self.backup = Ledger()

    def write_nats(self, number: int, name: str) -> None:
        root = self.machines[name].root
        others = ", ".join(f"nats://127.0.0.1:{port}" for port in self.routes)
        (root / "etc/nats/nats.conf").write_text(
            f"server_name: {name}\nlisten: 127.0.0.1:{self.servers[number]}\n"
            f'jetstream {{ store_dir: "{root}/var/lib/nats", max_file_store: 2GB, sync_interval: always }}\n'
            f"cluster {{ name: nats, listen: 127.0.0.1:{self.routes[number]}, routes: [{others}] }}\n"
            f"authorization {{ users: [{{ user: node, password: node }}, {backup_user()}] }}\nno_auth_user: node\n"
        )

    def use(self, name: str, configuration: str) -> None:
        folder = self.machines[name].root / "etc/sterna"
        shutil.copy(folder / f"{configuration}.toml", folder / "sterna.toml")

    def __getitem__(self, number: int) -> Machine:
        return self.machines[f"node-{number}"]

    def run(self, step: str) -> str:
        """The commands of a step; what they print."""
        commands = self.steps.get(step)
        if commands is None:
            raise Failure(f"the page has no step `{step}`")
        done = shell(commands)
        self.ran.add(step)
        return done.stdout + done.stderr

    def settle(self, *numbers: int) -> None:
        for number in numbers:
            machine = self[number]
            try:
                wait_until(f"{machine.name} is ready", machine.is_ready)
            except TimeoutError as error:
                raise Failure(f"{error}: {machine.log()[-2_000:]}") from error

    def begin(self, machine: Machine) -> None:
        """Sessions and a group begin."""
        for name, topic in FILTERS.items():
            with Client(machine, name, topic, settles=0):
                pass
        with Client(machine, "witness", WILLS, settles=0):
            pass

    def mortals(self, machine: Machine) -> contextlib.ExitStack:
        """Two clients with wills, which do not come back: one whose session ends with its connection, and one whose does not."""
        both = contextlib.ExitStack()
        for number, expiry_s in enumerate((0, 86_400)):
            self.died += 1
            client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=f"mortal-{self.died}", protocol=paho.MQTTv5,
                                 reconnect_on_failure=False)
            client.will_set(WILLS.replace("#", str(number)), str(self.died), 1)
            options = Properties(PacketTypes.CONNECT)
            options.SessionExpiryInterval = expiry_s
            client.connect("127.0.0.1", machine.ports["mqtt"], keepalive=60, properties=options)
            client.loop_start()
            both.callback(client.loop_stop)
            wait_until("it is let in", client.is_connected)
        return both

    def witness(self, machine: Machine) -> None:
        """The wills of the last mortals have come, each once."""
        with Client(machine, "witness", WILLS, settles=2) as witness:
            if not witness.is_present:
                raise Failure("the session of the witness is not there")
            witness.wait_for(2)
            witness.is_silent()
        if sorted(witness.settled) != [self.died - 1, self.died]:
            raise Failure(f"of wills {self.died - 1} and {self.died}, {witness.settled} came")

    def end(self) -> None:
        for machine in self.machines.values():
            for service in ("sterna", "nats"):
                machine.kill(service)


def one_to_three(world: World) -> None:
    """A store becomes a cluster: sessions, a group, retained messages and a queue are there."""
    shell("ssh node-1 systemctl start sterna")
    world.settle(1)
    world.begin(world[1])
    world.ledger.write(world[1])
    world.ledger.read(world[1], PART)
    # Some are waiting twice: once read in part, and once more behind.
    world.ledger.write(world[1])
    with world.mortals(world[1]):
        said = world.run("one to three")
    if "imported" not in said:
        raise Failure(f"it does not say what it has done: {said}")
    mode = (FOLDER / "backup/store.jsonl").stat().st_mode & 0o777
    if mode != 0o600:
        raise Failure(f"the export has the mode {mode:o}")
    world.settle(1, 2, 3)
    world.ledger.read(world[2], PART)
    world.ledger.write(world[3])
    world.ledger.read(world[3])
    world.witness(world[2])


def backup(world: World) -> None:
    """A backup of a cluster that runs; nodes write it into their audit logs."""
    world.ledger.write(world[2])
    world.ledger.read(world[1], PART)
    world.run("backup")
    world.backup = world.ledger.copy()
    export = FOLDER / "backup/cluster.jsonl"
    if export.stat().st_mode & 0o777 != 0o600:
        raise Failure(f"it has the mode {export.stat().st_mode & 0o777:o}")
    for number in (1, 2, 3):
        wait_until("the audit log", lambda number=number: "cluster export" in world[number].log())
    again = shell("ssh node-1 sterna cluster export --config /etc/sterna/sterna.toml -o /backup/cluster.jsonl", check=False)
    if again.returncode != 2 or "the file exists" not in again.stderr:
        raise Failure(f"a second one took its place: {again}")


def backup_by_its_user(world: World) -> None:
    """A user of NATS with the rights that the page names may export, and import nothing."""
    folder = world[1].root / "etc/sterna"
    (folder / "password").write_text("right\n")
    text = (folder / "cluster.toml").read_text()
    login = f'[cluster]\nuser = "backup"\npassword_file = "{folder / "password"}"\n'
    (folder / "backup.toml").write_text(text.replace("[cluster]\n", login))
    shell("ssh node-1 sterna cluster export --config /etc/sterna/backup.toml -o /backup/by-its-user.jsonl")
    shell("ssh node-1 sterna cluster export --config /etc/sterna/sterna.toml -o /backup/by-a-node.jsonl")
    # Cursors may have been written between the two; messages are the same.
    by_user, by_node = (
        [line for line in (FOLDER / f"backup/{name}.jsonl").read_text().splitlines() if line.startswith('{"position"')]
        for name in ("by-its-user", "by-a-node")
    )
    if by_user != by_node or not by_user:
        raise Failure(f"it has exported {len(by_user)} messages of {len(by_node)}")
    command = "ssh node-1 sterna cluster import --config /etc/sterna/backup.toml -i /backup/by-its-user.jsonl --replace"
    done = shell(command, check=False)
    if done.returncode != 2 or "NATS does not permit this node to publish to" not in done.stderr:
        raise Failure(f"it has imported: {done}")
    world.settle(1, 2, 3)
    world.ledger.read(world[3], PART)


def refusals(world: World) -> None:
    """What is no export, a node that runs, and a cluster that has something are refused, and nothing is changed."""
    command = "ssh node-1 sterna cluster import --config /etc/sterna/sterna.toml -i /backup/{}{}"

    def is_refused(said: str, file: str, option: str = "") -> None:
        done = shell(command.format(file, option), check=False)
        if done.returncode != 2 or said not in done.stderr:
            raise Failure(f"`{said}` is not said: {done}")

    whole = (FOLDER / "backup/cluster.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    bad = {
        "cut": (b"".join(lines[:-1]), "the export is cut off: its last line is missing"),
        "half": (whole[: len(whole) // 2], f"line "),
        "form": (whole.replace(b'{"store":1,', b'{"store":2,', 1), "line 1: exports of form 2 are not known"),
        "none": (b"hello\n", "line 1: neither the first line of an export"),
        "gap": (b"".join(lines[:-2] + lines[-1:]), f"line {len(lines) - 1}: the lines before are not those of the export"),
    }
    for name, (text, said) in bad.items():
        (FOLDER / "backup" / name).write_bytes(text)
        is_refused(said, name, " --replace")
    is_refused("the cluster sterna is not empty", "cluster.jsonl")
    is_refused("the node node-", "cluster.jsonl", " --replace")
    is_refused("No such file", "absent")
    is_refused("it is no file", "../backup")
    world.settle(1, 2, 3)
    world.ledger.read(world[2], PART)


def restore(world: World) -> None:
    """What was read since the backup comes again, and what was published since is gone; nothing is twice."""
    world.ledger.write(world[1])
    world.ledger.read(world[3])
    world.run("restore")
    world.settle(1, 2, 3)
    world.ledger = world.backup
    world.ledger.read(world[3], PART)
    world.ledger.write(world[2])
    world.ledger.read(world[1])


def three_to_one(world: World) -> None:
    world.ledger.write(world[3])
    world.ledger.read(world[2], PART)
    with world.mortals(world[3]):
        world.run("three to one")
    world.settle(1)
    world.witness(world[1])
    world.ledger.read(world[1], PART)
    world.ledger.write(world[1])
    world.ledger.read(world[1])


def and_three_again(world: World) -> None:
    """The store that came from a cluster becomes one again."""
    for path in ("backup/store.jsonl", "node-1/var/lib/sterna/store.before"):
        found = FOLDER / path
        if found.is_dir():
            shutil.rmtree(found)
        else:
            found.unlink()
    world.ledger.write(world[1])
    world.ledger.read(world[1], PART)
    # NATS still has the cluster of before, which ended when it became one node.
    refused = shell(world.steps["one to three"], check=False)
    if refused.returncode == 0 or "is not empty" not in refused.stderr:
        raise Failure(f"a cluster that is there was mixed with a store: {refused}")
    (FOLDER / "backup/store.jsonl").unlink()
    command = "cluster import --config /etc/sterna/cluster.toml -i /backup/store.jsonl"
    shell(world.steps["one to three"].replace(command, f"{command} --replace"))
    world.settle(1, 2, 3)
    world.ledger.read(world[3], PART)
    world.ledger.write(world[2])
    world.ledger.read(world[1])


def five(world: World) -> None:
    world.ledger.write(world[1])
    world.run("three to five")
    world.settle(4, 5)
    world.ledger.read(world[5], PART)
    world.ledger.write(world[4])
    world.ledger.read(world[4])


def leaving(world: World) -> None:
    """A node whose sessions and queue are there goes for ever."""
    world.ledger.write(world[5])
    world.ledger.read(world[5], PART)
    world.run("leaving")
    world.ledger.read(world[2], PART)
    world.ledger.write(world[4])
    world.ledger.read(world[3])


def copies(world: World) -> None:
    shell("ssh node-1 sterna cluster replicas 1")
    world.ledger.write(world[1])
    said = world.run("more copies")
    if "problem" in said and "not cluster.replicas" in said:
        raise Failure(f"it is not done: {said}")
    world.ledger.read(world[2])


def power(world: World) -> None:
    """A machine loses its power, with its node and its server of NATS."""
    world.ledger.write(world[2])
    world.ledger.read(world[2], PART)
    for service in ("sterna", "nats"):
        world[2].kill(service)
    world.ledger.read(world[1], PART)
    world.run("power")
    world.settle(1, 2, 3)
    world.ledger.write(world[2])
    world.ledger.read(world[2])


def disk(world: World) -> None:
    """One server of NATS loses its disk."""
    world.ledger.write(world[3])
    world.run("disk")
    world.settle(1, 2, 3)
    wait_until("all copies are there", lambda: "offline" not in shell("ssh node-1 sterna cluster status").stdout
               and "behind)" not in shell("ssh node-1 sterna cluster status").stdout)
    world[1].kill("nats")
    shell("ssh node-1 systemctl start nats")
    world.settle(1, 2, 3)
    world.ledger.read(world[1])


def all_lost(world: World) -> None:
    """All data of NATS are gone, while nodes are stopped; the backup is restored."""
    shell("ssh node-1 rm -f /backup/cluster.jsonl")
    world.ledger.write(world[1])
    world.ledger.read(world[2], PART)
    world.run("backup")
    kept = world.ledger.copy()
    for number in (1, 2, 3):
        world[number].kill("sterna")
        world[number].kill("nats")
        shutil.rmtree(world[number].root / "var/lib/nats")
    world.run("all lost")
    world.settle(1, 2, 3)
    world.ledger = kept
    world.ledger.read(world[2], PART)
    world.ledger.write(world[3])
    world.ledger.read(world[1])


def unfinished(world: World) -> None:
    """An import that was killed: no node joins, and it is begun anew."""
    world.ledger.write(world[1])
    kept = world.ledger.copy()
    shell("ssh node-1 rm -f /backup/again.jsonl")
    for number in (1, 2, 3, 4):
        shell(f"ssh node-{number} systemctl stop sterna")
    shell("ssh node-1 sterna cluster export --config /etc/sterna/sterna.toml -o /backup/again.jsonl")
    command = "ssh node-1 sterna cluster import --config /etc/sterna/sterna.toml -i /backup/again.jsonl"
    environment = {**os.environ, "PATH": f"{FOLDER / 'bin'}:{os.environ['PATH']}"}
    process = subprocess.Popen(["bash", "-c", f"{command} --replace"], env=environment, start_new_session=True)
    # It waits for a lease whether a node runs, with its notice in NATS.
    wait_until("the import has begun", lambda: "under way" in shell(command, check=False).stderr)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    shell("ssh node-2 systemctl start sterna")
    wait_until("a node says it", lambda: "an import into this cluster is under way" in
               shell("ssh node-2 curl -s http://localhost:9464/readyz", check=False).stdout)
    export = shell("ssh node-1 sterna cluster export --config /etc/sterna/sterna.toml -o /backup/half.jsonl", check=False)
    if export.returncode != 2 or "under way" not in export.stderr or (FOLDER / "backup/half.jsonl").exists():
        raise Failure(f"half a cluster was exported: {export}")
    shell("ssh node-2 systemctl stop sterna")
    shell(f"{command} --replace")
    for number in (1, 2, 3):
        shell(f"ssh node-{number} systemctl start sterna")
    world.settle(1, 2, 3)
    world.ledger = kept
    world.ledger.read(world[3])


def asleep(world: World) -> None:
    """A node stands still while all is replaced: it begins anew, and writes nothing of what it knew."""
    for number in (1, 2):
        shell(f"ssh node-{number} systemctl stop sterna")
    world.settle(3)
    world.ledger.write(world[3])
    kept = world.ledger.copy()
    sleeper = world[3].pid("sterna")
    os.kill(sleeper, signal.SIGSTOP)
    try:
        file = "-i /backup/asleep.jsonl"
        transfer = "ssh node-1 sterna cluster %s --config /etc/sterna/sterna.toml %s"
        shell(transfer % ("export", file.replace("-i", "-o")))
        # The node is taken for gone after its lease.
        wait_until("nobody is there", lambda: shell(transfer % ("import --replace", file), check=False).returncode == 0)
    finally:
        os.kill(sleeper, signal.SIGCONT)
    wait_until("it says why", lambda: "an import has replaced" in world[3].log())
    shell("ssh node-1 systemctl start sterna")
    world.settle(1, 3)
    if world[3].pid("sterna") != sleeper:
        raise Failure(f"it begins anew in another process: {world[3].log()[-2_000:]}")
    world.ledger = kept
    world.ledger.read(world[3], PART)
    world.ledger.write(world[1])
    world.ledger.read(world[3])
    shell("ssh node-2 systemctl start sterna")
    world.settle(2)


def by_hand(_: World) -> None:
    """The commands of docs/cluster.md that start a cluster by hand, on other ports."""
    text = (PAGE.parent / "cluster.md").read_text()
    (commands,) = re.findall(r"By hand, .*?```console\n(.*?)```", text, re.DOTALL)
    (nats,) = free_ports(1)
    # The page has `188$n` and `946$n`, for three nodes.
    mqtt, admin = (next(tens for tens in range(1_100, 3_000) if free_tens(tens)) for _ in range(2))
    for before, after in (("4222", str(nats)), ("188", str(mqtt)), ("946", str(admin))):
        commands = commands.replace(before, after)
    folder = FOLDER / "by-hand"
    folder.mkdir()
    end = "\nkill $(jobs -p)\nwait\n"
    done = shell(f"cd {folder}\n{commands}{end}", check=False)
    for said in ("hello\n", "Cluster sterna, as node node-1 sees it.", "node-3"):
        if said not in done.stdout:
            raise Failure(f"`{said}` is not said: {done}")


def free_tens(tens: int) -> bool:
    """Whether the first ports of a ten are free, which are this suite's from then on."""
    if tens in TENS:
        return False
    TENS.add(tens)
    for port in range(tens * 10 + 1, tens * 10 + 4):
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return False
    return True


TENS: set[int] = set()


def each_step_ran(world: World) -> None:
    missing = sorted(set(world.steps) - world.ran)
    if missing:
        raise Failure(f"steps of the page that nothing runs: {missing}")


ROWS = [
    ("one node to three", one_to_three),
    ("backup", backup),
    ("what is refused", refusals),
    ("a user for backups", backup_by_its_user),
    ("restore", restore),
    ("three nodes to one", three_to_one),
    ("one node to three, again", and_three_again),
    ("three nodes to five", five),
    ("a node leaves for ever", leaving),
    ("more copies", copies),
    ("a machine loses its power", power),
    ("a server of NATS loses its disk", disk),
    ("an import that was killed", unfinished),
    ("a node stands still over an import", asleep),
    ("all data of NATS are lost", all_lost),
    ("each step of the page was run", each_step_ran),
    ("a cluster by hand", by_hand),
]


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    world = World()
    try:
        run_rows(ROWS, lambda row: row(world), lambda _: None)
    finally:
        world.end()


if __name__ == "__main__":
    sys.exit(main())
