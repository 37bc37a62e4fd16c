"""Who is refused learns why: handshakes of OpenSSL and curl that fail, small records, foreign names of protocols,
certificates as tutorials make them, and events through nginx as it is installed.

  refusals.py [WORD]...   all rows, or those with one of the words in their name

The suite has a broker of its own. STERNA_BIN is the broker's program. Needs openssl, curl and nginx.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import wire
from cluster_nodes import Program, free_ports, wait_until
from harness import Failure, Report

STERNA = os.environ["STERNA_BIN"]
FOLDER = Path(os.environ["STERNA_BUILD"]) / "refusals"
CONFIG = """
data_directory = "{folder}/data"

[[listener]]
url = "mqtts://127.0.0.1:{tls}"

[[listener]]
url = "ws://127.0.0.1:{ws}"

[[listener]]
url = "http://127.0.0.1:{http}"

[[listener]]
url = "mqtt://127.0.0.1:{mqtt}"

[[listener]]
url = "amqp://127.0.0.1:{amqp}"

[tls]
mqtt_alpn = ["x-amzn-mqtt-ca"]
{tls_settings}

[authentication]
anonymous = true

[log]
repeat_interval_ms = 0
"""
NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.err; {user} events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://127.0.0.1:{http}; }} }}
}}
"""
UPGRADE = {
    "Host": "localhost", "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol": "mqtt",
}
# What OpenSSL does, and what the line says: its reason, and a part of its detail.
HANDSHAKES = {
    "cbc": (["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-SHA256:@SECLEVEL=0"], "ciphers", "CBC"),
    "rsa key exchange": (["-tls1_2", "-cipher", "AES128-GCM-SHA256:@SECLEVEL=0"], "ciphers", "no common cipher suite"),
    "dhe": (["-tls1_2", "-cipher", "DHE-RSA-AES128-GCM-SHA256"], "ciphers", "no common cipher suite"),
    "rsa certificate": (["-tls1_2", "-cipher", "ECDHE-RSA-AES128-GCM-SHA256"], "ciphers", "no common"),
    "ccm": (["-tls1_3", "-ciphersuites", "TLS_AES_128_CCM_SHA256"], "ciphers", "CCM"),
    "groups": (["-tls1_3", "-groups", "P-521"], "ciphers", "no common key exchange"),
    "signatures": (["-tls1_3", "-sigalgs", "RSA-PSS+SHA256"], "ciphers", "no common signature"),
    "old version": (["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"], "version", "TLS 1.1"),
    "protocol": (["-alpn", "coap,h2"], "alpn", "coap, h2; served are mqtt, x-amzn-mqtt-ca"),
    "unknown authority": (["-verify", "4", "-verify_return_error"], "alert", "unknown_ca"),
    "unknown authority, 1.2": (["-tls1_2", "-verify", "4", "-verify_return_error"], "alert", "unknown_ca"),
}
RAW = {
    "plain mqtt": (b"\x10\x0e\0\x04MQTT\x04\2\0\x3c\0\2ws", "not_tls", "plain MQTT"),
    "plain http": (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "not_tls", "plain HTTP"),
    "plain amqp": (b"AMQP\0\1\0\0", "not_tls", "plain AMQP"),
    "ssl 2": (b"\x80\x2e\1\0\2\0\x15\0\0\0\x10" + bytes(40), "version", "SSL 2.0"),
    "garbage": (bytes(range(200, 240)), "not_tls", "something else"),
    "an alert": (b"\x15\3\3\0\2\2\x28", "alert", "handshake_failure"),
    "half a hello": (b"\x16\3\1\2\0\1\0", "abandoned", "in the middle"),
    "a broken hello": (b"\x16\3\1\0\4\1\0\0\0", "malformed", ""),
    "data first": (b"\x17\3\3\0\5hello", "malformed", ""),
}
UPGRADES = {
    "path": ("/nothere?access_token=secret", {}, "path", "/nothere; served are /mqtt"),
    "subprotocol": ("/mqtt", {"Sec-WebSocket-Protocol": "wamp"}, "subprotocol", "offers wamp; served are mqtt"),
    "no subprotocol": ("/mqtt", {"Sec-WebSocket-Protocol": None}, "subprotocol", "offers none"),
    "origin": ("/mqtt", {"Origin": "https://evil.example"}, "origin", "https://evil.example"),
    "host": ("/mqtt", {"Host": "evil.example"}, "host", "evil.example"),
    "version": ("/mqtt", {"Sec-WebSocket-Version": "8"}, "upgrade", "other than 13"),
    "no upgrade": ("/mqtt", {"Upgrade": None, "Connection": None}, "upgrade", "no request for an upgrade"),
}


