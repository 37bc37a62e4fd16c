"""The page of durability, row by row: what a broker kept is there after its end, and what it says that it loses is gone.

  survives.py [WORD]...   all rows, or those with one of the words in their name

Each row says something to the broker before the end, and looks afterwards. Ends are SIGKILL and SIGTERM. The clients are
paho, proton, Python's http.client and its ssl. `docs/durability.md` names these rows beside those of its tables.

STERNA_BIN is the broker's program, STERNA_BUILD a folder. Needs paho-mqtt and python-qpid-proton.
"""

from __future__ import annotations

import http.client
import json
import os
import queue
import shutil
import socket
import ssl
import sys
import urllib.request
from pathlib import Path

import paho.mqtt.client as paho
import proton
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from proton.reactor import AtMostOnce, Container, DurableSubscription, ReceiverOption, Selector
from proton.utils import BlockingConnection

from cluster_nodes import Program, free_ports, wait_until
from harness import INTEROP, PATIENCE_S, Failure, Report

STERNA = os.environ["STERNA_BIN"]
FOLDER = Path(os.environ["STERNA_BUILD"]) / "survives"
LEVELS = {4: "3.1.1", 5: "5.0"}
USER, PASSWORD = "interop", "a password of Bob's"
CONFIG = """
data_directory = "{folder}"
shards = 2

[[listener]]
url = "mqtt://127.0.0.1:{mqtt}"
anonymous = true

[[listener]]
url = "mqtts://127.0.0.1:{mqtts}"
anonymous = true

[[listener]]
url = "amqp://127.0.0.1:{amqp}"
anonymous = true

[[listener]]
url = "http://127.0.0.1:{http}"
anonymous = true

[[listener]]
url = "mqtt://127.0.0.1:{asking}"

[[listener]]
url = "admin://127.0.0.1:{admin}"
anonymous = true

[authentication]
anonymous = false
password_file = "{users}"

[passwords]
# The users' file is part of the repository.
iterations = 0

[guessing]
free_failures = 1
first_delay_ms = 900_000

[store]
durability = "{durability}"

[[amqp.queue]]
name = "jobs"
filter = "jobs/#"
maximum_deliveries = 5
"""


