"""Rights that go and come back, with foreign clients at the doors where a client is known in other ways than by a password.

  rights_doors.py [WORD]...   all rows, or those with one of the words in their name

Named sessions of HTTP (Python's http.client), long polls (curl), WebTransport (aioquic), and MQTT (Paho) by client
certificates, by the webhook and by signed tokens. The suite has a broker of its own, as `rights.py` has. STERNA_BIN is the
broker's program. Needs paho-mqtt, aioquic and cryptography.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import hashlib
import hmac
import http.client
import http.server
import json
import queue
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import quote

from aioquic.asyncio import QuicConnectionProtocol, connect
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import HeadersReceived, WebTransportStreamDataReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import rights
from cluster_nodes import free_ports, wait_until
from harness import PATIENCE_S, Failure, Report
from rights import FOLDER, Reader, World

SECRET = b"a secret of the issuer, of 32 bytes or more"
CONFIG = """
data_directory = "{folder}/data"

[[listener]]
url = "mqtt://127.0.0.1:{mqtt}"

[[listener]]
url = "admin://127.0.0.1:{admin}"
anonymous = true

[[listener]]
url = "http://127.0.0.1:{http}"

[[listener]]
url = "h3://127.0.0.1:{h3}"

[[listener]]
url = "mqtts://127.0.0.1:{mqtts}"

[tls]
client_ca = "{folder}/ca.pem"
certificate_as_username = true

[authentication]
password_file = "{folder}/users"
anonymous = true

[authentication.jwt]
key_files = ["{folder}/keys.json"]
algorithms = ["HS256"]
groups_claim = "groups"
issuer = "https://issuer.example"
audiences = ["sterna"]

{hook}

[authorization]
admins = ["anonymous"]
on_lost_right = "{on_lost_right}"

[[authorization.group]]
name = "ops"

[[authorization.rule]]
groups = ["ops"]
topics = ["vault/#"]

[[authorization.rule]]
effect = "deny"
actions = ["subscribe"]
topics = ["{denied}", "vault/#"]
"""


class Hook(http.server.BaseHTTPRequestHandler):
    """The webhook: each name is its own password. Its groups are those that the suite sets."""

    groups: list[str] = []
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        is_known = asked.get("user") == "hooked" == asked.get("password")
        answer = {"result": "allow", "groups": Hook.groups} if is_known else {"result": "deny"}
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


class Doors(World):
    """A broker with all these doors. Without the webhook, tokens alone say what else is said of clients, and that is no
    rules."""

    def __init__(self, has_hook: bool = True):
        self.has_hook = has_hook
        self.hook = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
        threading.Thread(target=self.hook.serve_forever, daemon=True).start()
        self.http, self.h3, self.mqtts = free_ports(3)
        self.on_lost_right = "nothing"
        super().__init__()
        key = base64.urlsafe_b64encode(SECRET).rstrip(b"=").decode()
        (FOLDER / "keys.json").write_text(json.dumps({"keys": [{"kty": "oct", "k": key}]}))
        self.authority = authority("authority")
        (FOLDER / "ca.pem").write_bytes(self.authority[0].public_bytes(serialization.Encoding.PEM))

    def deny(self, topics: str) -> None:
        url = f"http://127.0.0.1:{self.hook.server_port}/"
        hook = f'[webhook]\nauthentication_url = "{url}"' if self.has_hook else ""
        text = CONFIG.format(folder=FOLDER, mqtt=self.mqtt, admin=self.admin, http=self.http, h3=self.h3,
                             mqtts=self.mqtts, hook=hook, denied=topics, on_lost_right=self.on_lost_right)
        (FOLDER / "sterna.toml").write_text(text)

    def is_resting(self, name: str) -> list[bool]:
        """Of each subscription of the session of a name, as the admin API says it."""
        with http_request(self.admin, "GET", f"/admin/v1/sessions?name={quote(name, safe='')}") as answer:
            (session,) = json.load(answer)["items"]
        path = f"/admin/v1/sessions/{quote(name, safe='')}/subscriptions"
        if session["user"] is not None:
            path += f"?user={quote(session['user'], safe='')}"
        with http_request(self.admin, "GET", path) as answer:
            return [item["resting"] for item in json.load(answer)["items"]]


class http_request:
    """A request of its own connection."""

    def __init__(self, port: int, method: str, target: str, content: bytes | None = None):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        self.connection.request(method, target, body=content)
        self.answer = self.connection.getresponse()

    def __enter__(self) -> http.client.HTTPResponse:
        if self.answer.status >= 300:
            raise Failure(f"{self.answer.status}: {self.answer.read().decode()}")
        return self.answer

    def __exit__(self, *_: object) -> None:
        self.connection.close()


def certificate(name: str, issuer, is_authority: bool):
    """A certificate and its key; `issuer` is another such pair, or None."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.timezone.utc)
    built = (x509.CertificateBuilder().subject_name(subject).issuer_name(issuer[0].subject if issuer else subject)
             .public_key(key.public_key()).serial_number(x509.random_serial_number())
             .not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=1))
             .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True))
    return built.sign(issuer[1] if issuer else key, hashes.SHA256()), key


