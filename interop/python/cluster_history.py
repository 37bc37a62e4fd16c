"""Reads histories of a cluster, and tells what must not have happened. Without arguments it tries itself on histories that
are known to be good and bad, and prints a line for each.

Ledgers are of publishers and readers; a history is a list of events of sessions, in the order of one clock:

  asked         a client has sent a CONNECT                     client, connection, node
  admitted      it has the CONNACK                              client, connection
  sent          it has sent a PUBLISH                           client, connection, number
  acknowledged  it has the PUBACK                               client, connection, number
  left          it has ended the connection in order            client, connection
  aborted       it has ended it without a DISCONNECT            client, connection
  ended         the broker has ended it                         client, connection
  killed        a node was killed                               node
  stopped       a node has stopped in order, up to now          node, number: for how many milliseconds
  disturbed     answers of NATS were late, up to now            number: for how many milliseconds
  will          somebody has read the connection's will         reader, connection

Standard library only.
"""

from __future__ import annotations

import bisect
from collections import Counter
from dataclasses import dataclass, field

# Who takes a will out of its record and is not told so, before another has the session, does not publish it. So wills are
# looked at that ended while NATS answered. Who takes a will out of its record may die before the will is published, and a will that is new may not be in the record
# yet (docs/cluster-design.md, Wills). That is a matter of milliseconds; a busy machine has some more. The will of a connection is
# published that another of its client has overtaken, or whose node was about to stop, whatever its client says after that.
WILL_S = 1.0


@dataclass
class Ledger:
    """What a publisher knows: numbers go up by one."""

    sent: int = 0
    # The number of the first message of each connection.
    connections: list[int] = field(default_factory=list)
    acknowledged: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)


@dataclass
class Event:
    at_s: float
    what: str
    client: str = ""
    connection: int = 0
    node: str = ""
    number: int = 0
    reader: str = ""


@dataclass
class Hold:
    """A message that a member of a group has, until it acknowledges it or its connection is over."""

    payload: str
    node: str
    member: str
    from_s: float
    until_s: float
    # Whether a consumer of a queue has accepted it, when it had it no longer.
    is_accepted: bool = False


@dataclass
class Trouble:
    """A time in which a node, or all of them for an empty name, may not have been sure of anything, or what was said of a queue
    may not have been kept."""

    node: str
    from_s: float
    until_s: float


# A broker may know of the end of a connection a little earlier than its client.
END_S = 0.5


def of_group(holds: list[Hold], troubles: list[Trouble]) -> list[str]:
    """A message is with one member at a time, unless the first one's node could be given up."""
    by_payload: dict[str, list[Hold]] = {}
    for hold in sorted(holds, key=lambda hold: hold.from_s):
        by_payload.setdefault(hold.payload, []).append(hold)
    told = []
    for payload, all_of_it in by_payload.items():
        for earlier, later in zip(all_of_it, all_of_it[1:], strict=False):
            is_excused = any(
                one.node in ("", earlier.node) and one.from_s <= later.from_s and earlier.from_s <= one.until_s
                for one in troubles
            )
            if later.from_s + END_S < earlier.until_s and not is_excused:
                told.append(f"two members: {payload} is with {earlier.member} since {earlier.from_s:.3f}, until "
                            f"{earlier.until_s:.3f}, and came to {later.member} at {later.from_s:.3f}")
    return told


# What a consumer has accepted is kept a little later.
KEPT_S = 1.0


def of_queue(holds: list[Hold], troubles: list[Trouble]) -> list[str]:
    """A message of a queue that was accepted does not come again, unless that was shortly before or in a trouble."""
    accepted: dict[str, Hold] = {}
    told = []
    for hold in sorted(holds, key=lambda hold: hold.from_s):
        earlier = accepted.get(hold.payload)
        if earlier and not any(one.from_s - KEPT_S <= earlier.until_s <= one.until_s for one in troubles):
            told.append(f"doubled: {earlier.member} accepted {hold.payload} at {earlier.until_s:.3f}, and it came to "
                        f"{hold.member} at {hold.from_s:.3f}")
        if hold.is_accepted:
            accepted[hold.payload] = hold
    return told