class Broker(Program):
    def __init__(self, folder: Path, durability: str):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        self.mqtt, self.mqtts, self.amqp, self.http, self.asking, self.admin = free_ports(6)
        config = folder / "sterna.toml"
        config.write_text(
            CONFIG.format(folder=folder / "data", mqtt=self.mqtt, mqtts=self.mqtts, amqp=self.amqp, http=self.http,
                          asking=self.asking, admin=self.admin, durability=durability,
                          users=INTEROP / "certificates" / "users")
        )
        super().__init__([STERNA, "serve", "--config", str(config)], folder / "log")

    def start(self) -> None:
        super().start()
        wait_until("the broker is ready", self.is_ready)

    def has_written(self) -> bool:
        """Whether the store has written what it was given."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return float(next(line for line in lines if line.startswith("sterna_store_unwritten_bytes ")).split()[1]) == 0

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/readyz", timeout=60) as answer:
                return answer.status == 200
        except OSError:
            return False


def expect(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise Failure(f"{what}: {found}, not {wanted}")


class Mqtt:
    """A client of paho. With `keep` its session outlives the connection."""

    def __init__(self, broker: Broker, level: int, name: str, keep: bool):
        self.came: queue.Queue[tuple[str, str, bool]] = queue.Queue()
        self.answers: queue.Queue[bool] = queue.Queue()
        self.granted: queue.Queue[int] = queue.Queue()
        options = {} if level == 5 else {"clean_session": not keep}
        one = self.client = paho.Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=level, **options)
        one.on_connect = lambda _client, _data, flags, _code, _properties: self.answers.put(flags.session_present)
        one.on_subscribe = lambda _client, _data, mid, _codes, _properties: self.granted.put(mid)
        one.on_message = lambda _client, _data, message: self.came.put(
            (message.topic, message.payload.decode(), message.retain))
        if level == 5:
            properties = Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = 3_600 if keep else 0
            one.connect("127.0.0.1", broker.mqtt, clean_start=False, properties=properties)
        else:
            one.connect("127.0.0.1", broker.mqtt)
        one.loop_start()
        self.is_present = self.answers.get(timeout=PATIENCE_S)

    def subscribe(self, *filters: str, qos: int = 2) -> None:
        self.client.subscribe([(one, qos) for one in filters])
        self.granted.get(timeout=PATIENCE_S)

    def publish(self, topic: str, payload: str, qos: int = 1, retain: bool = False) -> None:
        """Until it is acknowledged."""
        self.client.publish(topic, payload, qos, retain).wait_for_publish(PATIENCE_S)

    def next(self) -> tuple[str, str, bool]:
        try:
            return self.came.get(timeout=PATIENCE_S)
        except queue.Empty:
            raise Failure("nothing comes") from None

    def payloads(self, count: int) -> list[str]:
        return [self.next()[1] for _ in range(count)]

    def end(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def publisher(broker: Broker) -> Mqtt:
    return Mqtt(broker, 5, "", keep=False)


class Amqp:
    """A connection of proton."""

    def __init__(self, broker: Broker, name: str):
        container = Container()
        container.container_id = name
        self.connection = BlockingConnection(
            f"amqp://127.0.0.1:{broker.amqp}", timeout=PATIENCE_S, container=container, allowed_mechs="ANONYMOUS")

    def send(self, address: str, *payloads: str, options=None) -> None:
        """Until all are accepted; or behind a message that is, where they are settled."""
        sender = self.connection.create_sender(address, options=options)
        for payload in payloads:
            sender.send(proton.Message(payload, durable=True))
        sender.close()

    def send_all(self, address: str, messages: list[proton.Message]) -> None:
        sender = self.connection.create_sender(address)
        for message in messages:
            sender.send(message)
        sender.close()

    def receiver(self, address: str | None, name: str | None = None, options=None):
        return self.connection.create_receiver(address, credit=100, name=name, options=options)

    def end(self) -> None:
        self.connection.close()


def bodies(receiver, count: int) -> list[tuple[str, int]]:
    """The next messages, which are accepted: their bodies and delivery counts."""
    found = []
    for _ in range(count):
        message = receiver.receive(PATIENCE_S)
        body = message.body.tobytes() if isinstance(message.body, memoryview) else message.body
        found.append((body.decode() if isinstance(body, bytes) else body, message.delivery_count))
        receiver.accept()
    return found


class Expiring(ReceiverOption):
    """A source that lasts for a time after its link."""

    def apply(self, receiver) -> None:
        receiver.source.expiry_policy = proton.Terminus.EXPIRE_WITH_LINK
        receiver.source.timeout = 3_600


class Recovering(ReceiverOption):
    """No source: the one that the broker has by the link's name."""

    def apply(self, receiver) -> None:
        receiver.source.type = proton.Terminus.UNSPECIFIED


class Http:
    """A connection of http.client."""

    def __init__(self, broker: Broker):
        self.connection = http.client.HTTPConnection("127.0.0.1", broker.http, timeout=PATIENCE_S)

    def ask(self, method: str, path: str, content: bytes | None = None, **fields: str):
        fields = {name.replace("_", "-"): value for name, value in fields.items()}
        self.connection.request(method, path, content, fields)
        answer = self.connection.getresponse()
        return answer, answer.read()

    def status(self, method: str, path: str, content: bytes | None = None, **fields: str) -> int:
        return self.ask(method, path, content, **fields)[0].status

    def open(self, path: str):
        """The head of a response that goes on."""
        self.connection.request("GET", path, None, {"Accept": "text/event-stream"})
        answer = self.connection.getresponse()
        expect("status", answer.status, 200)
        return answer

    def end(self) -> None:
        self.connection.close()


def events(answer, count: int) -> list[str]:
    """The payloads of the next events."""
    found: list[str] = []
    while len(found) < count:
        line = answer.readline()
        if not line:
            raise Failure(f"the response ends behind {found}")
        if line.startswith(b"data:"):
            found.append(json.loads(line[5:])["payload"])
    return found


# A row is a generator: what it does before the end, a yield, and what it finds behind it. It is told whether the end was in
# order.

NUMBERS = [str(number) for number in range(20)]


