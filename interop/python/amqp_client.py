"""Foreign AMQP clients behind drivers (README.md has the form of their lines): connections, sessions and links."""

from __future__ import annotations

import asyncio
import itertools
import secrets

from harness import Cannot, Driver, Failure, Listener

PATIENCE_S = 30.0
# 64 MiB through a broker that is not optimized.
LARGE_PATIENCE_S = 90.0


class AmqpError(Exception):
    """The broker refused or ended something; `condition` is what it said."""

    def __init__(self, text: str, condition: str | None):
        super().__init__(f"{condition or 'no condition'}: {text}")
        self.condition = condition


class AmqpDriver(Driver):
    """A driver that speaks of AMQP."""

    def __init__(self, command: list[str]):
        super().__init__(command)
        self.connections: dict[int, Connection] = {}
        self.sessions: dict[int, Session] = {}
        self.links: dict[int, Link] = {}

    def take(self, entry: dict) -> None:
        """Hands an event to what it is about, or an answer to who asked."""
        if "event" in entry:
            found = {"closed": ("c", self.connections), "ended": ("s", self.sessions)}.get(
                entry["event"], ("l", self.links))
            one = found[1].get(entry[found[0]])
            if one is not None:
                one.event(entry)
            return
        future = self.waiting.pop(entry["n"], None)
        if future is None or future.done():
            return
        if "error" in entry:
            future.set_exception(AmqpError(entry["error"], entry.get("condition")))
        elif "cannot" in entry:
            future.set_exception(Cannot(entry["cannot"]))
        else:
            future.set_result(entry.get("ok") or {})


class Ending:
    """What the broker can end of itself."""

    def __init__(self):
        self.end: asyncio.Future = asyncio.get_running_loop().create_future()

    def event(self, entry: dict) -> None:
        if not self.end.done():
            self.end.set_result(entry)

    async def ended(self, what: str, timeout: float = PATIENCE_S) -> dict:
        try:
            return await asyncio.wait_for(asyncio.shield(self.end), timeout)
        except TimeoutError:
            raise Failure(f"{what} was not ended within {timeout} s") from None


class Connection(Ending):
    numbers = itertools.count(1)

    def __init__(self, driver: AmqpDriver):
        super().__init__()
        self.driver, self.number = driver, next(self.numbers)
        self.peer: dict = {}
        self.container, self.open = "", False
        driver.connections[self.number] = self

    async def connect(self, at: Listener, container: str | None = None, **options) -> None:
        self.container = container or "iop-" + secrets.token_hex(6)
        options.setdefault("sasl", "ANONYMOUS")
        self.peer = await self.driver.ask(
            "connect", PATIENCE_S, c=self.number, transport=at.transport, host=at.host, port=at.port, path=at.path,
            ca=at.certificate, container=self.container, **options)
        self.open = True

    async def session(self) -> Session:
        one = Session(self)
        await self.driver.ask("session", PATIENCE_S, c=self.number, s=one.number)
        return one

    async def close(self) -> None:
        self.open = False
        await self.driver.ask("close", PATIENCE_S, c=self.number)

    async def abort(self) -> None:
        """The transport ends without a word of AMQP."""
        self.open = False
        await self.driver.ask("abort", PATIENCE_S, c=self.number)


class Session(Ending):
    numbers = itertools.count(1)

    def __init__(self, connection: Connection):
        super().__init__()
        self.connection, self.driver, self.number = connection, connection.driver, next(self.numbers)
        self.driver.sessions[self.number] = self

    async def sender(self, target: str | dict | None, name: str | None = None, **options) -> Sender:
        one = Sender(self)
        if not isinstance(target, dict):
            target = {"address": target}
        said = await self.driver.ask("sender", PATIENCE_S, s=self.number, l=one.number, target=target,
                                     name=name or "s-" + secrets.token_hex(5), **options)
        one.attached(said)
        return one

    async def receiver(self, source: str | dict, credit: int = 0, name: str | None = None, **options) -> Receiver:
        one = Receiver(self)
        if isinstance(source, str):
            source = {"address": source}
        said = await self.driver.ask("receiver", PATIENCE_S, s=self.number, l=one.number, source=source,
                                     credit=credit, name=name or "r-" + secrets.token_hex(5), **options)
        one.attached(said)
        return one

    async def finish(self) -> None:
        await self.driver.ask("end", PATIENCE_S, s=self.number)