def of_members(settled: set[str], since: dict[str, int], ledgers: dict[str, Ledger]) -> list[str]:
    """What was acknowledged to publishers is acknowledged by a member."""
    told = []
    for name, number in since.items():
        wanted = {each for each in list(ledgers[name].acknowledged) if each > number}
        lost = sorted(each for each in wanted if f"{name} {each}" not in settled)
        if lost:
            told.append(f"lost: no member of the group has had {len(lost)} messages of {name}: {spans(lost)}")
    return told


def spans(numbers: list[int]) -> str:
    """Numbers that follow each other, as their first and last."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    shown = ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in found[:8])
    return shown + (", …" if len(found) > 8 else "")


def of_reader(reader: str, got: dict[str, list[int]], since: dict[str, int], ledgers: dict[str, Ledger]) -> list[str]:
    """What a reader's numbers say, which was there from the numbers `since` on."""
    told = [f"unasked: {reader} got a message of {name}" for name in set(got) - set(ledgers)]
    for name, ledger in ledgers.items():
        numbers = got.get(name, [])
        wanted = {number for number in list(ledger.acknowledged) if number > since[name]}
        lost = sorted(wanted - set(numbers))
        if lost:
            told.append(f"lost: {reader} has not got {len(lost)} acknowledged messages of {name}: "
                        f"{spans(lost)}; its last is {numbers[-1] if numbers else None}")
        doubled = [number for number, count in Counter(numbers).items() if count > 1]
        if doubled:
            told.append(f"doubled: {reader} got {len(doubled)} messages of {name} again: {doubled[:5]}")
        newest: dict[int, int] = {}
        for at, number in enumerate(numbers):
            connection = bisect.bisect(ledger.connections, number)
            if number < newest.get(connection, 0):
                told.append(f"out of order: {reader} got {name}'s {numbers[max(0, at - 3):at + 3]}")
                break
            newest[connection] = number
        strange = [number for number in numbers if number > ledger.sent or number in ledger.refused]
        if strange:
            told.append(f"unasked: {reader} got {name}'s {strange[:5]}, which was refused or never sent")
    return told


def _first(history: list[Event], *what: str) -> dict[int, Event]:
    """The first such event of each connection."""
    found: dict[int, Event] = {}
    for event in history:
        if event.what in what:
            found.setdefault(event.connection, event)
    return found


def of_owners(history: list[Event]) -> list[str]:
    """A connection is acknowledged nothing that was sent after a later one of its client was let in.

    A connection is later if its CONNECT was sent after the other's CONNACK had come: so each order of the two in the
    cluster is the same to this client.
    """
    asked, admitted = _first(history, "asked"), _first(history, "admitted")
    by_client: dict[str, list[int]] = {}
    for connection, event in admitted.items():
        by_client.setdefault(event.client, []).append(connection)
    sent = {(event.connection, event.number): event.at_s for event in history if event.what == "sent"}
    told = []
    for event in history:
        if event.what != "acknowledged" or event.connection not in admitted:
            continue
        sent_s = sent[event.connection, event.number]
        for later in by_client[event.client]:
            is_later = asked[later].at_s > admitted[event.connection].at_s
            if is_later and admitted[later].at_s < sent_s:
                told.append(
                    f"two owners: {event.client} at {asked[event.connection].node} was acknowledged at {event.at_s:.3f} what "
                    f"it sent at {sent_s:.3f}, and was let in at {asked[later].node} at {admitted[later].at_s:.3f}")
                break
    return told