def authority(name: str):
    return certificate(name, None, True)


class Came:
    """What a reader got."""

    def __init__(self, world: Doors, name: str):
        self.world, self.name, self.came = world, name, queue.Queue()
        self.session = name

    def wants(self, *payloads: str) -> None:
        """These come next, and no others."""
        for wanted in payloads:
            try:
                got = self.came.get(timeout=PATIENCE_S)
            except queue.Empty:
                raise Failure(f"{wanted!r} does not come") from None
            if isinstance(got, Exception):
                raise Failure(f"{wanted!r} does not come: {got}")
            if got != wanted:
                raise Failure(f"{got!r} came, not {wanted!r}")

    def is_connected(self) -> bool:
        with http_request(self.world.http, "GET", f"/v1/sessions/{self.session}") as answer:
            return json.load(answer)["connected"]

    def is_here(self) -> None:
        """Its response is open."""
        if not self.is_connected():
            raise Failure("its response has ended")


class HttpSession(Came):
    """A named session of HTTP, as a response of lines that does not end."""

    def open(self) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", self.world.http, timeout=PATIENCE_S)
        self.connection.request("GET", f"/v1/topics/{self.name}/%23?session={self.session}")
        answer = self.connection.getresponse()
        if answer.status != 200:
            raise Failure(f"{answer.status}: {answer.read().decode()}")
        self.socket = self.connection.sock
        threading.Thread(target=self.read, args=(answer, self.came), daemon=True).start()

    def read(self, answer: http.client.HTTPResponse, came: queue.Queue) -> None:
        try:
            for line in answer:
                message = json.loads(line) if line.strip() and line.strip() != b":" else None
                if message:
                    target = f"/v1/sessions/{self.session}/ack"
                    content = json.dumps({"ids": [message["id"]]}).encode()
                    with http_request(self.world.http, "POST", target, content):
                        came.put(message["payload"])
            came.put(Failure("the response has ended"))
        except (OSError, Failure, http.client.HTTPException, ValueError) as error:
            came.put(error)

    def leave(self) -> None:
        # The thread that reads has the response: it is closed under it.
        self.connection.sock.shutdown(2)
        self.connection.close()
        wait_until("the session is away", lambda: not self.is_connected())
        self.came = queue.Queue()


class Poll(Came):
    """A session that is polled by curl: a next poll follows each answer, and acknowledges it."""

    def open(self) -> None:
        self.target = f"/v1/topics/{self.name}/%23?session={self.session}&wait=2m&max=1"
        self.process: subprocess.Popen | None = None
        self.is_over = False
        threading.Thread(target=self.poll, args=(self.came,), daemon=True).start()
        wait_until("the first poll", self.is_known)

    def is_known(self) -> bool:
        try:
            return self.is_connected()
        except Failure:
            return False

    def poll(self, came: queue.Queue) -> None:
        while not self.is_over:
            command = ["curl", "-s", "-i", "-H", "accept: application/json", "--path-as-is",
                       f"http://127.0.0.1:{self.world.http}{self.target}"]
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
            head, _, content = self.process.communicate()[0].decode().replace("\r\n", "\n").partition("\n\n")
            if self.is_over:
                return
            if " 200" not in head.split("\n")[0]:
                came.put(Failure(head + content))
                return
            link = next(line for line in head.split("\n") if line.lower().startswith("link:"))
            self.target = link.split("<")[1].split(">")[0]
            for message in json.loads(content):
                came.put(message["payload"])

    def wants(self, *payloads: str) -> None:
        super().wants(*payloads)
        # The next poll has come in, with its acknowledgement.
        wait_until("the next poll", self.is_connected)

    def leave(self) -> None:
        self.is_over = True
        if self.process:
            self.process.kill()
        wait_until("the session is away", lambda: not self.is_connected())
        self.came = queue.Queue()


def variable(number: int) -> bytes:
    """An integer of variable length (RFC 9000, section 16)."""
    return bytes([number]) if number < 64 else (0x4000 | number).to_bytes(2, "big")