def acknowledged(broker: Broker, _in_order: bool):
    """Messages of QoS 1 and 2 are there for sessions that outlive their connections, and for groups with such a member."""
    readers = [(level, f"messages-{level}") for level in LEVELS]
    for level, name in readers:
        one = Mqtt(broker, level, name, keep=True)
        one.subscribe("messages/#")
        one.end()
    member = Mqtt(broker, 5, "messages-member", keep=True)
    member.subscribe("$share/g/messages/#")
    member.end()
    one = publisher(broker)
    for number in NUMBERS:
        one.publish("messages/a", number, qos=1 + int(number) % 2)
    one.end()
    http_one = Http(broker)
    expect("status", http_one.status("POST", "/v1/topics/messages/a", b"http"), 204)
    http_one.end()
    yield
    for level, name in [*readers, (5, "messages-member")]:
        reader = Mqtt(broker, level, name, keep=True)
        came = reader.payloads(len(NUMBERS) + 1)
        # The library hands a message of QoS 2 over when it is released, behind later ones.
        expect(f"{name} gets of QoS 1", [one for one in came if one not in NUMBERS[1::2]], [*NUMBERS[::2], "http"])
        expect(f"{name} gets of QoS 2", [one for one in came if one in NUMBERS[1::2]], NUMBERS[1::2])
        reader.end()


def unwanted(broker: Broker, _in_order: bool):
    """A message that no kept reader wants is lost with the process."""
    live = Mqtt(broker, 5, "unwanted-live", keep=False)
    live.subscribe("unwanted/#")
    one = publisher(broker)
    one.publish("unwanted/a", "before")
    expect("the live reader gets", live.payloads(1), ["before"])
    live.end()
    yield
    reader = Mqtt(broker, 5, "unwanted-live", keep=True)
    reader.subscribe("unwanted/#")
    one = publisher(broker)
    one.publish("unwanted/a", "after")
    expect("the first message is", reader.payloads(1), ["after"])
    one.end()
    reader.end()


def unacknowledged(broker: Broker, _in_order: bool):
    """Messages of QoS 0 and settled transfers are kept in queues, and elsewhere lost."""
    away = Mqtt(broker, 5, "qos-0-away", keep=True)
    away.subscribe("jobs/#", "nowhere/#")
    away.end()
    one = publisher(broker)
    for topic in ("jobs/qos-0", "nowhere/qos-0"):
        one.publish(topic, "qos 0", qos=0)
        one.publish(topic, "qos 1", qos=1)
    one.end()
    amqp = Amqp(broker, "settled")
    amqp.send("queue/settled", "settled", options=AtMostOnce())
    amqp.send("queue/settled", "unsettled")
    amqp.end()
    yield
    amqp = Amqp(broker, "settled")
    expect("the queue has", [body for body, _ in bodies(amqp.receiver("queue/settled"), 2)], ["settled", "unsettled"])
    expect("the queue has", [body for body, _ in bodies(amqp.receiver("queue/jobs"), 2)], ["qos 0", "qos 1"])
    amqp.end()
    away = Mqtt(broker, 5, "qos-0-away", keep=True)
    expect("the session has", away.payloads(2), ["qos 1", "qos 1"])
    away.end()


def mqtt_sessions(broker: Broker, _in_order: bool):
    """Sessions with an interval above 0 are there with their subscriptions; those without are gone."""
    for level in LEVELS:
        for keep in (True, False):
            # It is connected when the broker ends.
            one = Mqtt(broker, level, f"session-{level}-{keep}", keep)
            one.subscribe("session/#")
            one.client.reconnect = lambda: paho.MQTT_ERR_CONN_REFUSED
            LEFT.append(one)
    yield
    one = publisher(broker)
    one.publish("session/a", "for the kept")
    for level in LEVELS:
        for keep in (True, False):
            name = f"session-{level}-{keep}"
            # What a clean session would begin with is not asked for.
            reader = Mqtt(broker, level, name, True)
            expect(f"{name} is present", reader.is_present, keep)
            if keep:
                expect(f"{name} gets", reader.payloads(1), ["for the kept"])
            reader.end()
    one.end()


