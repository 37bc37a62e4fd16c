"""Python's http.client and urllib as a driver of the HTTP scenario: JSON lines in, JSON lines out (../README.md)."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
import sys
import threading
import urllib.error
import urllib.request

PATIENCE_S = 30.0
VERSIONS = {10: "1.0", 11: "1.1"}
# Threads write at the same time.
WRITING = threading.Lock()


def out(line: dict) -> None:
    with WRITING:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


class Place:
    """Where requests go, and connections that wait for another one."""

    def __init__(self, asked: dict):
        self.asked, self.idle, self.lock = asked, [], threading.Lock()
        self.context = None
        if asked["transport"] == "h1s":
            self.context = ssl.create_default_context(cafile=asked["ca"])
            if asked.get("cert"):
                self.context.load_cert_chain(asked["cert"], asked["key"])

    def take(self) -> http.client.HTTPConnection:
        with self.lock:
            if self.idle:
                return self.idle.pop()
        where = (self.asked["host"], self.asked["port"])
        if self.context:
            return http.client.HTTPSConnection(*where, timeout=PATIENCE_S, context=self.context)
        return http.client.HTTPConnection(*where, timeout=PATIENCE_S)

    def give(self, one: http.client.HTTPConnection) -> None:
        with self.lock:
            self.idle.append(one)

    def close(self) -> None:
        with self.lock:
            for one in self.idle:
                one.close()
            self.idle.clear()


class Driver:
    def __init__(self):
        self.places: dict[int, Place] = {}
        self.streams: dict[int, socket.socket] = {}
        self.lock = threading.Lock()

    def by_urllib(self, asked: dict, place: Place):
        url = f"http://{place.asked['host']}:{place.asked['port']}{asked['target']}"
        request = urllib.request.Request(url, method=asked["method"])
        if asked["content"] is not None:
            request.data = base64.b64decode(asked["content"])
        seen = set()
        for name, value in asked["fields"]:
            if name.lower() in seen:
                raise NotImplementedError("urllib keeps one value for each field")
            seen.add(name.lower())
            request.add_header(name, value)
        if request.data is not None and not request.has_header("Content-type"):
            # It would say that it is a form.
            request.add_unredirected_header("Content-type", "")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            return opener.open(request, timeout=PATIENCE_S)
        except urllib.error.HTTPError as error:
            # An answer, too.
            return error

    def by_http_client(self, asked: dict, place: Place, one: http.client.HTTPConnection):
        named = {name.lower() for name, _ in asked["fields"]}
        one.putrequest(asked["method"], asked["target"], skip_host="host" in named, skip_accept_encoding=True)
        raw = base64.b64decode(asked["content"]) if asked["content"] is not None else None
        if raw is not None and "content-length" not in named:
            one.putheader("Content-Length", str(len(raw)))
        for name, value in asked["fields"]:
            one.putheader(name, value.encode("latin-1"))
        one.endheaders(raw)
        return one.getresponse()

    def request(self, asked: dict) -> None:
        n, place, one, answered = asked["n"], self.places[asked["c"]], None, False
        try:
            if place.asked["transport"] == "urllib":
                response = self.by_urllib(asked, place)
                version = VERSIONS.get(getattr(response, "version", 11) or 11, "1.1")
            else:
                one = place.take()
                response = self.by_http_client(asked, place, one)
                version = VERSIONS[response.version]
            head = {"status": response.status, "fields": response.headers.items(), "version": version}
            if not asked["stream"]:
                content = response.read()
                out({"n": n, "ok": {**head, "content": base64.b64encode(content).decode()}})
                if one is not None and not response.will_close:
                    place.give(one)
                return
            raw = response.fp.raw._sock
            raw.settimeout(None)
            with self.lock:
                self.streams[asked["r"]] = raw
            answered = True
            out({"n": n, "ok": head})
            error = None
            try:
                while piece := response.read1(65536):
                    out({"event": "data", "r": asked["r"], "data": base64.b64encode(piece).decode()})
            except (OSError, http.client.HTTPException, ValueError) as why:
                error = f"{type(why).__name__}: {why}"
            out({"event": "end", "r": asked["r"], "error": error})
        except NotImplementedError as why:
            out({"n": n, "cannot": str(why)})
        except Exception as why:  # whatever it is, the scenario has to hear of it
            if not answered:
                out({"n": n, "error": f"{type(why).__name__}: {why}"})

    def run(self) -> None:
        out({"hello": {"client": f"Python {sys.version.split()[0]}", "transports": ["h1", "h1s", "urllib"],
                       "certificates": True}})
        for line in sys.stdin:
            asked = json.loads(line)
            n, op = asked["n"], asked["op"]
            if op == "open":
                self.places[asked["c"]] = Place(asked)
                out({"n": n, "ok": {}})
            elif op == "request":
                threading.Thread(target=self.request, args=(asked,), daemon=True).start()
            elif op == "cancel":
                with self.lock:
                    raw = self.streams.pop(asked["r"], None)
                if raw is not None:
                    try:
                        raw.shutdown(socket.SHUT_RDWR)
                    except OSError:
                        pass
                out({"n": n, "ok": {}})
            elif op == "close":
                self.places[asked["c"]].close()
                out({"n": n, "ok": {}})
            else:
                out({"n": n, "cannot": f"the driver has no {op}"})


if __name__ == "__main__":
    Driver().run()
