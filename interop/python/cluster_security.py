"""How a node proves itself to NATS: user and password, TLS with a client certificate, credentials files. What is wrong is
said in the log and at /readyz. And two clusters in one NATS.

  cluster_security.py [WORD]...   all rows, or those with one of the words in their name

Needs `openssl`, and on the search path `nats-server` and `nats-credentials`. Standard library only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from cluster import Reader, publish, publish_well, run_rows
from cluster_nodes import Node, Program, free_ports, wait_until
from harness import Failure

FOLDER = Path(os.environ["STERNA_BUILD"]) / "cluster-security"


def server(name: str, config: str, store: str = "8GB") -> tuple[Program, int]:
    """A single server of NATS with JetStream. Without a `store` it gives three quarters of the disk that is free."""
    folder = FOLDER / f"nats-{name}"
    folder.mkdir(parents=True)
    (port,) = free_ports(1)
    path = folder / "nats.conf"
    path.write_text(
        f'server_name: {name}\nlisten: 127.0.0.1:{port}\njetstream {{ store_dir: "{folder / "data"}", max_file_store: {store} }}\n{config}\n'
    )
    program = Program(["nats-server", "-c", str(path)], folder / "log")
    program.start()
    return program, port


class Member(Node):
    """A node with more settings of `[cluster]`."""

    def __init__(self, name: str, port: int, settings: str, scheme: str = "nats"):
        super().__init__(FOLDER / name, name, [port])
        text = self.config.read_text().replace("nats://", f"{scheme}://")
        self.config.write_text(f"{text}replicas = 1\nmaximum_backoff_ms = 200\n{settings}\n")

    def __enter__(self) -> Member:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def said(self, *words: str) -> bool:
        log = self.log.read_text(errors="replace")
        return any(all(word in line for word in words) for line in log.splitlines())

    def warnings(self) -> list[str]:
        """The last ones: a failed row of another machine has no other witness."""
        return [line for line in self.log.read_text(errors="replace").splitlines() if " WARN " in line or " ERROR " in line][-3:]


def joins(member: Member) -> None:
    with member:
        is_ready(member)


def is_ready(member: Member) -> None:
    try:
        wait_until(f"{member.name} is ready", member.is_ready)
    except TimeoutError as error:
        raise Failure(f"{error}; /readyz: {member.page('/readyz')!r}; its log: {member.warnings()}") from error


def is_refused(member: Member, ready: str, *log: str) -> None:
    """The node serves its clients as far as it loses nothing, and says to operators why it is alone."""
    with member:
        try:
            wait_until("/readyz says why", lambda: ready in member.page("/readyz"))
            wait_until("the log says why", lambda: member.said("WARN", *(log or (ready,))))
        except TimeoutError as error:
            raise Failure(f"{error}; /readyz: {member.page('/readyz')!r}; its log: {member.warnings()}") from error
        with Reader(member, "mqtt", "alone") as reader:
            if publish(member, "mqtt", "alone", "who wants it elsewhere is not known", "-q", "1").returncode == 0:
                raise Failure("a node that has not joined acknowledges a message")
            publish_well(member, "mqtt", "alone", "still served")
            if reader.wait(1) != ["still served"]:
                raise Failure(f"got {reader.lines}")


def passwords() -> None:
    config = (
        "accounts { SYS: { users: [{ user: admin, password: admin }] }, NODES: { jetstream: enabled, users: [\n"
        '  { user: sterna, password: "right", permissions: {\n'
        '      publish: ["sterna.iot.>", "$JS.API.>", "_INBOX.>"], subscribe: ["sterna.iot.>", "_INBOX.>"] } },\n'
        '  { user: narrow, password: "right", permissions: { publish: ["sterna.iot.>"], subscribe: ["_INBOX.>"] } }\n'
        "] } }\nsystem_account: SYS"
    )
    nats, port = server("passwords", config)
    try:
        secret = FOLDER / "secret"
        secret.write_text("right\n")
        wrong = FOLDER / "wrong"
        wrong.write_text("wrong\n")
        login = 'name = "iot"\nuser = "{}"\npassword_file = "{}"'
        joins(Member("password", port, login.format("sterna", secret)))
        refused = "NATS refuses this node's user, password or credentials"
        is_refused(Member("wrong-password", port, login.format("sterna", wrong)), refused)
        is_refused(Member("no-password", port, 'name = "iot"'), refused)
        is_refused(
            Member("narrow", port, login.format("narrow", secret)), "does not permit this node to", "Permissions Violation"
        )
        # The documented rights are for one name.
        other = login.replace("iot", "other")
        is_refused(
            Member("other-name", port, other.format("sterna", secret)), "does not permit this node to", "Permissions Violation"
        )
    finally:
        nats.kill()


def certificate(folder: Path, name: str, authority: str, extension: str) -> None:
    request = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}"]
    if authority == name:
        subprocess.run([*request, "-x509", "-days", "2", "-keyout", f"{name}.key", "-out", f"{name}.pem"], cwd=folder,
                       check=True, capture_output=True)
        return
    subprocess.run([*request, "-keyout", f"{name}.key", "-out", f"{name}.csr"], cwd=folder, check=True,
                   capture_output=True)
    (folder / f"{name}.ext").write_text(extension)
    subprocess.run(
        ["openssl", "x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key",
         "-CAcreateserial", "-days", "2", "-extfile", f"{name}.ext", "-out", f"{name}.pem"],
        cwd=folder, check=True, capture_output=True,
    )


def certificates() -> None:
    folder = FOLDER / "certificates"
    folder.mkdir()
    for authority in ("ours", "theirs"):
        certificate(folder, authority, authority, "")
    certificate(folder, "nats", "ours", "subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    certificate(folder, "node", "ours", "extendedKeyUsage=clientAuth\n")
    certificate(folder, "stranger", "theirs", "extendedKeyUsage=clientAuth\n")
    config = (
        f'tls {{ cert_file: "{folder}/nats.pem", key_file: "{folder}/nats.key", ca_file: "{folder}/ours.pem", '
        "verify: true, timeout: 5 }"
    )
    nats, port = server("certificates", config)
    try:
        settings = 'ca = "{0}/{1}.pem"\ncertificate = "{0}/{2}.pem"\nkey = "{0}/{2}.key"'
        joins(Member("certificate", port, settings.format(folder, "ours", "node"), "tls"))
        is_refused(
            Member("strange-certificate", port, settings.format(folder, "ours", "stranger"), "tls"),
            "TLS with each fails: see cluster.ca and cluster.certificate",
        )
        is_refused(
            Member("no-certificate", port, f'ca = "{folder}/ours.pem"', "tls"), "TLS with each fails: see cluster.ca and cluster.certificate"
        )
        is_refused(
            Member("strange-authority", port, settings.format(folder, "theirs", "node"), "tls"),
            "TLS with each fails: see cluster.ca and cluster.certificate",
        )
    finally:
        nats.kill()
    # A server without TLS gets nothing from a node that asks for it.
    nats, port = server("no-tls", "")
    try:
        is_refused(Member("downgraded", port, f'ca = "{folder}/ours.pem"', "tls"), "TLS with each fails: see cluster.ca and cluster.certificate")
    finally:
        nats.kill()


def credentials() -> None:
    folder = FOLDER / "credentials"
    folder.mkdir()
    subprocess.run(["nats-credentials", str(folder)], check=True)
    nats, port = server("credentials", f'include "{os.path.relpath(folder, FOLDER / "nats-credentials")}/operator.conf"')
    try:
        settings = 'credentials_file = "{}"'
        joins(Member("creds", port, settings.format(folder / "node.creds")))
        refused = "NATS refuses this node's user, password or credentials"
        is_refused(Member("stranger", port, settings.format(folder / "stranger.creds")), refused)
        broken = folder / "broken.creds"
        broken.write_text("not credentials\n")
        member = Member("broken", port, settings.format(broken))
        with member:
            code = member.process.wait(30)
            member.process = None
        if code == 0 or not member.said("cluster.credentials_file", "broken.creds"):
            raise Failure(f"a broken file: exit code {code}, log: {member.log.read_text()}")
    finally:
        nats.kill()


def a_small_store() -> None:
    """The inbox and the log are set aside as a whole; what is too much is said."""
    nats, port = server("small", "", "100MB")
    try:
        is_refused(Member("too-large", port, ""), "the node has not joined", "cannot join", "insufficient storage")
        joins(Member("fitting", port, "maximum_inbox_bytes = 50000000\nmaximum_log_bytes = 40000000"))
    finally:
        nats.kill()


def names() -> None:
    """Two clusters with nodes of one name in one NATS do not hear of each other."""
    nats, port = server("names", "")
    members = [
        Member(f"{cluster}-{node}", port, f'name = "{cluster}"') for cluster in ("red", "blue") for node in ("a", "b")
    ]
    for member in members:
        text = member.config.read_text()
        member.config.write_text(text.replace(f'node = "{member.name}"', f'node = "{member.name.split("-")[1]}"'))
    try:
        for member in members:
            member.start()
        for member in members:
            is_ready(member)
            wait_until("it sees its own", lambda member=member: member.figure("sterna_cluster_nodes_here") == 1)
        red, red_b, blue, blue_b = members
        with Reader(red_b, "mqtt", "x/#", "-q", "1") as one, Reader(blue_b, "mqtt", "x/#", "-q", "1") as other:
            for member in (red, blue):
                wait_until("the filter is known", lambda member=member: member.figure("sterna_cluster_filters") == 1)
            for number in range(20):
                publish_well(red, "mqtt", "x/y", f"red {number}", "-q", "1", "-r")
            publish_well(blue, "mqtt", "x/y", "blue", "-q", "1", "-r")
            one.wait(20)
            other.wait(1)
            if other.lines != ["blue"] or any(not line.startswith("red") for line in one.lines):
                raise Failure(f"got {one.lines} and {other.lines}")
        with Reader(red_b, "mqtt", "x/#") as late:
            if late.wait(1) != ["red 19"]:
                raise Failure(f"the retained message is {late.lines}")
    finally:
        for program in [*members, nats]:
            program.kill()


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    rows = [
        ("user and password", passwords),
        ("certificates", certificates),
        ("credentials files", credentials),
        ("a store of NATS that is too small", a_small_store),
        ("two clusters in one NATS", names),
    ]
    run_rows(rows, lambda row: row(), lambda _: None)


if __name__ == "__main__":
    main()
