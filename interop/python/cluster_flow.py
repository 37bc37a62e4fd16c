"""Rows of the cluster's suite about NATS that is slow: publishers wait, and nothing is refused or lost.

Standard library only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time

from cluster_nodes import PATIENCE_S, Cluster, wait_until
from harness import Failure

STERNA = os.environ["STERNA_BIN"]
# HTTP has one request at a time.
MESSAGES = {"mqtt": 4_000, "amqp": 4_000, "http": 400}
# NATS stands still several times, each time for no longer than so many times so long: less than `cluster.patience_ms`, after
# which messages are refused.
STILL_S, LOOKS, TIMES = 1.0, 8, 3
# Bytes that a message is charged beside its body.
OVERHEAD_BYTES = 64


def slow(cluster: Cluster, protocol: str) -> None:
    """All servers of NATS stand still again and again, while a client publishes as fast as it may."""
    first, second, _ = cluster.nodes
    topic, count = f"slow/{protocol}", MESSAGES[protocol]
    before = first.figure("sterna_cluster_refused_messages_total")
    with subprocess.Popen([STERNA, "sub", second.url("mqtt"), "-t", topic, "-q", "1"],
                          stdout=subprocess.PIPE, text=True) as reader:
        got: list[str] = []
        assert reader.stdout
        lines = reader.stdout
        threading.Thread(target=lambda: got.extend(line.rstrip("\n") for line in lines), daemon=True).start()
        wait_until("its filter is known", lambda: first.figure("sterna_cluster_filters") == 1)
        publisher = subprocess.Popen(
            [STERNA, "pub", first.url(protocol), "-t", topic, "-q", "1", "-l"],
            stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        try:
            assert publisher.stdin
            pipe = publisher.stdin

            def write() -> None:
                for number in range(count):
                    pipe.write(f"{number}\n")
                pipe.close()

            thread = threading.Thread(target=write)
            thread.start()
            for _ in range(TIMES):
                time.sleep(0.2)
                for server in cluster.nats:
                    server.stand_still()
                # A slow machine needs a while until the client has sent all that it may.
                later = -1.0
                for _ in range(LOOKS):
                    time.sleep(STILL_S)
                    earlier, later = later, first.figure("sterna_cluster_waiting_bytes")
                    if earlier == later:
                        break
                for server in cluster.nats:
                    server.send(signal.SIGCONT)
                # What waits is what the client may have on its way by its protocol, and no more.
                if later != earlier or later > count * OVERHEAD_BYTES / 2:
                    raise Failure(f"{earlier} bytes waited, and then {later}")
            thread.join(PATIENCE_S)
            if code := publisher.wait(PATIENCE_S):
                raise Failure(f"pub ended with {code}: {publisher.stderr.read() if publisher.stderr else ''}")
            wait_until(f"{count} messages", lambda: len(got) >= count)
        finally:
            for server in cluster.nats:
                server.send(signal.SIGCONT)
            publisher.kill()
            publisher.wait()
            reader.kill()
        if got != [str(number) for number in range(count)]:
            raise Failure(f"{len(got)} came, and not in order or not once")
    if (refused := first.figure("sterna_cluster_refused_messages_total") - before) != 0:
        raise Failure(f"{refused} messages were refused")
    for node in cluster.nodes:
        wait_until("its filters are gone", lambda node=node: node.figure("sterna_cluster_filters") == 0)


ROWS = [
    (f"slow: NATS stands still while {protocol} is published", lambda cluster, protocol=protocol: slow(cluster, protocol))
    for protocol in ("mqtt", "amqp", "http")
]