def take_variable(data: bytes, at: int) -> tuple[int, int]:
    length = 1 << (data[at] >> 6)
    value = int.from_bytes(data[at:at + length], "big") & ((1 << (8 * length - 2)) - 1)
    return value, at + length


class Transport(QuicConnectionProtocol):
    """A connection with one WebTransport session."""

    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.http = H3Connection(self._quic, enable_webtransport=True)
        self.status: asyncio.Future = asyncio.get_running_loop().create_future()
        self.content = b""
        self.session = self.answers = None

    def open(self, path: str) -> None:
        self.session = self._quic.get_next_available_stream_id()
        self.http.send_headers(self.session, [
            (b":method", b"CONNECT"), (b":scheme", b"https"), (b":authority", b"localhost"),
            (b":path", path.encode()), (b":protocol", b"webtransport")])
        self.transmit()

    def acknowledge(self, number: int) -> None:
        if self.answers is None:
            self.answers = self.http.create_webtransport_stream(self.session)
        frame = variable(number) + b"\x80"
        self._quic.send_stream_data(self.answers, variable(len(frame)) + frame)
        self.transmit()

    def quic_event_received(self, event) -> None:
        if isinstance(event, ConnectionTerminated):
            self.came.put(Failure(f"the connection ended with {event.error_code:#x}"))
        for one in self.http.handle_event(event):
            if isinstance(one, HeadersReceived) and one.stream_id == self.session:
                if not self.status.done():
                    self.status.set_result(int(dict(one.headers)[b":status"]))
                elif one.stream_ended:
                    self.came.put(Failure("the session ended"))
            elif isinstance(one, WebTransportStreamDataReceived):
                self.content += one.data
                self.take_frames()

    def take_frames(self) -> None:
        while self.content:
            length, at = take_variable(self.content, 0)
            if len(self.content) < at + length:
                return
            frame, self.content = self.content[at:at + length], self.content[at + length:]
            if not frame:
                continue
            number, at = take_variable(frame, 0)
            at += 1
            for _ in range(2):
                length, at = take_variable(frame, at)
                at += length
            self.acknowledge(number)
            self.came.put(frame[at:].decode())


class WebTransport(Came):
    """A named session over WebTransport, with aioquic."""

    def open(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.over: asyncio.Event | None = None
        opened: queue.Queue = queue.Queue()
        self.running = asyncio.run_coroutine_threadsafe(self.run(opened, self.came), self.loop)
        status = opened.get(timeout=PATIENCE_S)
        if status != 200:
            raise Failure(f"{status}")

    async def run(self, opened: queue.Queue, came: queue.Queue) -> None:
        made = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, max_datagram_frame_size=65536,
                                 server_name="localhost", verify_mode=ssl.CERT_NONE)
        self.over = asyncio.Event()
        try:
            async with connect("127.0.0.1", self.world.h3, configuration=made, create_protocol=Transport) as one:
                one.came = came
                # The server's settings allow it.
                while one.http.received_settings is None:
                    await asyncio.sleep(0.01)
                one.open(f"/v1/topics/{self.name}/%23?session={self.session}")
                opened.put(await asyncio.wait_for(one.status, PATIENCE_S))
                await self.over.wait()
        except (OSError, asyncio.TimeoutError) as error:
            opened.put(error)

    def leave(self) -> None:
        assert self.over
        self.loop.call_soon_threadsafe(self.over.set)
        self.running.result(PATIENCE_S)
        wait_until("the session is away", lambda: not self.is_connected())
        self.came = queue.Queue()


class Mqtt(Reader):
    """A reader of MQTT; how its client shows who it is, is its row's."""

    def __init__(self, world: Doors, name: str, user: str | None, password: str | None):
        self.filter = f"{name}/#"
        self.who = (user, password)
        super().__init__(world, name, name)

    def connect(self) -> bool:
        self.client.username_pw_set(*self.who)
        return super().connect()

    def open(self) -> None:
        # A client of Paho that has left is not used again: its queue of what came would mix.
        again = type(self)(self.world, self.client._client_id.decode(), *self.who)
        self.client, self.came, self.events = again.client, again.came, again.events
        if not self.connect() and (code := self.subscribe(self.filter)) != 1:
            raise Failure(f"SUBACK {code:#x}")

    def is_here(self) -> None:
        if not self.events.empty():
            raise Failure(f"{self.events.get()}")


