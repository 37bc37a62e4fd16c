"""The dashboard and the alerts of contrib/, run by Debian's Prometheus against a broker under load.

  - the page of metrics is valid for `promtool check metrics` and for the OpenMetrics parser of Prometheus' client, and
    counts exactly what the suite has sent;
  - a listener with TLS shows the same page to administrators alone;
  - the rules are valid, their tests pass, each of them is evaluated, and none fires for a broker in order;
  - each query of the dashboard has a result.

Standard library, `prometheus-client` (its parser alone), `prometheus` and `promtool`.
"""

from __future__ import annotations

import base64
import json
import math
import os
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from prometheus_client.openmetrics import parser

from harness import INTEROP, Failure, Report

CONTRIB = INTEROP.parent / "contrib"
STERNA = os.environ["STERNA_BIN"]
# Of certificates/users.
USER, PASSWORD = "interop", "a password of Bob's"
# How long something may take that is expected.
PATIENCE_S = 60
# Load before the queries: several scrapes, and several looks at the clients' paths.
LOAD_S = 12
# Until its clients are connected.
CONNECT_S = 3
# Messages of the exact count.
EXACT = 250


def listeners() -> dict[str, list[str]]:
    ready = json.loads(Path(os.environ["STERNA_READY_FILE"]).read_text())
    found: dict[str, list[str]] = {}
    for listener in ready["listeners"]:
        url = listener["url"]
        found.setdefault(url.split("://")[0], []).append(url)
    return found


def fetch(url: str, **parameters: str) -> str:
    if parameters:
        url += "?" + urllib.parse.urlencode(parameters)
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        return answer.read().decode()


def sterna(*arguments: str, check: bool = True) -> None:
    done = subprocess.run([STERNA, *arguments], capture_output=True, text=True, timeout=PATIENCE_S)
    if check and done.returncode != 0:
        raise Failure(f"sterna {arguments[0]}: {done.stderr}")


class Load:
    """Clients of every protocol, and everything that is refused or dropped, until it is stopped."""

    def __init__(self, urls: dict[str, list[str]]):
        self.urls = urls
        self.trust = ["--cafile", os.environ["STERNA_CA"]]
        self.stopping = threading.Event()
        self.problems: list[str] = []
        self.processes: list[subprocess.Popen] = []
        self.threads: list[threading.Thread] = []

    def client(self, *arguments: str) -> None:
        output = subprocess.DEVNULL
        self.processes.append(subprocess.Popen([STERNA, *arguments], stdout=output, stderr=output))

    def start(self) -> None:
        mqtt, tls, quic = self.urls["mqtt"][0], self.urls["mqtts"][0], self.urls["mqtt+quic"][0]
        amqp, http = self.urls["amqp"][0], self.urls["http"][0]
        places = [[mqtt], [tls, *self.trust], [quic, *self.trust], [amqp], [http]]
        for where in places:
            topic = "load/topic" if where[0] == amqp else "load/#"
            self.client("sub", *where, "-t", topic)
        # A session that outlives its connection: what it is to get goes through the store.
        self.client("sub", mqtt, "-t", "load/#", "-q", "1", "-c", "-i", "keeper")
        for where in places:
            arguments = ["-t", "load/topic", "-m", "x" * 100, "--repeat", "1000000", "--repeat-delay", "0.01"]
            self.client("pub", *where, "-q", "1", *arguments)
        # Silent connections take the room of handshakes: those above come first.
        time.sleep(CONNECT_S)
        for work in (self.refused, self.silent):
            thread = threading.Thread(target=self.again_and_again, args=(work,))
            thread.start()
            self.threads.append(thread)

    def again_and_again(self, work) -> None:
        while not self.stopping.is_set():
            try:
                work()
            except Exception as problem:  # the main thread tells
                self.problems.append(f"{work.__name__}: {problem}")
                return
            self.stopping.wait(0.3)

    def refused(self) -> None:
        """A message that no rule allows, a login without a password, a will, retained messages, another address."""
        mqtt, guarded = self.urls["mqtt"]
        sterna("pub", mqtt, "-t", "secret/a", "-m", "x", "-q", "1", check=False)
        sterna("pub", guarded, "-t", "a", "-m", "x", check=False)
        # The webhook fails.
        sterna("pub", mqtt, "-t", "asked/a", "-m", "x", "-q", "1", check=False)
        sterna("pub", mqtt, "-t", "kept", "-m", "x", "-r")
        sterna("pub", mqtt, "-t", "nobody", "-m", "x")
        sterna("pub", self.urls["mqtt+quic"][0], *self.trust, "-t", "moves", "-m", "x", "--repeat", "4",
               "--repeat-delay", "0.1", "--rebind-every", "0.2")

    def silent(self) -> None:
        """More connections in their handshake than one address may have."""
        url = urllib.parse.urlsplit(self.urls["ws"][0])
        sockets = [socket.create_connection((url.hostname, url.port)) for _ in range(16)]
        time.sleep(0.1)
        for one in sockets:
            one.close()

    def stop(self) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join()
        for process in self.processes:
            if process.poll() is not None:
                self.problems.append(f"{' '.join(process.args[1:4])} has ended: {process.returncode}")
            process.terminate()
        for process in self.processes:
            process.wait()


