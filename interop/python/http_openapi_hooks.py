"""What schemathesis cannot know from the description: which parts of a request go together, and that a subscription's
answer does not end unless it is a poll. What is wrong on purpose is left alone."""

from __future__ import annotations

import re

import schemathesis
from schemathesis.generation import GenerationMode


@schemathesis.hook
def before_call(context, case, kwargs) -> None:
    if case.path == "/v1/topics/{topic}":
        topic_request(case, in_order(case))
    elif case.path == "/v1/topics":
        case.query = poll(case.query if isinstance(case.query, dict) else {})
    elif case.path == "/v1/sessions/{session}/ack" and in_order(case):
        acknowledgement(case)


# As it is, or as it is sent.
WILDCARD = re.compile("[+#]|%2B|%23", re.IGNORECASE)


def in_order(case) -> bool:
    return case.meta is not None and case.meta.generation.mode == GenerationMode.POSITIVE


def topic_request(case, is_in_order: bool) -> None:
    topic = str((case.path_parameters or {}).get("topic", ""))
    if case.method.upper() != "GET":
        # Filters have wildcards, topics have none; both are called `topic` in the path.
        if is_in_order and WILDCARD.search(topic):
            case.path_parameters = {**case.path_parameters, "topic": WILDCARD.sub("x", topic)}
        return
    query = case.query if isinstance(case.query, dict) else {}
    if is_in_order and "last" in query:
        # It goes with a topic, and with nothing else.
        query = {"last": ""}
        case.path_parameters = {**case.path_parameters, "topic": WILDCARD.sub("x", topic)}
    case.query = poll(query)


def poll(query: dict) -> dict:
    """Asks for what there is, unless the time to wait is wrong on purpose."""
    wait = query.get("wait")
    if wait is None or isinstance(wait, str) and re.fullmatch(r"[0-9]+(?:ms|s|m)", wait):
        return {**query, "wait": "1ms"}
    return query


def acknowledgement(case) -> None:
    """The ids are in the query, or in the content."""
    query = case.query if isinstance(case.query, dict) else {}
    if case.body:
        case.query = {name: value for name, value in query.items() if name != "id"}
    elif "id" not in query:
        case.query = {**query, "id": 1}