class Certified(Mqtt):
    """The same over TLS, with a certificate."""

    def connect(self) -> bool:
        self.client.username_pw_set(None)
        self.client.tls_set(certfile=str(FOLDER / "device.pem"), keyfile=str(FOLDER / "device.key"),
                            cert_reqs=ssl.CERT_NONE)
        self.client.tls_insecure_set(True)
        port, self.world.mqtt = self.world.mqtt, self.world.mqtts
        try:
            return Reader.connect(self)
        finally:
            self.world.mqtt = port


def token(groups: list[str]) -> str:
    """A token by HS256."""
    def part(content: bytes) -> str:
        return base64.urlsafe_b64encode(content).rstrip(b"=").decode()

    claims = {"iss": "https://issuer.example", "aud": "sterna", "sub": "tokened", "exp": int(time.time()) + 3_600,
              "groups": groups}
    signed = f'{part(json.dumps({"alg": "HS256"}).encode())}.{part(json.dumps(claims).encode())}'
    return f"{signed}.{part(hmac.new(SECRET, signed.encode(), hashlib.sha256).digest())}"


def writer_of(world: Doors, name: str) -> Reader:
    writer = Reader(world, f"{name}-writer", "bob")
    writer.connect()
    return writer


def retain(writer: Reader, topic: str, payload: str) -> None:
    writer.client.publish(topic, payload, qos=1, retain=True).wait_for_publish(PATIENCE_S)


def goes_and_comes_back(world: Doors, reader, name: str, is_given: bool) -> None:
    """A rule is wrong for a moment: while the reader is here, twice, and while it is away.

    A client that may be given rules of its own is not judged while it is away: those come before the file's.
    """
    topic, value = f"{name}/x", f"{name}/value"
    writer = writer_of(world, name)
    reader.open()
    retain(writer, value, "old")
    retain(writer, f"{name}/same", "same")
    writer.publish(topic, "before")
    reader.wants("old", "same", "before")
    world.deny(f"{name}/#")
    world.reload((1, 1))
    writer.publish(topic, "while denied")
    retain(writer, value, "new")
    reader.is_here()
    if world.is_resting(session_name(reader)) != [True]:
        raise Failure("the admin API does not say that it rests")
    world.deny("else")
    world.reload((0, 0))
    reader.wants("new")
    writer.publish(topic, "after")
    reader.wants("after")
    if world.is_resting(session_name(reader)) != [False]:
        raise Failure("the admin API says that it rests")
    world.deny(f"{name}/#")
    world.reload((1, 1))
    world.deny("else")
    world.reload((0, 0))
    writer.publish(topic, "again")
    reader.wants("again")
    reader.leave()
    writer.publish(topic, "waits")
    world.deny(f"{name}/#")
    world.reload((0, 0) if is_given else (1, 1))
    writer.publish(topic, "while away and denied")
    world.deny("else")
    world.reload((0, 0))
    writer.publish(topic, "kept")
    reader.open()
    reader.wants("waits", *(["while away and denied"] if is_given else []), "kept")
    writer.publish(topic, "last")
    reader.wants("last")
    reader.leave()
    writer.leave()


def session_name(reader) -> str:
    """As the admin API has it."""
    return reader.client._client_id.decode() if isinstance(reader, Reader) else f"$http/{reader.session}"


def is_told_on_request(world: Doors, reader, name: str) -> None:
    """With `on_lost_right = "disconnect"` it ends."""
    reader.open()
    world.on_lost_right = "disconnect"
    world.deny("else")
    world.reload((0, 0))
    world.deny(f"{name}/#")
    world.reload((1, 1))
    try:
        if isinstance(reader, Reader):
            reader.event("disconnect")
        else:
            wait_until("the end of its response", lambda: not reader.is_connected())
    finally:
        world.on_lost_right = "nothing"
        world.deny("else")
        world.reload((0, 0))


def row(make, is_given: bool = False):
    def run(world: Doors, name: str) -> None:
        goes_and_comes_back(world, make(world, name), name, is_given)
        is_told_on_request(world, make(world, f"{name}-told"), f"{name}-told")
    return run


def given_and_taken(world: Doors, name: str, set_groups, make) -> None:
    """A group that gives the right is gone when the client comes back, and is there the time after."""
    topic = "vault/" + name
    writer = writer_of(world, name)
    set_groups(["ops"])
    reader = make(world, name)
    reader.filter = topic
    reader.open()
    writer.publish(topic, "before")
    reader.wants("before")
    reader.leave()
    writer.publish(topic, "waits")
    set_groups([])
    poor = make(world, name)
    poor.filter = topic
    poor.open()
    poor.is_here()
    if world.is_resting(name) != [True]:
        raise Failure("it does not rest")
    writer.publish(topic, "without a right")
    poor.is_here()
    poor.leave()
    writer.publish(topic, "away and without a right")
    set_groups(["ops"])
    reader.open()
    writer.publish(topic, "after")
    reader.wants("after")
    reader.leave()
    writer.leave()