class Link(Ending):
    numbers = itertools.count(1)

    def __init__(self, session: Session):
        super().__init__()
        self.session, self.driver, self.number = session, session.driver, next(self.numbers)
        self.address: str | None = None
        self.filters: dict = {}
        self.driver.links[self.number] = self

    def attached(self, said: dict) -> None:
        self.address, self.filters = said.get("address"), said.get("filters") or {}
        self.max_message = said.get("max_message")

    async def detach(self, closed: bool = True) -> None:
        await self.driver.ask("detach", PATIENCE_S, l=self.number, closed=closed)


class Sender(Link):
    async def send(self, message: dict, settled: bool = False, txn: int | None = None,
                   timeout: float = PATIENCE_S) -> dict:
        """Sends, and waits for the outcome."""
        return await self.driver.ask("send", timeout, l=self.number, m=message, settled=settled, txn=txn)

    async def deliver(self, message: dict, settled: bool = False, timeout: float = PATIENCE_S) -> None:
        """Sends; the broker has to accept it."""
        said = await self.send(message, settled, timeout=timeout)
        wanted = "settled" if settled else "accepted"
        if said["state"] != wanted:
            raise Failure(f"the broker answered a transfer with {said}, not {wanted}")

    async def burst(self, count: int, size: int = 16, settled: bool = False) -> None:
        """Sends messages "0", "1", ... as fast as the client does, and waits until all are accepted."""
        said = await self.driver.ask("burst", 40, l=self.number, count=count, size=size, settled=settled)
        wanted = {"settled" if settled else "accepted": count}
        if said["states"] != wanted:
            raise Failure(f"outcomes {said['states']}, not {wanted}")


class Delivery:
    """A message as the foreign client's library showed it."""

    def __init__(self, receiver: Receiver, entry: dict):
        self.receiver, self.number = receiver, entry["d"]
        # None where the library does not show it.
        self.settled = entry["settled"]
        self.message = entry["m"]

    async def settle(self, state: str = "accepted", **more) -> None:
        await self.receiver.driver.ask("settle", PATIENCE_S, l=self.receiver.number, d=self.number, state=state, **more)


class Receiver(Link):
    def __init__(self, session: Session):
        super().__init__(session)
        self.inbox: asyncio.Queue[Delivery] = asyncio.Queue()

    def event(self, entry: dict) -> None:
        if entry["event"] == "message":
            self.inbox.put_nowait(Delivery(self, entry))
        else:
            super().event(entry)

    async def credit(self, credit: int) -> None:
        await self.driver.ask("credit", PATIENCE_S, l=self.number, credit=credit)

    async def drain(self) -> None:
        await self.driver.ask("drain", PATIENCE_S, l=self.number)

    async def receive(self, timeout: float = PATIENCE_S) -> Delivery:
        try:
            return await asyncio.wait_for(self.inbox.get(), timeout)
        except TimeoutError:
            why = f", its link ended: {self.end.result()}" if self.end.done() else ""
            raise Failure(f"no message within {timeout} s{why}") from None

    async def accept(self, timeout: float = PATIENCE_S) -> dict:
        """The next message, accepted unless it came settled."""
        got = await self.receive(timeout)
        if not got.settled:
            await got.settle()
        return got.message

    async def quiet(self, seconds: float, why: str) -> None:
        try:
            got = await self.receive(seconds)
        except Failure:
            return
        raise Failure(f"{why}: got {got.message['body']}")