class Prometheus:
    """Debian's Prometheus with the files of contrib/, which scrapes every second."""

    def __init__(self, folder: Path, target: str):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        text = (CONTRIB / "prometheus" / "prometheus.yml").read_text()
        for before, after in [("127.0.0.1:9464", target), ("_interval: 10s", "_interval: 1s"),
                              ("sterna.rules.yml", str(CONTRIB / "prometheus" / "sterna.rules.yml"))]:
            if before not in text:
                raise Failure(f"contrib/prometheus/prometheus.yml has no {before}")
            text = text.replace(before, after)
        config = folder / "prometheus.yml"
        config.write_text(text)
        self.log = (folder / "prometheus.log").open("w")
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
             f"--web.listen-address=127.0.0.1:{port}"],
            stdout=self.log, stderr=self.log)
        self.until("ready", lambda: fetch(self.url + "/-/ready"))

    def until(self, what: str, look):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                found = look()
                if found:
                    return found
                why = "nothing"
            except OSError as error:
                why = str(error)
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise Failure(f"Prometheus is not {what}: {why}")
            time.sleep(0.2)

    def query(self, expression: str) -> list:
        answer = json.loads(fetch(self.url + "/api/v1/query", query=expression))
        return answer["data"]["result"]

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()
        self.log.close()


def samples(page: str, name: str) -> float:
    """The sum of all samples of a name."""
    lines = [line for line in page.splitlines() if re.match(rf"{name}[{{ ]", line)]
    if not lines:
        raise Failure(f"no {name}")
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def check_exact(report: Report, admin: str, urls: dict[str, list[str]]) -> None:
    """Counts are exact."""
    watched = {
        "sterna_messages_received_total": EXACT + 1,
        "sterna_messages_dropped_total": 1,
        "sterna_payload_received_bytes_total": 10 * EXACT + 1,
        "sterna_connects_total": 2,
        "sterna_logins_refused_total": 1,
    }
    before = fetch(admin + "/metrics")
    mqtt, guarded = urls["mqtt"]
    sterna("pub", mqtt, "-t", "exact", "-m", "0123456789", "-q", "1", "--repeat", str(EXACT))
    sterna("pub", mqtt, "-t", "secret/b", "-m", "x", "-q", "1", check=False)
    sterna("pub", guarded, "-t", "exact", "-m", "x", check=False)
    after = fetch(admin + "/metrics")
    for name, wanted in watched.items():
        grown = samples(after, name) - samples(before, name)
        if grown == wanted:
            report.ok(f"exact/{name}")
        else:
            report.not_ok(f"exact/{name}", f"{grown} instead of {wanted}")