def by_token(world: Doors, name: str) -> None:
    """Where the webhook knows clients, too, nobody knows what is said of one that is away."""
    def make(world: Doors, name: str) -> Mqtt:
        return Mqtt(world, name, "tokened", token(groups))

    def set_groups(now: list[str]) -> None:
        groups[:] = now

    groups: list[str] = []
    row(make, is_given=world.has_hook)(world, name)
    given_and_taken(world, f"{name}-group", set_groups, make)


def by_webhook(world: Doors, name: str) -> None:
    def make(world: Doors, name: str) -> Mqtt:
        return Mqtt(world, name, "hooked", "hooked")

    def set_groups(now: list[str]) -> None:
        Hook.groups = now
        # Its answers are remembered, and a reload with other settings forgets them.
        world.deny(f"else{len(now)}")
        world.admin_call("reload")

    row(make, is_given=True)(world, name)
    given_and_taken(world, f"{name}-group", set_groups, make)


def by_certificate(world: Doors, name: str) -> None:
    pair = certificate("device", world.authority, False)
    (FOLDER / "device.pem").write_bytes(pair[0].public_bytes(serialization.Encoding.PEM))
    (FOLDER / "device.key").write_bytes(pair[1].private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))

    # Its name is one of the files, so it is known also while the client is away.
    world.users(["ann", "bob", "device"])
    world.admin_call("reload")

    def make(world: Doors, name: str) -> Certified:
        return Certified(world, name, None, None)

    row(make)(world, name)
    # An authority that is missing for a moment ends the connection, and takes nothing from the session.
    reader, writer = make(world, f"{name}-ca"), writer_of(world, f"{name}-ca")
    reader.open()
    reader.client.reconnect_delay_set(3_600, 3_600)
    ca = (FOLDER / "ca.pem").read_bytes()
    (FOLDER / "ca.pem").write_bytes(authority("another")[0].public_bytes(serialization.Encoding.PEM))
    world.admin_call("reload")
    reader.event("disconnect")
    reader.end()
    writer.publish(f"{name}-ca/x", "meanwhile")
    (FOLDER / "ca.pem").write_bytes(ca)
    world.admin_call("reload")
    reader.open()
    reader.wants("meanwhile")
    reader.leave()
    writer.leave()


def topic_deleted(world: Doors, name: str) -> None:
    """A topic is deleted over HTTP while the right to it is gone: the subscription does not come back with the right."""
    writer = writer_of(world, name)
    for is_away in (False, True):
        topic = f"{name}/{is_away}"
        reader = Reader(world, topic, "ann")
        reader.connect()
        reader.subscribe(topic)
        reader.subscribe(f"{name}-open")
        if is_away:
            reader.leave()
        world.deny(topic)
        world.reload((1, 1))
        retain(writer, topic, "while denied")
        with http_request(world.http, "DELETE", f"/v1/topics/{topic}"):
            pass
        world.deny("else")
        world.reload((0, 0))
        if world.is_resting(topic) != [False]:
            raise Failure(f"{world.is_resting(topic)} are left")
        writer.publish(topic, "after")
        writer.publish(f"{name}-open", "open")
        if is_away:
            reader = Reader(world, topic, "ann")
            if not reader.connect():
                raise Failure("the session is gone")
        reader.wants("open")
        reader.leave()
    writer.leave()


ROWS = {
    "http-session": row(HttpSession),
    "http-poll": row(Poll),
    "webtransport": row(WebTransport),
    "certificate": by_certificate,
    "webhook": by_webhook,
    "token": by_token,
    "topic-deleted": topic_deleted,
}
# Rows of a broker without the webhook.
ROWS_ALONE = {"groups-of-a-token": by_token}


def main() -> None:
    report, words = Report(), sys.argv[1:]
    for has_hook, rows in ((True, ROWS), (False, ROWS_ALONE)):
        wanted = {name: run for name, run in rows.items() if not words or any(word in name for word in words)}
        if not wanted:
            continue
        with Doors(has_hook) as world:
            for name, run in wanted.items():
                try:
                    run(world, name)
                    report.ok(name)
                except (Failure, OSError, queue.Empty, TimeoutError, subprocess.SubprocessError) as error:
                    report.not_ok(name, repr(error))
    report.exit()


if __name__ == "__main__":
    main()
