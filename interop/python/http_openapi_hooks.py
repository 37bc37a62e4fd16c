"""What schemathesis cannot know from the description: a subscription's answer does not end unless it is a poll."""

from __future__ import annotations

import re

import schemathesis


@schemathesis.hook
def before_call(context, case, kwargs) -> None:
    """Turns subscriptions into polls that wait for a millisecond, and leaves alone what is wrong on purpose."""
    if case.method.upper() != "GET" or case.path != "/v1/topics/{topic}":
        return
    query = case.query
    if not isinstance(query, dict):
        query = {}
    topic = str((case.path_parameters or {}).get("topic", ""))
    if "last" in query:
        # It goes with a topic, and with nothing else.
        query = {} if re.search(r"[+#]", topic) else {"last": query["last"]}
        case.query = query
    wait = query.get("wait")
    if wait is None or isinstance(wait, str) and re.fullmatch(r"[0-9]+(?:ms|s|m)", wait):
        case.query = {**query, "wait": "1ms"}
