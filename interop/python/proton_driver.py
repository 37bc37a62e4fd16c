"""python-qpid-proton (PyPI) as a driver of the AMQP scenario: JSON lines in, JSON lines out (../README.md)."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import Counter

import proton
from proton import Data, Delivery, Described, Handler, Link, Message, SSLDomain, Terminus
from proton.reactor import ApplicationEvent, Container, EventInjector

from proton_values import decode, decode_message, encode, encode_message

STATES = {Delivery.ACCEPTED: "accepted", Delivery.REJECTED: "rejected", Delivery.RELEASED: "released",
          Delivery.MODIFIED: "modified"}
CODES = {name: code for code, name in STATES.items()}
EXPIRY = {"link-detach": Terminus.EXPIRE_WITH_LINK, "session-end": Terminus.EXPIRE_WITH_SESSION,
          "connection-close": Terminus.EXPIRE_WITH_CONNECTION, "never": Terminus.EXPIRE_NEVER}
TRANSACTIONAL = 0x34
CANNOT = {
    "sasl-scram": "built without Cyrus SASL it has no SCRAM",
    "sasl-scram-wrong": "built without Cyrus SASL it has no SCRAM",
}

output = threading.Lock()


def out(**line) -> None:
    with output:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def condition(found) -> dict:
    return {"condition": str(found.name), "description": found.description} if found else {"condition": None}


class Driver(Handler):
    """Takes the library's events as they are: what its messaging handler does by itself is in the way here."""

    def __init__(self):
        super().__init__()
        self.connections, self.sessions, self.links = {}, {}, {}
        self.deliveries, self.transactions, self.numbers = {}, {}, 0
        self.waiting: dict[object, int] = {}

    # ------------------------------------------------------------------ requests

    def on_reactor_init(self, event) -> None:
        self.container = event.container
        self.injector = EventInjector()
        self.container.selectable(self.injector)
        threading.Thread(target=self.read, daemon=True).start()
        out(hello={"client": f"python-qpid-proton {proton.VERSION_MAJOR}.{proton.VERSION_MINOR}.0",
                   "transports": ["tcp", "tls"], "cannot": CANNOT, "transactions": True})

    def read(self) -> None:
        for line in sys.stdin:
            self.injector.trigger(ApplicationEvent("request", subject=json.loads(line)))
        self.injector.trigger(ApplicationEvent("request", subject={"op": "quit", "n": 0}))

    def on_request(self, event) -> None:
        request = event.subject
        try:
            answer = getattr(self, "do_" + request["op"])(request)
        except Exception as error:
            out(n=request["n"], error=f"{type(error).__name__}: {error}", condition=None)
            return
        if answer is not None:
            out(n=request["n"], ok=answer)

    def done(self, key, **answer) -> None:
        number = self.waiting.pop(key, None)
        if number is not None:
            out(n=number, ok=answer)

    def refused(self, key, found, text="") -> None:
        number = self.waiting.pop(key, None)
        if number is not None:
            said = condition(found)
            out(n=number, error=said.get("description") or text, condition=said["condition"])

    def do_quit(self, _) -> None:
        sys.stdout.flush()
        # The container would wait for connections that nobody closes any more.
        os._exit(0)

    def do_connect(self, r) -> None:
        options = {"reconnect": False}
        if r["transport"] == "tls":
            domain = SSLDomain(SSLDomain.MODE_CLIENT)
            domain.set_trusted_ca_db(r["ca"])
            domain.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME, trusted_CAs=r["ca"])
            if r.get("cert"):
                domain.set_credentials(r["cert"], r["key"], None)
            options["ssl_domain"] = domain
        scheme = "amqps" if r["transport"] == "tls" else "amqp"
        self.container.container_id = r["container"]
        connection = self.container.connect(
            url=f"{scheme}://{r['host']}:{r['port']}", sasl_enabled=bool(r.get("sasl")),
            allowed_mechs=r.get("sasl") or None, allow_insecure_mechs=True, user=r.get("user"),
            password=r.get("password"), virtual_host=r["host"], heartbeat=r.get("idle_s"),
            max_frame_size=r.get("max_frame"), **options)
        connection.number = r["c"]
        self.connections[r["c"]] = connection
        self.waiting["connect", r["c"]] = r["n"]

    def on_connection_remote_open(self, event) -> None:
        c = event.connection
        transport = event.transport
        self.done(("connect", c.number), container=c.remote_container, max_frame=transport.remote_max_frame_size,
                  channel_max=transport.remote_channel_max,
                  properties=encode(dict(c.remote_properties or {}))[1],
                  capabilities=[str(one) for one in c.remote_offered_capabilities or []])

    def lost(self, event, found) -> None:
        c = event.connection
        if c is None or not hasattr(c, "number"):
            return
        said = condition(found)
        if ("connect", c.number) in self.waiting:
            n = self.waiting.pop(("connect", c.number))
            out(n=n, error=said.get("description") or "closed", condition=said["condition"])
        elif not getattr(c, "told", False):
            c.told = True
            out(event="closed", c=c.number, **said)

    def on_transport_error(self, event) -> None:
        self.lost(event, event.transport.condition)

    def on_connection_remote_close(self, event) -> None:
        c = event.connection
        if ("close", c.number) in self.waiting:
            self.done(("close", c.number))
        else:
            self.lost(event, c.remote_condition)
        c.close()

    def on_transport_closed(self, event) -> None:
        self.lost(event, event.transport.condition)

    def do_close(self, r) -> None:
        self.waiting["close", r["c"]] = r["n"]
        self.connections[r["c"]].close()

    def do_abort(self, r) -> dict:
        connection = self.connections[r["c"]]
        connection.told = True
        # The transport's ends are closed without a word of AMQP.
        transport = connection.transport
        transport.unbind()
        transport.close_tail()
        transport.close_head()
        selectable = getattr(connection, "_selectable", None) or getattr(transport, "_selectable", None)
        if selectable is not None:
            selectable._delegate.close() if hasattr(selectable._delegate, "close") else None
            selectable.terminate()
            selectable.update()
        return {}

    def do_session(self, r) -> None:
        session = self.connections[r["c"]].session()
        session.number = r["s"]
        self.sessions[r["s"]] = session
        self.waiting["session", r["s"]] = r["n"]
        session.open()

    def on_session_remote_open(self, event) -> None:
        self.done(("session", event.session.number))

    def on_session_remote_close(self, event) -> None:
        session = event.session
        if ("end", session.number) in self.waiting:
            self.done(("end", session.number))
        else:
            out(event="ended", s=session.number, **condition(session.remote_condition))
        session.close()

    def do_end(self, r) -> None:
        self.waiting["end", r["s"]] = r["n"]
        self.sessions[r["s"]].close()

    # ------------------------------------------------------------------ links

    @staticmethod
    def terminus(of: Terminus, said: dict) -> None:
        if said.get("coordinator"):
            of.type = Terminus.COORDINATOR
            of.capabilities.put_object(proton.symbol("amqp:local-transactions"))
            return
        if said.get("address") is not None:
            of.address = said["address"]
        if said.get("dynamic"):
            of.dynamic = True
        if "durable" in said:
            of.durability = said["durable"]
        if "expiry" in said:
            of.expiry_policy = EXPIRY[said["expiry"]]
        if "timeout" in said:
            of.timeout = said["timeout"]
        if said.get("capabilities"):
            of.capabilities.put_object(proton.Array(
                proton.UNDESCRIBED, Data.SYMBOL, *[proton.symbol(one) for one in said["capabilities"]]))
        if said.get("filters"):
            of.filter.put_object({proton.symbol(name): decode(value) for name, value in said["filters"].items()})
        if said.get("distribution"):
            of.distribution_mode = {"copy": Terminus.DIST_MODE_COPY, "move": Terminus.DIST_MODE_MOVE}[
                said["distribution"]]

    def attach(self, r, link, source: dict, target: dict) -> None:
        self.terminus(link.source, source)
        self.terminus(link.target, target)
        link.snd_settle_mode = {"unsettled": Link.SND_UNSETTLED, "settled": Link.SND_SETTLED,
                                "mixed": Link.SND_MIXED}[r.get("snd", "mixed")]
        link.rcv_settle_mode = {"first": Link.RCV_FIRST, "second": Link.RCV_SECOND}[r.get("rcv", "first")]
        link.number, link.unsent, link.second = r["l"], [], r.get("rcv") == "second"
        link.refused = False
        self.links[r["l"]] = link
        self.waiting["attach", r["l"]] = r["n"]
        link.open()
        if r.get("credit"):
            link.flow(r["credit"])

    def do_sender(self, r) -> None:
        self.attach(r, self.sessions[r["s"]].sender(r["name"]), {"address": r["name"]}, r["target"])

    def do_receiver(self, r) -> None:
        self.attach(r, self.sessions[r["s"]].receiver(r["name"]), r["source"], {})

    def on_link_remote_open(self, event) -> None:
        link = event.link
        if link.is_sender:
            refused = link.remote_target.type == Terminus.UNSPECIFIED
            address = link.remote_target.address
        else:
            refused = link.remote_source.type == Terminus.UNSPECIFIED
            address = link.remote_source.address
        if refused:
            return  # a detach says why
        filters = {}
        if link.is_receiver:
            link.remote_source.filter.rewind()
            if link.remote_source.filter.next():
                found = link.remote_source.filter.get_object()
                filters = {str(key): encode(value) for key, value in (found or {}).items()}
        self.done(("attach", link.number), address=address, filters=filters,
                  max_message=link.remote_max_message_size)

    def gone(self, event, closed: bool) -> None:
        link = event.link
        if ("attach", link.number) in self.waiting:
            self.refused(("attach", link.number), link.remote_condition, "refused")
        elif ("detach", link.number) in self.waiting:
            self.done(("detach", link.number))
        else:
            out(event="detached", l=link.number, closed=closed, **condition(link.remote_condition))
        if closed:
            link.close()
        else:
            link.detach()

    def on_link_remote_close(self, event) -> None:
        self.gone(event, True)

    def on_link_remote_detach(self, event) -> None:
        self.gone(event, False)

    def do_detach(self, r) -> None:
        link = self.links[r["l"]]
        self.waiting["detach", r["l"]] = r["n"]
        link.close() if r["closed"] else link.detach()

    def do_credit(self, r) -> dict:
        self.links[r["l"]].flow(r["credit"])
        return {}

    def do_drain(self, r) -> None:
        link = self.links[r["l"]]
        self.waiting["drain", r["l"]] = r["n"]
        link.drain(0)
        self.drained(link)

    def drained(self, link) -> None:
        if ("drain", link.number) in self.waiting and not link.draining():
            link.drain_mode = False
            self.done(("drain", link.number), drained=link.drained())

    def on_link_flow(self, event) -> None:
        if event.link.is_sender:
            self.push(event.link)
        else:
            self.drained(event.link)

    # ------------------------------------------------------------------ sending

    def do_send(self, r) -> None:
        link = self.links[r["l"]]
        link.unsent.append((encode_message(r["m"]), r.get("settled", False), r.get("txn"), ("send", r["n"])))
        self.waiting["send", r["n"]] = r["n"]
        self.push(link)

    def do_burst(self, r) -> None:
        link = self.links[r["l"]]
        count = Counter()
        link.burst = [r["count"], count, r["n"]]
        for number in range(r["count"]):
            message = Message(body=str(number).encode().ljust(r["size"]), inferred=True)
            link.unsent.append((message.encode(), r.get("settled", False), None, ("burst", r["l"])))
        self.push(link)

    def push(self, link) -> None:
        while link.unsent and link.credit > 0:
            raw, settled, txn, key = link.unsent.pop(0)
            self.numbers += 1
            delivery = link.delivery(str(self.numbers))
            delivery.key = key
            if txn is not None:
                delivery.local.data = [self.transactions[txn]]
                delivery.update(TRANSACTIONAL)
            # All at once; the library cuts it into frames.
            link.stream(raw)
            if settled:
                delivery.settle()
            link.advance()
            if settled:
                self.outcome(key, {"state": "settled"})

    def outcome(self, key, answer: dict) -> None:
        if key[0] == "send":
            self.done(key, **answer)
            return
        left, count, number = self.links[key[1]].burst
        count[answer["state"]] += 1
        if sum(count.values()) == left:
            out(n=number, ok={"states": dict(count)})

    def on_delivery(self, event) -> None:
        delivery = event.delivery
        if event.link.is_sender:
            self.acknowledged(delivery)
        else:
            self.arrived(event.link, delivery)

    @staticmethod
    def told(delivery) -> dict:
        remote = delivery.remote
        state = delivery.remote_state
        if state == TRANSACTIONAL:
            data = remote.data or []
            inner = data[1] if len(data) > 1 else None
            code = int(inner.descriptor) if isinstance(inner, Described) and isinstance(inner.descriptor, int) else 0
            answer = {"state": STATES.get(code, "none"), "transactional": True}
            return answer
        answer = {"state": STATES.get(state, "none"), **condition(remote.condition)}
        if state == Delivery.MODIFIED:
            answer |= {"failed": remote.failed, "undeliverable": remote.undeliverable}
        return answer

    def acknowledged(self, delivery) -> None:
        key = getattr(delivery, "key", None)
        if key is None or not (delivery.settled or delivery.remote_state):
            return
        if key[0] == "declare":
            if delivery.remote.data and delivery.remote_state == 0x33:
                self.transactions[key[1]] = delivery.remote.data[0]
                self.done(("declare", key[1]))
            else:
                self.refused(("declare", key[1]), delivery.remote.condition, "declare was refused")
        elif key[0] == "discharge":
            if delivery.remote_state == Delivery.ACCEPTED:
                self.done(("discharge", key[1]))
            else:
                self.refused(("discharge", key[1]), delivery.remote.condition, "discharge was refused")
        elif delivery.remote_state or delivery.settled:
            self.outcome(key, self.told(delivery))
        delivery.key = None
        delivery.settle()

    # ------------------------------------------------------------------ receiving

    def arrived(self, link, delivery) -> None:
        number = getattr(delivery, "number", None)
        if number is not None:
            if delivery.settled:
                self.done(("settle", number))
                delivery.settle()
            return
        if delivery.aborted:
            delivery.settle()
            return
        if not delivery.readable or delivery.partial:
            return
        raw = link.recv(delivery.pending)
        link.advance()
        self.numbers += 1
        delivery.number = self.numbers
        Message().decode(raw)  # what applications use takes it, too
        out(event="message", l=link.number, d=self.numbers, settled=delivery.settled, m=decode_message(raw))
        if delivery.settled:
            delivery.settle()
        else:
            self.deliveries[self.numbers] = delivery

    def do_settle(self, r) -> dict | None:
        delivery = self.deliveries.pop(r["d"])
        code = CODES[r["state"]]
        if r.get("txn") is not None:
            delivery.local.data = [self.transactions[r["txn"]], Described(proton.ulong(int(code)), [])]
            delivery.update(TRANSACTIONAL)
            delivery.settle()
            return {}
        if r["state"] == "rejected" and r.get("condition"):
            delivery.local.condition = proton.Condition(r["condition"], "as the step wants")
        if r["state"] == "modified":
            delivery.local.failed = r.get("failed", False)
            delivery.local.undeliverable = r.get("undeliverable", False)
        delivery.update(code)
        if delivery.link.second:
            self.waiting["settle", r["d"]] = r["n"]
            return None
        delivery.settle()
        return {}

    # ------------------------------------------------------------------ transactions

    def control(self, r, key, body) -> None:
        link = self.links[r["l"]]
        self.waiting[key] = r["n"]
        link.unsent.append((Message(body=body).encode(), False, None, key))
        self.push(link)

    def do_declare(self, r) -> None:
        self.control(r, ("declare", r["x"]), Described(proton.symbol("amqp:declare:list"), [None]))

    def do_discharge(self, r) -> None:
        body = Described(proton.symbol("amqp:discharge:list"), [self.transactions[r["x"]], r["fail"]])
        self.control(r, ("discharge", r["x"]), body)


if __name__ == "__main__":
    Container(Driver()).run()
