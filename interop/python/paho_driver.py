"""Eclipse paho-mqtt (PyPI) as a driver of the common scenario: JSON lines in, JSON lines out (README.md)."""

from __future__ import annotations

import base64
import json
import queue
import socket
import ssl
import sys
import threading
from importlib.metadata import version

import paho.mqtt.client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

# The library's names of the properties.
NAMES = {
    "payload_format": "PayloadFormatIndicator", "message_expiry": "MessageExpiryInterval",
    "content_type": "ContentType", "response_topic": "ResponseTopic", "correlation_data": "CorrelationData",
    "subscription_identifiers": "SubscriptionIdentifier", "session_expiry": "SessionExpiryInterval",
    "assigned_client_id": "AssignedClientIdentifier", "server_keep_alive": "ServerKeepAlive",
    "will_delay": "WillDelayInterval", "reason_string": "ReasonString", "receive_maximum": "ReceiveMaximum",
    "topic_alias_maximum": "TopicAliasMaximum", "topic_alias": "TopicAlias", "maximum_qos": "MaximumQoS",
    "retain_available": "RetainAvailable", "user_properties": "UserProperty",
    "maximum_packet_size": "MaximumPacketSize",
    "subscription_identifiers_available": "SubscriptionIdentifierAvailable",
    "shared_subscription_available": "SharedSubscriptionAvailable",
}
# The library does not read the server's receive maximum; the application sets the window before it connects.
WINDOW = 20

# Callbacks (on the library's threads) and commands meet here and are handled one after the other.
turns: queue.Queue = queue.Queue()
clients: dict[int, Connection] = {}


def out(line: dict) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def to_properties(kind: int, values: dict) -> Properties | None:
    if not values:
        return None
    found = Properties(kind)
    for name, value in values.items():
        if name == "correlation_data":
            value = base64.b64decode(value)
        if name == "user_properties":
            value = [tuple(pair) for pair in value]
        setattr(found, NAMES[name], value)
    return found


def from_properties(values: Properties | None) -> dict:
    found = {}
    for name, theirs in NAMES.items():
        if values is None or not hasattr(values, theirs):
            continue
        value = getattr(values, theirs)
        if name == "correlation_data":
            value = base64.b64encode(value).decode()
        if name == "subscription_identifiers" and not isinstance(value, list):
            value = [value]
        found[name] = value
    return found