def check_guarded(report: Report, url: str) -> None:
    """A listener with TLS, and its administrators."""
    trust = ssl.create_default_context(cafile=os.environ["STERNA_CA"])
    for user, password, path, wanted in [
        (None, None, "/readyz", 200),
        (None, None, "/metrics", 401),
        (USER, "wrong", "/metrics", 401),
        (USER, PASSWORD, "/metrics", 200),
    ]:
        request = urllib.request.Request(url + path)
        if user:
            value = base64.b64encode(f"{user}:{password}".encode()).decode()
            request.add_header("Authorization", f"Basic {value}")
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S, context=trust) as answer:
                status = answer.status
        except urllib.error.HTTPError as error:
            status = error.code
        name = f"guarded{path}/{password or 'nothing'}".replace(" ", "-")
        if status == wanted:
            report.ok(name)
        else:
            report.not_ok(name, f"{status} instead of {wanted}")


def as_classic(page: str) -> str:
    """The page as the older format has it, for `promtool`: there the name of a counter ends in `_total`."""
    counters = set(re.findall(r"^# TYPE (\S+) counter$", page, re.MULTILINE))
    lines = []
    for line in page.splitlines():
        words = line.split(" ")
        if words[0] == "#" and len(words) > 2 and words[2] in counters:
            words[2] += "_total"
        lines.append(" ".join(words))
    return "\n".join(lines) + "\n"


def check_openmetrics(report: Report, page: str) -> None:
    """The strict parser takes the page, and finds what is there."""
    try:
        families = list(parser.text_string_to_metric_families(page))
    except ValueError as error:
        report.not_ok("openmetrics/valid", str(error))
        return
    report.ok("openmetrics/valid")
    kinds = {family.name: family.type for family in families}
    for name, kind in [
        ("sterna_messages_received", "counter"),
        ("sterna_clients", "gauge"),
        ("sterna_delivery_delay_seconds", "histogram"),
        ("sterna_webhook_answer_seconds", "histogram"),
    ]:
        if kinds.get(name) == kind:
            report.ok(f"openmetrics/{name}")
        else:
            report.not_ok(f"openmetrics/{name}", f"{kinds.get(name)} instead of {kind}")
    undocumented = [family.name for family in families if not family.documentation]
    if undocumented:
        report.not_ok("openmetrics/help", f"without a help: {undocumented}")
    else:
        report.ok("openmetrics/help")


def check_tool(report: Report, name: str, command: list[str], text: str | None = None) -> None:
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=PATIENCE_S)
    if done.returncode == 0:
        report.ok(name)
    else:
        report.not_ok(name, done.stdout + done.stderr)


def check_dashboard(report: Report, prometheus: Prometheus, quic: str) -> None:
    dashboard = json.loads((CONTRIB / "grafana" / "sterna.json").read_text())
    # Two panels may have the same name.
    expected: list[tuple[str, str]] = []
    values = {"$__rate_interval": "10s", "$job": ".*", "$instance": ".*"}
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"]
            for name, value in values.items():
                expression = expression.replace(name, value)
            name = f"dashboard/{panel['title']}/{target['refId']}".replace(" ", "-")
            if "$" in expression:
                report.not_ok(name, f"a variable that is not known: {expression}")
                continue
            expected.append((name, expression))
    # On a slow machine all of it takes longer than on another. A message and its handshake take more than a round trip.
    begun = time.monotonic()
    sterna("pub", quic, "--cafile", os.environ["STERNA_CA"], "-t", "nobody", "-m", "x", "-q", "1", check=False)
    message_s = time.monotonic() - begun
    # The numbers show the load.
    for expression in [
        'sum(rate(sterna_messages_received_total{protocol="mqtt"}[10s])) > 50',
        'sum(rate(sterna_messages_sent_total{protocol="amqp"}[10s])) > 50',
        'sum(rate(sterna_messages_received_total{protocol="http"}[10s])) > 5',
        'sum(rate(sterna_messages_dropped_total{reason="not_authorized"}[10s])) > 0',
        'sum(rate(sterna_logins_refused_total{reason="no_credentials"}[10s])) > 0',
        'sum(rate(sterna_listener_refused_total{reason="half_open_per_address"}[10s])) > 0',
        'sum(rate(sterna_quic_migrations_total[10s])) > 0',
        'sum(rate(sterna_handshakes_total{kind="full"}[10s])) > 0',
        'sum(rate(sterna_webhook_questions_total{subject="authorization", outcome="failed"}[10s])) > 0',
        'histogram_quantile(0.5, sum by (le) (rate(sterna_client_round_trip_seconds_bucket{transport="quic"}[10s]))) < '
        f"{max(0.1, message_s):.3f}",
        'histogram_quantile(0.5, sum by (le) (rate(sterna_delivery_delay_seconds_bucket[10s]))) < '
        f"{max(1.0, message_s):.3f}",
        'sum(sterna_memory_bytes) / sum(process_resident_memory_bytes) > 0.9 < 1.1',
        'sum(sterna_clients{state="connected"}) >= 5',
        'sum(rate(sterna_store_sync_seconds_count[10s])) > 1',
        'sum(rate(sterna_store_written_bytes_total[10s])) > 1000',
    ]:
        expected.append(("load/" + re.sub(r"<[0-9.]+$", "", expression.replace(" ", "")), expression))
    # All of it is so at some time while the load lasts.
    missing, deadline = dict.fromkeys(expected, []), time.monotonic() + PATIENCE_S
    while missing and time.monotonic() < deadline:
        for name, expression in list(missing):
            numbers = [float(series["value"][1]) for series in prometheus.query(expression)]
            if any(math.isfinite(number) for number in numbers):
                report.ok(name)
                del missing[name, expression]
            else:
                missing[name, expression] = numbers
        time.sleep(0.5)
    for (name, expression), numbers in missing.items():
        report.not_ok(name, f"no result but {numbers}: {expression}")


