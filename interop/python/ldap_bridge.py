"""The bridge to LDAP of docs/webhook.md, as it is printed there, between a broker and a directory.

  ldap_bridge.py [WORD]...   all rows, or those with one of the words in their name

The directory is ldap3's own, in memory. STERNA_BIN is the broker's program. Needs ldap3.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import ldap3
from ldap3.core.exceptions import LDAPSocketOpenError

from cluster_nodes import Program, free_ports, wait_until
from harness import INTEROP, Failure, Report

STERNA = os.environ["STERNA_BIN"]
FOLDER = Path(os.environ["STERNA_BUILD"]) / "ldap-bridge"
PAGE = INTEROP.parent / "docs" / "webhook.md"
PEOPLE, GROUPS = "ou=people,dc=plant,dc=example", "ou=groups,dc=plant,dc=example"
# `webhook.failures` of the configuration below: after so many the service is left alone.
FAILURES = 2
CONFIG = """
data_directory = "{folder}"

[[listener]]
url = "mqtt://127.0.0.1:{mqtt}"

[[listener]]
url = "admin://127.0.0.1:{admin}"
anonymous = true

[webhook]
authentication_url = "http://127.0.0.1:{bridge}/"
failures = {failures}
pause_ms = 600000
allow_s = 1
deny_s = 1

[guessing]
free_failures = 0
free_failures_per_address = 0
free_failures_per_user = 0

[[authorization.group]]
name = "operators"

[[authorization.rule]]
groups = ["operators"]
topics = ["plant"]

[[authorization.rule]]
topics = ["own/%u"]

[[authorization.rule]]
effect = "deny"
topics = ["#"]
"""
# Exit codes of the client commands: the reason code of MQTT 5.
BAD_PASSWORD, NOT_AUTHORIZED, UNAVAILABLE = 134, 135, 136


class Directory:
    """What the example finds in place of a server."""

    def __init__(self):
        self.server = ldap3.Server("ldaps://ldap.plant.example")
        self.is_down = False
        directory = self

        class Connection(ldap3.Connection):
            def __init__(self, server, *arguments, **settings):
                super().__init__(server, *arguments, client_strategy=ldap3.MOCK_SYNC, **settings)

            def bind(self, *arguments, **settings):
                if directory.is_down:
                    raise LDAPSocketOpenError("the directory does not answer")
                return super().bind(*arguments, **settings)

        entries = Connection(self.server)
        for user in ("ann", "bob", "carl", "dora"):
            entries.strategy.add_entry(
                f"uid={user},{PEOPLE}", {"objectClass": "person", "uid": user, "userPassword": f"{user}-pass"}
            )
        entries.strategy.add_entry(
            f"cn=operators,{GROUPS}",
            {"objectClass": "groupOfNames", "cn": "operators", "member": f"uid=ann,{PEOPLE}"},
        )
        ldap3.Server = lambda *_arguments, **_settings: self.server
        ldap3.Connection = Connection


def start_bridge(port: int) -> None:
    """Runs the example of the page, on another port."""
    found = re.search(r"^## Example: LDAP$.*?^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    if not found:
        raise Failure("the page has no example in Python")
    code, count = re.subn(r"\b8700\b", str(port), found[1])
    # A line for each request is not wanted here.
    code, quiet = re.subn(r"(class Bridge\(.*\):\n)", r"\1    log_message = lambda *_: None\n", code)
    if (count, quiet) != (1, 1):
        raise Failure("the example has no port 8700, or no class Bridge")
    threading.Thread(target=exec, args=(compile(code, str(PAGE), "exec"), {}), daemon=True).start()


class World:
    def __init__(self):
        self.directory = Directory()
        self.mqtt, self.admin, bridge = free_ports(3)
        start_bridge(bridge)
        self.folder = FOLDER
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True, mode=0o700)
        config = FOLDER / "sterna.toml"
        config.write_text(
            CONFIG.format(folder=FOLDER / "data", mqtt=self.mqtt, admin=self.admin, bridge=bridge, failures=FAILURES)
        )
        self.broker = Program([STERNA, "serve", "--config", str(config)], FOLDER / "log")

    def __enter__(self) -> World:
        self.broker.start()
        wait_until("the broker is ready", self.is_ready)
        return self

    def __exit__(self, *_: object) -> None:
        self.broker.stop()

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/readyz", timeout=60) as answer:
                return answer.status == 200
        except OSError:
            return False

    def publish(self, user: str, password: str, topic: str, expected: int) -> None:
        command = [STERNA, "pub", "-L", f"mqtt://127.0.0.1:{self.mqtt}", "-q", "1", "-m", "x", "-t", topic,
                   "-u", user, "-P", password]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        if done.returncode != expected:
            raise Failure(f"{user}: exit code {done.returncode}, not {expected}: {done.stderr}")


def passwords(world: World) -> None:
    world.publish("ann", "ann-pass", "own/ann", 0)
    world.publish("ann", "bob-pass", "own/ann", BAD_PASSWORD)
    world.publish("eve", "ann-pass", "own/eve", BAD_PASSWORD)
    world.publish("ann", "", "own/ann", BAD_PASSWORD)


def groups(world: World) -> None:
    world.publish("ann", "ann-pass", "plant", 0)
    world.publish("bob", "bob-pass", "plant", NOT_AUTHORIZED)


def names(world: World) -> None:
    """A name is a value, and no part of another name or of a filter."""
    for name in (f"ann,{PEOPLE}", "ann)(uid=*", "*", "ann\\", f"x,uid=ann,{PEOPLE}"):
        world.publish(name, "ann-pass", "own/ann", BAD_PASSWORD)


def guesses(world: World) -> None:
    """Wrong passwords are no failures of the service, or whoever guesses would shut out everybody."""
    for number in range(FAILURES + 1):  # each another one, for answers are remembered
        world.publish("ann", f"guess-{number}", "own/ann", BAD_PASSWORD)
    world.publish("carl", "carl-pass", "own/carl", 0)


def outage(world: World) -> None:
    """The last row: after this the broker leaves the service alone."""
    world.directory.is_down = True
    for _ in range(FAILURES):
        world.publish("dora", "dora-pass", "own/dora", UNAVAILABLE)


ROWS = {"passwords": passwords, "groups": groups, "names": names, "guesses": guesses, "outage": outage}


def main() -> None:
    report = Report()
    wanted = {name: row for name, row in ROWS.items() if not sys.argv[1:] or any(word in name for word in sys.argv[1:])}
    with World() as world:
        for name, row in wanted.items():
            try:
                row(world)
                report.ok(name)
            except (Failure, TimeoutError) as error:
                report.not_ok(name, str(error))
    report.exit()


if __name__ == "__main__":
    main()