class Connection:
    """One paho client. Every method runs on the main thread."""

    def __init__(self, request: dict):
        self.handle, self.level = request["client"], request["level"]
        self.connecting = request["n"]
        self.waiting: dict[tuple[str, int], object] = {}
        self.unacknowledged: list[tuple[int, int]] = []
        self.aliases: dict[int, str] = {}
        self.ending: int | None = None
        arguments = {} if self.level >= 5 else {"clean_session": request["clean"]}
        self.client = paho.Client(
            paho.CallbackAPIVersion.VERSION2, request["id"], protocol=self.level, reconnect_on_failure=False,
            transport="websockets" if request["transport"] in ("ws", "wss") else "tcp",
            manual_ack=request["manual_ack"], **arguments,
        )
        if request["transport"] in ("ws", "wss"):
            self.client.ws_set_options(request["path"])
        if request["transport"] in ("tls", "wss"):
            self.client.tls_set(request["ca"], cert_reqs=ssl.CERT_REQUIRED)
        self.client.max_inflight_messages_set(WINDOW)
        if request["will"]:
            will = request["will"]
            self.client.will_set(
                will["topic"], base64.b64decode(will["payload"]), will.get("qos", 0), will.get("retain", False),
                to_properties(PacketTypes.WILLMESSAGE, will["properties"]),
            )
        self._callbacks()
        options = {}
        if self.level >= 5:
            options = {"clean_start": request["clean"],
                       "properties": to_properties(PacketTypes.CONNECT, request["properties"])}
        self.client.connect_async(request["host"], request["port"], request["keep_alive"], **options)
        self.client.loop_start()

    def _callbacks(self) -> None:
        post = lambda kind, *values: turns.put((self, kind, values))
        self.client.on_connect = lambda c, u, flags, code, props: post("connected", flags, code, props)
        self.client.on_connect_fail = lambda c, u: post("unreachable")
        self.client.on_disconnect = lambda c, u, flags, code, props: post("closed", flags, code)
        self.client.on_subscribe = lambda c, u, mid, codes, props: post("done", "subscribe", mid, codes)
        self.client.on_unsubscribe = lambda c, u, mid, codes, props: post("done", "unsubscribe", mid, codes)
        self.client.on_publish = lambda c, u, mid, code, props: post("done", "publish", mid, code)
        self.client.on_message = lambda c, u, message: post("message", message)

    def turn(self, kind: str, values: tuple) -> None:
        getattr(self, kind)(*values)

    def connected(self, flags, code, props) -> None:
        if code.is_failure:
            out({"n": self.connecting, "error": str(code), "reason": code.value})
            self.connecting = None
            return
        values = from_properties(props)
        if self.connecting is not None:
            out({"n": self.connecting, "ok": {"session_present": flags.session_present, "properties": values}})
            self.connecting = None

    def unreachable(self) -> None:
        if self.connecting is not None:
            out({"n": self.connecting, "error": "the network connection failed"})
            self.connecting = None

    def closed(self, flags, code) -> None:
        if self.connecting is not None:
            out({"n": self.connecting, "error": f"closed before CONNACK: {code}"})
            self.connecting = None
        reason = code.value if flags.is_disconnect_packet_from_server else None
        out({"event": "closed", "client": self.handle, "reason": reason, "detail": str(code)})
        if self.ending is not None:
            out({"n": self.ending, "ok": {}})
            self.ending = None
        for waiter in self.waiting.values():
            number = waiter["n"] if isinstance(waiter, dict) else waiter
            out({"n": number, "error": f"the connection ended: {code}"})
        self.waiting.clear()
        threading.Thread(target=self.release, daemon=True).start()

    def release(self) -> None:
        """Gives back the descriptors that the library keeps until it is collected: its select() ends at 1,024."""
        self.client.loop_stop()
        self.client._reset_sockets()

    def done(self, what: str, mid: int, result) -> None:
        waiter = self.waiting.pop((what, mid), None)
        if waiter is None:
            return
        if isinstance(waiter, dict):  # one of a burst
            waiter["left"] -= 1
            if not waiter["left"]:
                out({"n": waiter["n"], "ok": {}})
        elif what == "publish":
            if result.is_failure:
                out({"n": waiter, "error": f"publish: {result}", "reason": result.value})
            else:
                out({"n": waiter, "ok": {"reason": result.value}})
        else:
            out({"n": waiter, "ok": {"codes": [code.value for code in result] if result else None}})

    def message(self, message) -> None:
        values = from_properties(getattr(message, "properties", None))
        topic, alias = message.topic, values.get("topic_alias")
        # The library leaves topic aliases to the application.
        if alias is not None:
            topic = self.aliases.setdefault(alias, topic) if not topic else topic
            self.aliases[alias] = topic
        if message.qos:
            self.unacknowledged.append((message.mid, message.qos))
        out({"event": "message", "client": self.handle, "topic": topic,
             "payload": base64.b64encode(message.payload).decode(), "qos": message.qos,
             "retain": bool(message.retain), "dup": bool(message.dup), "properties": values})

    # ------------------------------------------------------------------ commands

    def subscribe(self, request: dict) -> None:
        if self.level >= 5:
            filters = [(one["filter"], SubscribeOptions(one["qos"], one["no_local"], one["retain_as_published"],
                                                        one["retain_handling"])) for one in request["filters"]]
        else:
            filters = [(one["filter"], one["qos"]) for one in request["filters"]]
        props = None
        if request.get("identifier") is not None:
            props = Properties(PacketTypes.SUBSCRIBE)
            props.SubscriptionIdentifier = request["identifier"]
        code, mid = self.client.subscribe(filters, properties=props)
        self.wait("subscribe", code, mid, request["n"])

    def unsubscribe(self, request: dict) -> None:
        code, mid = self.client.unsubscribe(request["filters"])
        self.wait("unsubscribe", code, mid, request["n"])

    def publish(self, request: dict) -> None:
        info = self.client.publish(
            request["topic"], base64.b64decode(request["payload"]), request["qos"], request["retain"],
            to_properties(PacketTypes.PUBLISH, request["properties"]),
        )
        self.wait("publish", info.rc, info.mid, request["n"])

    def burst(self, request: dict) -> None:
        waiter = {"n": request["n"], "left": request["count"]}
        for number in range(request["count"]):
            info = self.client.publish(request["topic"], str(number), request["qos"])
            self.waiting["publish", info.mid] = waiter

    def wait(self, what: str, code: int, mid: int, number: int) -> None:
        if code != paho.MQTT_ERR_SUCCESS:
            out({"n": number, "error": paho.error_string(code)})
        else:
            self.waiting[what, mid] = number

    def ack(self, request: dict) -> None:
        for _ in range(request["count"]):
            mid, qos = self.unacknowledged.pop(0)
            self.client.ack(mid, qos)
        out({"n": request["n"], "ok": {}})

    def disconnect(self, request: dict) -> None:
        self.ending = request["n"]
        if self.level >= 5:
            code = ReasonCode(PacketTypes.DISCONNECT, identifier=request["reason"])
            sent = self.client.disconnect(code, to_properties(PacketTypes.DISCONNECT, request["properties"]))
        else:
            sent = self.client.disconnect()
        if sent != paho.MQTT_ERR_SUCCESS:
            self.ending = None
            out({"n": request["n"], "ok": {}})

    def abort(self, request: dict) -> None:
        self.ending = request["n"]
        connection = self.client.socket()
        # Below TLS and WebSocket, so that neither says goodbye.
        plain = getattr(connection, "_socket", connection)
        socket.socket.shutdown(plain, socket.SHUT_RDWR)


def commands() -> None:
    for line in sys.stdin:
        turns.put((None, "command", json.loads(line)))
    turns.put((None, "end", None))


def main() -> None:
    out({"hello": {"client": f"paho-mqtt {version('paho-mqtt')}", "transports": ["tcp", "tls", "ws", "wss"],
                   "levels": [3, 4, 5], "cannot": {}}})
    threading.Thread(target=commands, daemon=True).start()
    while True:
        connection, kind, values = turns.get()
        if kind == "end":
            return
        if connection is not None:
            connection.turn(kind, values)
            continue
        try:
            if values["op"] == "connect":
                clients[values["client"]] = Connection(values)
            else:
                getattr(clients[values["client"]], values["op"])(values)
        except Exception as error:  # the library refuses by exception; the scenario decides what that means
            out({"n": values["n"], "error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