def of_wills(history: list[Event], until_s: float) -> list[str]:
    """The will of each connection comes at most once, and once where it was due before `until_s`."""
    asked, admitted = _first(history, "asked"), _first(history, "admitted")
    left, over = _first(history, "left"), _first(history, "aborted", "ended")
    killed = [event for event in history if event.what == "killed"]
    disturbed = [(event.at_s - event.number / 1e3, event.at_s) for event in history if event.what == "disturbed"]
    stops = [event for event in history if event.what == "stopped"]
    seen = Counter((event.reader, event.connection) for event in history if event.what == "will")
    published = {connection for _, connection in seen}
    told = [f"will doubled: {reader} got the will of connection {connection} of {asked[connection].client} {count} times"
            for (reader, connection), count in seen.items() if count > 1]
    for connection, event in admitted.items():
        node, begun_s = asked[connection].node, event.at_s
        if connection in left:
            at_s = left[connection].at_s
            is_excused = any(begun_s - WILL_S <= at_s <= over_s for begun_s, over_s in disturbed) or any(
                one.node == node and abs(one.at_s - at_s) < WILL_S for one in killed) or any(
                one.node == node and one.at_s - one.number / 1e3 - WILL_S <= at_s <= one.at_s for one in stops) or any(
                one.client == event.client and asked[connection].at_s < one.at_s <= at_s for one in asked.values())
            if connection in published and not is_excused:
                told.append(f"will unasked: connection {connection} of {event.client} at {node} ended in order")
            continue
        if connection not in over or connection in published or over[connection].at_s > until_s:
            continue
        due = over[connection]

        def is_excused(death: Event, due: Event = due, node: str = node, begun_s: float = begun_s) -> bool:
            """Whether a death is too near to what it may have interrupted."""
            if death.node != node:
                return abs(death.at_s - due.at_s) < WILL_S
            was_due = due.what == "aborted" and 0 <= death.at_s - due.at_s < WILL_S
            return was_due or 0 <= death.at_s - begun_s < WILL_S

        was_late = any(begun_s - WILL_S <= due.at_s <= over_s for begun_s, over_s in disturbed)
        if not was_late and not any(is_excused(death) for death in killed):
            told.append(f"will lost: connection {connection} of {event.client} at {node}, let in at {begun_s:.3f}, was over at "
                        f"{due.at_s:.3f}")
    return told


def _history(lines: str) -> list[Event]:
    """Events, one a line, each a tenth of a second after the one before: WHAT CONNECTION [NODE or NUMBER or READER] [NUMBER]."""
    events = []
    for at, line in enumerate(lines.split("\n")):
        words = line.split()
        if not words:
            continue
        what, connection, last = words[0], int(words[1]), (words[2:] or [""])[0]
        last_number = words[3] if what == "stopped" else last
        events.append(Event(
            at * 0.1, what, "c", connection,
            last if what in ("asked", "killed", "stopped") else "",
            int(last_number) if what in ("sent", "acknowledged", "disturbed", "stopped") else 0,
            last if what == "will" else "",
        ))
    return events