class World:
    def __init__(self, tls_settings: str = ""):
        self.tls, self.ws, self.http, self.mqtt, self.amqp, self.nginx = free_ports(6)
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True, mode=0o700)
        text = CONFIG.format(
            folder=FOLDER, tls=self.tls, ws=self.ws, http=self.http, mqtt=self.mqtt, amqp=self.amqp,
            tls_settings=tls_settings,
        )
        (FOLDER / "sterna.toml").write_text(text)
        self.log = FOLDER / "log"
        self.broker = Program([STERNA, "serve", "--config", str(FOLDER / "sterna.toml")], self.log)

    def __enter__(self) -> World:
        self.broker.start()
        wait_until("the broker listens", lambda: "publish:" in self.log.read_text())
        return self

    def __exit__(self, *_: object) -> None:
        self.broker.stop()

    def line(self, act: Callable[[], object], reason: str, part: str) -> None:
        """What the log says of something that is done."""
        line = self.next_line(act, "handshake failed")
        if f'reason="{reason}"' not in line or part not in line or "peer=127.0.0.1:" not in line:
            raise Failure(line)
        if "secret" in line or "listener=" not in line:
            raise Failure(line)

    def next_line(self, act: Callable[[], object], part: str) -> str:
        before = len(self.log.read_text())
        act()
        return wait_until(
            f"a line with {part}",
            lambda: next((line for line in self.log.read_text()[before:].splitlines() if part in line), None),
        )

    def openssl(self, arguments: list[str], send: bytes = b"", port: int = 0) -> str:
        done = subprocess.run(
            ["timeout", "5", "openssl", "s_client", "-connect", f"127.0.0.1:{port or self.tls}", *arguments],
            input=send, capture_output=True, check=False,
        )
        return (done.stdout + done.stderr).decode(errors="replace")

    def send(self, port: int, data: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", port), 30) as wire:
            wire.sendall(data)
            wire.shutdown(socket.SHUT_WR)
            answer = b""
            try:
                while part := wire.recv(65536):
                    answer += part
            except ConnectionResetError:
                pass
            return answer


def upgrade(path: str, changes: dict[str, str | None]) -> bytes:
    fields = {**UPGRADE, **changes}
    lines = [f"{name}: {value}" for name, value in fields.items() if value is not None]
    return "\r\n".join([f"GET {path} HTTP/1.1", *lines, "", ""]).encode()


def records(world: World, arguments: list[str]) -> int:
    """The longest record of the server's, while a message of 20 kB comes back to who has published it."""
    flight = wire.connect(level=4, client_id="ws") + wire.subscribe(1, [("b/t", 0)], level=4)
    flight += wire.publish("b/t", b"z" * 20_000, level=4)
    said = world.openssl(["-msg", "-ign_eof", *arguments], flight)
    found = re.findall(r"<<< .*RecordHeader.*\n\s+(?:[0-9a-f]{2} ){3}([0-9a-f]{2}) ([0-9a-f]{2})", said)
    sizes = [int(high + low, 16) for high, low in found]
    if sum(sizes) < 20_000:
        raise Failure(f"the message did not come back: {said[-300:]}")
    return max(sizes)


def tls_where_there_is_none(world: World, port: int) -> None:
    line = world.next_line(lambda: world.openssl([], port=port), "TLS, and ")
    if "peer=127.0.0.1:" not in line:
        raise Failure(line)


def small_records(world: World) -> None:
    # What a cipher adds at most.
    added = 40
    for arguments, most in [
        (["-tls1_2", "-maxfraglen", "512"], 512), (["-tls1_3", "-maxfraglen", "512"], 512),
        (["-tls1_2", "-maxfraglen", "2048"], 2048), (["-tls1_2"], 1 << 14),
    ]:
        longest = records(world, arguments)
        if not most // 2 < longest <= most + added:
            raise Failure(f"{arguments}: a record of {longest} bytes")


def records_by_setting(_: World) -> None:
    with World("maximum_record_bytes = 1024") as world:
        for arguments, most in [(["-tls1_3"], 1024), (["-tls1_2", "-maxfraglen", "512"], 512)]:
            longest = records(world, arguments)
            if not most // 2 < longest <= most + 40:
                raise Failure(f"{arguments}: a record of {longest} bytes")


def foreign_name(world: World) -> None:
    said = world.openssl(["-alpn", "x-amzn-mqtt-ca"])
    if "ALPN protocol: x-amzn-mqtt-ca" not in said:
        raise Failure(said[-300:])


def shell(text: str) -> None:
    done = subprocess.run(["sh", "-ec", text], cwd=FOLDER, capture_output=True, check=False)
    if done.returncode:
        raise Failure(f"{text}: {done.stderr.decode()}")


def certificates(_: World) -> None:
    """Files as tutorials make them: the check says what is wrong."""
    shell("""
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 9 -keyout ca.key -out ca.pem -subj /CN=ca
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout good.key -out good.csr -subj /CN=localhost
openssl x509 -req -in good.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 9 -out v1.pem
printf 'subjectAltName=DNS:localhost' > san.ext
openssl x509 -req -in good.csr -CA ca.pem -CAkey ca.key -days 9 -extfile san.ext -out good.pem
printf 'basicConstraints=CA:FALSE' > no.ext
openssl x509 -req -in good.csr -CA ca.pem -CAkey ca.key -days 9 -extfile no.ext -out nameless.pem
cat ca.pem good.pem > order.pem
openssl x509 -in good.pem -outform der -out good.der
openssl pkey -in good.key -outform der -out good.key.der
openssl pkey -in good.key -aes128 -passout pass:x -out encrypted.key
openssl genrsa -aes128 -traditional -passout pass:x -out old.key 2048
openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-521 -out p521.key
openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:1024 -out short.key
openssl dsaparam -genkey -out dsa.key 1024
openssl ec -in good.key -out sec1.key
openssl pkcs12 -export -in good.pem -inkey good.key -passout pass:x -out good.p12
: > empty.pem
printf '\\357\\273\\277' > bom.pem; cat good.pem >> bom.pem
sed 's/$/\\r/' good.pem > crlf.pem; sed 's/$/\\r/' good.key > crlf.key
chmod 600 ./*.key
""")
    for certificate, key, part in [
        ("v1.pem", "good.key", "X.509 version 1"), ("order.pem", "good.key", "certificate 2 of the file"),
        ("good.der", "good.key", "openssl x509 -inform der"), ("good.pem", "good.key.der", "openssl pkey -inform der"),
        ("good.pem", "encrypted.key", "the key is encrypted"), ("good.pem", "old.key", "the key is encrypted"),
        ("good.pem", "p521.key", "P-521"), ("good.pem", "short.key", "1024 bits"), ("good.pem", "dsa.key", "DSA"),
        ("good.pem", "ca.key", "that of another certificate"), ("good.key", "good.pem", "exchanged"),
        ("good.csr", "good.key", "CSR"), ("good.p12", "good.key", "PKCS #12"), ("empty.pem", "good.key", "is empty"),
        ("nameless.pem", "good.key", "warning: check.toml:4: tls.certificate: ./nameless.pem: the certificate names no host"),
        ("ca.pem", "ca.key", "warning: check.toml:4: tls.certificate: ./ca.pem: the certificate is that of an authority"),
        ("good.pem", "good.key", ""), ("good.pem", "sec1.key", ""), ("bom.pem", "good.key", ""), ("crlf.pem", "crlf.key", ""),
    ]:
        is_good = not part or part.startswith("warning")
        (FOLDER / "check.toml").write_text(
            f'[[listener]]\nurl = "mqtts://127.0.0.1:0"\n[tls]\ncertificate = "./{certificate}"\nkey = "./{key}"\n'
        )
        done = subprocess.run(
            [STERNA, "config", "check", "--quiet", "check.toml"], cwd=FOLDER, capture_output=True, text=True, check=False
        )
        said = done.stdout + done.stderr
        if (done.returncode == 0) != is_good or part not in said or (not part and "certificate" in said):
            raise Failure(f"{certificate}, {key}: {done.returncode} {said}")


def through_nginx(world: World) -> None:
    # As root it changes to a user that has no right to the folder.
    user = "user root;" if os.getuid() == 0 else ""
    (FOLDER / "nginx.conf").write_text(NGINX.format(folder=FOLDER, port=world.nginx, http=world.http, user=user))
    nginx = Program(["nginx", "-p", str(FOLDER), "-c", str(FOLDER / "nginx.conf")], FOLDER / "nginx.log")
    nginx.start()
    url = f"http://127.0.0.1:{world.nginx}/v1/topics/t"
    try:
        wait_until("nginx answers", lambda: curl(["-o", "/dev/null", "-w", "%{http_code}", url + "?last"]) == "404")
        for accept in ["text/event-stream", "application/x-ndjson"]:
            reader = subprocess.Popen(
                ["curl", "-sN", "-H", f"Accept: {accept}", url], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            assert reader.stdout
            os.set_blocking(reader.stdout.fileno(), False)
            seen = b""

            def has_come() -> bool:
                nonlocal seen
                curl(["-X", "POST", "-d", "hello", url])
                seen += reader.stdout.read() or b""
                return b"hello" in seen

            try:
                wait_until(f"an event of {accept} passes nginx", has_come)
            finally:
                reader.kill()
                reader.wait()
    finally:
        nginx.stop()


def curl(arguments: list[str]) -> str:
    done = subprocess.run(["curl", "-s", "-m", "30", *arguments], capture_output=True, text=True, check=False)
    return done.stdout


def rows() -> dict[str, Callable[[World], None]]:
    found: dict[str, Callable[[World], None]] = {}
    for name, (arguments, reason, part) in HANDSHAKES.items():
        found[f"tls/{name}"] = lambda world, a=arguments, r=reason, p=part: world.line(lambda: world.openssl(a), r, p)
    for name, (data, reason, part) in RAW.items():
        found[f"raw/{name}"] = lambda world, d=data, r=reason, p=part: world.line(lambda: world.send(world.tls, d), r, p)
    for name, (path, changes, reason, part) in UPGRADES.items():
        request = upgrade(path, changes)
        found[f"websocket/{name}"] = lambda world, d=request, r=reason, p=part: world.line(
            lambda: world.send(world.ws, d), r, p
        )
    for name in ["mqtt", "amqp", "http", "ws"]:
        found[f"plain/TLS to {name}"] = lambda world, n=name: tls_where_there_is_none(world, getattr(world, n))
    found["records/asked for"] = small_records
    found["records/by setting"] = records_by_setting
    found["alpn/foreign name"] = foreign_name
    found["certificates"] = certificates
    found["events through nginx"] = through_nginx
    return found


def main() -> None:
    words, report = sys.argv[1:], Report()
    chosen = {name: row for name, row in rows().items() if not words or any(word in name for word in words)}
    last = {name: row for name, row in chosen.items() if row is records_by_setting}
    with World() as world:
        for name, row in chosen.items():
            if name not in last:
                run(report, name, row, world)
    for name, row in last.items():
        run(report, name, row, world)
    report.exit()


def run(report: Report, name: str, row: Callable[[World], None], world: World) -> None:
    try:
        row(world)
        report.ok(name)
    except (Failure, TimeoutError, OSError) as why:
        report.not_ok(name, str(why))


main()