def amqp_links(broker: Broker, in_order: bool):
    """Sources that never expire, or after a time, are there with address, filter and messages; others are gone."""
    kinds = {"never": DurableSubscription(), "timeout": Expiring(), "plain": None}
    amqp = Amqp(broker, "links")
    for name, options in kinds.items():
        amqp.receiver("links/a", name, options)
    filtered = amqp.receiver("links/b", "filtered", [DurableSubscription(), Selector("color = 'red'")])
    colors = Amqp(broker, "colors")
    colors.send_all("links/b", [proton.Message(f"{color} 1", durable=True, properties={"color": color})
                                for color in ("red", "blue")])
    expect("filtered gets", bodies(filtered, 1), [("red 1", 0)])
    # What was accepted is written with what follows.
    amqp.send("links/b")
    colors.end()
    LEFT.append(amqp)
    one = publisher(broker)
    one.publish("links/a", "before")
    one.end()
    yield
    one = publisher(broker)
    one.publish("links/a", "between")
    amqp = Amqp(broker, "links")
    receivers = {name: amqp.receiver("links/a", name, options) for name, options in kinds.items()}
    one.publish("links/a", "after")
    one.end()
    for name, receiver in receivers.items():
        wanted = ["after"] if name == "plain" else ["before", "between", "after"]
        expect(f"{name} gets", [body for body, _ in bodies(receiver, len(wanted))], wanted)
    amqp.send_all("links/b", [proton.Message(f"{color} 2", durable=True, properties={"color": color})
                              for color in ("blue", "red")])
    filtered = amqp.receiver(None, "filtered", Recovering())
    expect("filtered is at", filtered.link.remote_source.address, "links/b")
    came = [body for body, _ in bodies(filtered, 1)]
    if came == ["red 1"] and not in_order:
        # A kill may forget what was settled in the last moment.
        came = [body for body, _ in bodies(filtered, 1)]
    expect("filtered gets", came, ["red 2"])
    amqp.end()


def amqp_queues(broker: Broker, in_order: bool):
    """Queues are there with their messages and failed deliveries, whoever made them."""
    amqp = Amqp(broker, "queues")
    for name in ("jobs-of-a-file", "of-a-link"):
        amqp.send(f"queue/{name}", *NUMBERS[:3])
        receiver = amqp.receiver(f"queue/{name}")
        receiver.receive(PATIENCE_S)
        receiver.fetcher.unsettled[0].local.failed = True
        receiver.settle(proton.Delivery.MODIFIED)
        receiver.close()
    amqp.end()
    yield
    amqp = Amqp(broker, "queues")
    for name in ("jobs-of-a-file", "of-a-link"):
        found = bodies(amqp.receiver(f"queue/{name}"), 3)
        expect(f"{name} has", [body for body, _ in found], NUMBERS[:3])
        # A kill may forget the failures of the last moment, and makes none.
        counts = [count for _, count in found]
        expect(f"{name} counts no others", counts[1:], [0, 0])
        if in_order:
            expect(f"{name} counts", counts[0], 1)
        elif counts[0] > 1:
            raise Failure(f"{name} counts {counts[0]} failures of 1")
    amqp.end()


def of_http(broker: Broker, _in_order: bool):
    """Sessions, created topics and keys are there. A response is not."""
    one = Http(broker)
    expect("PUT", one.status("PUT", "/v1/topics/of-http/created", b""), 201)
    reader = Http(broker)
    reader.open("/v1/topics/of-http/a?session=named")
    path = "/v1/topics/of-http/a"
    expect("POST", one.status("POST", path, b"once", Idempotency_Key="key"), 204)
    one.end()
    LEFT.append(reader)
    yield
    one = Http(broker)
    expect("PUT again", one.status("PUT", "/v1/topics/of-http/created", b""), 200)
    answer, _ = one.ask("POST", path, b"once", Idempotency_Key="key")
    expect("POST again", (answer.status, answer.getheader("Idempotent-Replayed")), (204, "?1"))
    expect("a session", one.status("GET", "/v1/sessions/named"), 200)
    expect("POST", one.status("POST", path, b"end"), 204)
    reader = Http(broker)
    expect("the session has", events(reader.open(f"{path}?session=named"), 2), ["once", "end"])
    reader.end()
    one.end()


