#!/usr/bin/env python3
"""The smallest rival: datagrams with an answer each, and the gateway that hands them over by MQTT.

It speaks no CoAP. The test is of the lab, which needs a device and a gateway (docs/lab.md).
"""

import json
import select
import socket
import struct
import sys
import time
from urllib.parse import urlsplit


def device() -> None:
    task = json.loads(sys.stdin.readline())
    place = urlsplit(task["url"])
    assert place.scheme == "coap" and task["role"] == "publisher", task
    link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    link.connect((place.hostname, place.port))
    link.settimeout(1.0)
    print(json.dumps({"event": "ready"}), flush=True)
    sys.stdin.readline()
    first = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    for number in range(task["messages"]):
        at = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        payload = struct.pack(">IQ", number, at).ljust(task["payload_bytes"], b"\x5a")
        while True:
            link.send(payload)
            try:
                link.recv(16)
                break
            except TimeoutError:
                pass
    print(json.dumps({"event": "finished"}), flush=True)
    sys.stdin.read()
    last = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    print(json.dumps({"event": "result", "first_ns": first, "last_ns": last}), flush=True)


def gateway(options: dict) -> None:
    host, port = options["--to"].rsplit(":", 1)
    broker = socket.create_connection((host, int(port)))
    name = b"rival"
    body = b"\0\4MQTT\4\2\0\0" + struct.pack(">H", len(name)) + name
    broker.sendall(bytes([0x10, len(body)]) + body)
    assert broker.recv(4) == b"\x20\2\0\0"
    place = urlsplit(options["--listen"])
    assert place.scheme == "coap", place
    link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    link.bind((place.hostname, place.port))
    print(link.getsockname()[1], flush=True)
    devices = set()
    while True:
        ready, _, _ = select.select([sys.stdin, link], [], [])
        if sys.stdin in ready:
            break
        payload, sender = link.recvfrom(2048)
        devices.add(sender)
        body = struct.pack(">H", 5) + b"lab/0" + payload
        assert len(body) < 128
        broker.sendall(bytes([0x30, len(body)]) + body)
        link.sendto(b"ok", sender)
    print(json.dumps({"all": len(devices), "early": 0}), flush=True)


if sys.argv[1] == "device":
    device()
else:
    gateway(dict(zip(sys.argv[2::2], sys.argv[3::2])))
