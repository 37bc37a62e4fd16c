"""curl as a driver of the HTTP scenario: JSON lines in, JSON lines out (../README.md). Each request is a process."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import sys

LINE_LIMIT_BYTES = 16 * 1024 * 1024
# Processes at a time.
AT_ONCE = 24
OPTIONS = {"h2": ["--http2"], "h1": ["--http1.1"], "h1s": ["--http1.1"], "h2c": ["--http2-prior-knowledge"]}


def out(line: dict) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


class Driver:
    def __init__(self):
        self.places: dict[int, dict] = {}
        self.processes: dict[int, asyncio.subprocess.Process] = {}
        self.gate = asyncio.Semaphore(AT_ONCE)

    def command(self, asked: dict) -> list[str]:
        place = self.places[asked["c"]]
        secure = place["transport"] in ("h1s", "h2")
        said = ["curl", "--silent", "--show-error", "--no-buffer", "--include", "--path-as-is", "--globoff",
                "--noproxy", "*", *OPTIONS[place["transport"]]]
        if secure:
            said += ["--cacert", place["ca"]]
            if place.get("cert"):
                said += ["--cert", place["cert"], "--key", place["key"]]
        if not asked["stream"]:
            said += ["--max-time", "10"]
        named = {name.lower() for name, _ in asked["fields"]}
        if asked["method"] == "HEAD":
            said += ["--head"]
        else:
            said += ["--request", asked["method"]]
            if asked["content"] is not None:
                said += ["--data-binary", "@-"]
                # It would say that it is a form, and ask whether it may send more than a mebibyte.
                if "content-type" not in named:
                    said += ["--header", "Content-Type:"]
                said += ["--header", "Expect:"]
        for name, value in asked["fields"]:
            said += ["--header", f"{name}: {value}" if value else f"{name};"]
        scheme = "https" if secure else "http"
        return [*said, "--url", f"{scheme}://{place['host']}:{place['port']}{asked['target']}"]

    @staticmethod
    async def head(reader: asyncio.StreamReader) -> dict | None:
        """The head of the response; None where curl ended before."""
        while True:
            try:
                raw = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                return None
            first, *lines = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
            version, _, status = first.partition(" ")
            if int(status.split()[0]) >= 200:
                fields = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
                return {"status": int(status.split()[0]), "fields": fields, "version": version.removeprefix("HTTP/")}

    async def request(self, asked: dict) -> None:
        n, r = asked["n"], asked["r"]
        async with self.gate:
            process = await asyncio.create_subprocess_exec(
                *self.command(asked), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE, limit=LINE_LIMIT_BYTES)
            if asked["content"] is not None:
                process.stdin.write(base64.b64decode(asked["content"]))
            process.stdin.close()
            head = await self.head(process.stdout)
            if head is None:
                why = (await process.stderr.read()).decode(errors="replace").strip()
                out({"n": n, "error": f"{why or 'curl said nothing'} (exit code {await process.wait()})"})
                return
            if not asked["stream"]:
                content = await process.stdout.read()
                why = (await process.stderr.read()).decode(errors="replace").strip()
                if await process.wait() and not why.startswith("curl: (18)"):
                    out({"n": n, "error": why})
                else:
                    out({"n": n, "ok": {**head, "content": base64.b64encode(content).decode()}})
                return
        # A response that goes on holds no place.
        self.processes[r] = process
        out({"n": n, "ok": head})
        while piece := await process.stdout.read(65536):
            out({"event": "data", "r": r, "data": base64.b64encode(piece).decode()})
        why = (await process.stderr.read()).decode(errors="replace").strip()
        code = await process.wait()
        self.processes.pop(r, None)
        out({"event": "end", "r": r, "error": why if code else None})

    async def take(self, asked: dict) -> None:
        n, op = asked["n"], asked["op"]
        try:
            if op == "open":
                self.places[asked["c"]] = asked
                out({"n": n, "ok": {}})
            elif op == "request":
                await self.request(asked)
            elif op == "cancel":
                process = self.processes.pop(asked["r"], None)
                if process is not None and process.returncode is None:
                    process.kill()
                out({"n": n, "ok": {}})
            elif op == "close":
                out({"n": n, "ok": {}})
            else:
                out({"n": n, "cannot": f"the driver has no {op}"})
        except Exception as error:  # whatever it is, the scenario has to hear of it
            out({"n": n, "error": f"{type(error).__name__}: {error}"})

    async def run(self) -> None:
        said = subprocess.run([shutil.which("curl") or "curl", "--version"], capture_output=True, text=True, check=True)
        out({"hello": {"client": " ".join(said.stdout.split()[:2]), "transports": list(OPTIONS), "certificates": True,
                       "process_each": True, "brief": ["h1s", "h2c"]}})
        reader = asyncio.StreamReader(limit=LINE_LIMIT_BYTES)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        tasks: set[asyncio.Task] = set()
        while line := await reader.readline():
            task = asyncio.create_task(self.take(json.loads(line)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        for process in list(self.processes.values()):
            if process.returncode is None:
                process.kill()


if __name__ == "__main__":
    asyncio.run(Driver().run())