def retained(broker: Broker, _in_order: bool):
    """Retained messages are there, also the states of bridges."""
    topics = ("retained/a", "$SYS/broker/connection/one/state")
    one = publisher(broker)
    for topic in topics:
        one.publish(topic, "kept", retain=True)
    one.publish("retained/b", "cleared", retain=True)
    one.publish("retained/b", "", retain=True)
    one.end()
    yield
    reader = Mqtt(broker, 5, "", keep=False)
    for topic in topics:
        reader.subscribe(topic)
        expect("what is retained", reader.next(), (topic, "kept", True))
    reader.subscribe("retained/#")
    expect("what is retained", reader.next(), ("retained/a", "kept", True))
    one = publisher(broker)
    one.publish("retained/c", "live")
    expect("nothing else is", reader.next()[1], "live")
    one.end()
    reader.end()


def tickets(broker: Broker, _in_order: bool):
    """Tickets are lost: the client makes a full handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    # Here the ticket is a part of the handshake.
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    def connect(session):
        raw = socket.create_connection(("127.0.0.1", broker.mqtts), timeout=PATIENCE_S)
        with context.wrap_socket(raw, session=session) as one:
            return one.session_reused, one.session

    _, ticket = connect(None)
    is_reused, ticket = connect(ticket)
    expect("resumed before the end", is_reused, True)
    yield
    expect("resumed behind the end", connect(ticket)[0], False)


def guesses(broker: Broker, _in_order: bool):
    """Counts of wrong passwords are lost: who had to wait comes in."""

    def is_let_in(password: str) -> bool:
        answers: queue.Queue[bool] = queue.Queue()
        one = paho.Client(CallbackAPIVersion.VERSION2, client_id="guesses", reconnect_on_failure=False)
        one.username_pw_set(USER, password)
        one.on_connect = lambda _client, _data, _flags, code, _properties: answers.put(not code.is_failure)
        one.connect("127.0.0.1", broker.asking)
        one.loop_start()
        found = answers.get(timeout=PATIENCE_S)
        one.disconnect()
        one.loop_stop()
        return found

    for password in ("wrong", "wrong", PASSWORD):
        expect(f"let in with {password!r}", is_let_in(password), False)
    yield
    expect("let in", is_let_in(PASSWORD), True)


ROWS = {
    "acknowledged": acknowledged, "unwanted": unwanted, "unacknowledged": unacknowledged, "mqtt-sessions": mqtt_sessions,
    "amqp-links": amqp_links, "amqp-queues": amqp_queues, "http": of_http, "retained": retained, "tickets": tickets,
    "guesses": guesses,
}
# Clients that are connected when the broker ends.
LEFT: list = []


def play(report: Report, how: str, durability: str, rows: dict) -> None:
    broker = Broker(FOLDER / f"{how}-{durability}", durability)
    under_way = {}
    try:
        broker.start()
        for name, row in rows.items():
            try:
                one = row(broker, how == "stop")
                next(one)
                under_way[name] = one
            except Exception as error:  # noqa: BLE001  a row that fails says so, and the others go on
                report.not_ok(f"{how}/{durability}/{name}", f"before the end: {type(error).__name__}: {error}")
        if how == "stop":
            expect("exit code", broker.stop(), 0)
        else:
            if durability == "memory":
                # What was acknowledged in the last milliseconds may go with the process.
                wait_until("all is written", broker.has_written)
            broker.kill()
        broker.start()
        for name, one in under_way.items():
            try:
                next(one, None)
                report.ok(f"{how}/{durability}/{name}")
            except Exception as error:  # noqa: BLE001
                report.not_ok(f"{how}/{durability}/{name}", f"{type(error).__name__}: {error}")
    finally:
        broker.kill()
        LEFT.clear()


def main() -> None:
    report = Report()
    words = sys.argv[1:]
    for how, durability in (("kill", "commit"), ("kill", "interval"), ("kill", "memory"), ("stop", "interval"),
                            ("stop", "memory")):
        wanted = {name: row for name, row in ROWS.items()
                  if not words or any(word in f"{how}/{durability}/{name}" for word in words)}
        if wanted:
            play(report, how, durability, wanted)
    report.exit()


if __name__ == "__main__":
    main()