def check_rules(report: Report, prometheus: Prometheus) -> None:
    def evaluated():
        groups = json.loads(fetch(prometheus.url + "/api/v1/rules"))["data"]["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        return rules if rules and all(rule["health"] != "unknown" for rule in rules) else None

    for rule in prometheus.until("done with the rules", evaluated):
        name = f"alert/{rule['name']}"
        if rule["health"] != "ok":
            report.not_ok(name, rule.get("lastError", rule["health"]))
        elif rule["state"] == "firing":
            report.not_ok(name, f"it fires: {rule['alerts']}")
        else:
            report.ok(name)


def main() -> None:
    report = Report()
    urls = listeners()
    admin = urls["admin"][0].replace("admin://", "http://")
    rules = CONTRIB / "prometheus"
    check_tool(report, "rules/valid", ["promtool", "check", "rules", str(rules / "sterna.rules.yml")])
    check_tool(report, "rules/tests", ["promtool", "test", "rules", str(rules / "sterna.rules_test.yml")])
    check_exact(report, admin, urls)
    check_guarded(report, urls["admins"][0].replace("admins://", "https://"))
    with tempfile.TemporaryDirectory(dir=os.environ["STERNA_BUILD"]) as folder:
        load = Load(urls)
        prometheus = None
        try:
            prometheus = Prometheus(Path(folder), admin.replace("http://", ""))
            load.start()
            time.sleep(LOAD_S)
            check_dashboard(report, prometheus, urls["mqtt+quic"][0])
            check_rules(report, prometheus)
            page = fetch(admin + "/metrics")
            check_tool(report, "page/valid", ["promtool", "check", "metrics"], as_classic(page))
            check_openmetrics(report, page)

            def is_all_scraped() -> bool:
                # What comes to the page between two scrapes is in the next one.
                count = sum(not line.startswith("#") for line in fetch(admin + "/metrics").splitlines())
                scraped = prometheus.query("scrape_samples_scraped")
                return [float(series["value"][1]) for series in scraped] == [count]

            try:
                prometheus.until("all of the page is scraped", is_all_scraped)
                report.ok("page/scraped")
            except Failure as why:
                report.not_ok("page/scraped", str(why))
        finally:
            load.stop()
            if prometheus is not None:
                prometheus.stop()
        if load.problems:
            report.not_ok("load", "; ".join(load.problems))
        else:
            report.ok("load")
    report.exit()


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        print(f"not ok prometheus: {' '.join(str(failure).split())}", flush=True)
        sys.exit(1)