def tries() -> list[tuple[str, list[str], str]]:
    """Names, what was found, and the word with which that is to begin; empty for nothing."""
    moved = "asked 1 a\nadmitted 1\nsent 1 1\nacknowledged 1 1\nasked 2 b\nadmitted 2\n"
    ended = "asked 1 a\nadmitted 1\n" + "\n" * 20
    ledgers = {"p": Ledger(6, [1, 4], {1, 2, 3, 4, 6}, {5})}

    def reader(*numbers: int) -> list[str]:
        return of_reader("r", {"p": list(numbers)}, {"p": 1}, ledgers)

    def hold(node: str, from_s: float, until_s: float, is_accepted: bool = False) -> Hold:
        return Hold("p 1", node, f"member of {node}", from_s, until_s, is_accepted)

    def wills(lines: str) -> list[str]:
        return of_wills(_history(lines), 100)

    return [
        ("a reader with everything", reader(2, 3, 4, 6), ""),
        ("connections may overtake", reader(4, 2, 3, 6), ""),
        ("one is missing", reader(2, 4, 6), "lost"),
        ("one comes twice", reader(2, 3, 3, 4, 6), "doubled"),
        ("one connection's are out of order", reader(3, 2, 4, 6), "out of order"),
        ("one was refused", reader(2, 3, 4, 5, 6), "unasked"),
        ("somebody else's", of_reader("r", {"x": [1], "p": [2, 3, 4, 6]}, {"p": 1}, ledgers), "unasked"),
        ("what was sent before may be acknowledged", of_owners(_history(moved.replace("asked 2", "sent 1 2\nasked 2")
                                                               + "acknowledged 1 2")), ""),
        ("the later owner is acknowledged", of_owners(_history(moved + "sent 2 1\nacknowledged 2 1")), ""),
        ("the earlier owner is acknowledged", of_owners(_history(moved + "sent 1 2\nacknowledged 1 2")), "two owners"),
        ("which is later is not known", of_owners(_history(
            "asked 1 a\nasked 2 b\nadmitted 2\nadmitted 1\nsent 2 1\nacknowledged 2 1\nsent 1 1\nacknowledged 1 1")), ""),
        ("members hold a message one after the other", of_group([hold("a", 1, 2), hold("b", 2, 3)], []), ""),
        ("two members hold a message", of_group([hold("a", 1, 3), hold("b", 2, 3)], []), "two members"),
        ("the first one's node stood still", of_group([hold("a", 1, 9), hold("b", 5, 6)], [Trouble("a", 2, 8)]), ""),
        ("the other's node stood still", of_group([hold("a", 1, 9), hold("b", 5, 6)], [Trouble("b", 2, 8)]), "two members"),
        ("it stood still long before", of_group([hold("a", 3, 9), hold("b", 5, 6)], [Trouble("a", 1, 2)]), "two members"),
        ("a message is released and comes again", of_queue([hold("a", 1, 2), hold("b", 2, 3, True)], []), ""),
        ("a message is accepted and comes again", of_queue([hold("a", 1, 2, True), hold("b", 3, 4, True)], []), "doubled"),
        ("it was accepted shortly before a node died", of_queue([hold("a", 1, 2, True), hold("b", 3, 4)], [Trouble("", 2.5, 3)]), ""),
        ("it was accepted long before", of_queue([hold("a", 1, 2, True), hold("b", 9, 10)], [Trouble("", 8, 9)]), "doubled"),
        ("members have had everything", of_members({"p 2", "p 3", "p 4", "p 6"}, {"p": 1}, ledgers), ""),
        ("no member has had one", of_members({"p 2", "p 4", "p 6"}, {"p": 1}, ledgers), "lost"),
        ("a will comes to two readers", wills(ended + "aborted 1\nwill 1 r\nwill 1 s"), ""),
        ("a will comes twice", wills(ended + "aborted 1\nwill 1 r\nwill 1 r"), "will doubled"),
        ("a will does not come", wills(ended + "aborted 1"), "will lost"),
        ("a will of a connection that ended in order", wills(ended + "left 1\nwill 1 r"), "will unasked"),
        ("no will of a connection that ended in order", wills(ended + "left 1"), ""),
        ("a will of one that left a node which was stopping", wills(ended + "left 1\nwill 1 r\nstopped 0 a 150"), ""),
        ("it left another node", wills(ended + "left 1\nwill 1 r\nstopped 0 b 150"), "will unasked"),
        ("it was overtaken before it left", wills(ended + "asked 2 b\nleft 1\nwill 1 r"), ""),
        ("it was not heard that it ended in order", wills(ended + "left 1\nwill 1 r\ndisturbed 0 500"), ""),
        ("NATS was late when it ended", wills(ended + "aborted 1\ndisturbed 0 500"), ""),
        ("the node died and the will comes", wills(ended + "killed 0 a\nended 1\nwill 1 r"), ""),
        ("the node died just then", wills(ended + "aborted 1\nkilled 0 a"), ""),
        ("the node died with it", wills(ended + "killed 0 a\nended 1"), "will lost"),
        ("the node died after it had begun", wills("asked 1 a\nadmitted 1\nkilled 0 a\nended 1"), ""),
        ("who took it over died just then", wills(ended + "ended 1\nkilled 0 b"), ""),
        ("the node died long after", wills(ended + "aborted 1" + "\n" * 20 + "killed 0 a"), "will lost"),
    ]


def main() -> None:
    from harness import Report

    report = Report()
    for name, found, word in tries():
        if [one.split(":")[0] for one in found] == ([word] if word else []):
            report.ok(name)
        else:
            report.not_ok(name, f"found {found}")
    report.exit()


if __name__ == "__main__":
    main()
