"""The AMQP scenario's values and messages: lists of a type's name and what it is (README.md), and a table of all types."""

from __future__ import annotations

import base64
import hashlib
import struct

PRIMITIVES = {
    "null": [["null"]],
    "boolean": [["boolean", True], ["boolean", False]],
    "ubyte": [["ubyte", each] for each in ("0", "1", "255")],
    "ushort": [["ushort", each] for each in ("0", "256", "65535")],
    "uint": [["uint", each] for each in ("0", "1", "255", "256", "4294967295")],
    "ulong": [["ulong", each] for each in ("0", "1", "255", "256", "9007199254740991", "18446744073709551615")],
    "byte": [["byte", each] for each in ("0", "-1", "127", "-128")],
    "short": [["short", each] for each in ("0", "-1", "32767", "-32768")],
    "int": [["int", each] for each in ("0", "-1", "127", "-128", "128", "2147483647", "-2147483648")],
    "long": [["long", each] for each in ("0", "-1", "127", "-129", "9223372036854775807", "-9223372036854775808")],
    "float": [["float", struct.pack(">f", each).hex()] for each in (0.0, -1.5, 3.4e38, float("inf"))],
    "double": [["double", struct.pack(">d", each).hex()] for each in (0.0, -1.5, 1.7e308, float("-inf"), 0.1)],
    "decimal32": [["decimal32", "2250000a"]],
    "decimal64": [["decimal64", "223800000000000a"]],
    "decimal128": [["decimal128", "2208000000000000000000000000000a"]],
    "char": [["char", str(ord(each))] for each in ("a", "é", "€", "\U0001f426")],
    "timestamp": [["timestamp", each] for each in ("0", "1311704463521", "-1", "4102444800999")],
    "uuid": [["uuid", "f81d4fae7dec11d0a76500a0c91e6bf6"], ["uuid", "0" * 32]],
    "binary": [["binary", base64.b64encode(each).decode()] for each in (b"", b"\0\xff", bytes(255), bytes(256))],
    "string": [["string", each] for each in ("", "Küstenseeschwalbe €\U0001f426", "x" * 255, "x" * 256)],
    "symbol": [["symbol", each] for each in ("a", "x-opt-y", "s" * 256)],
}

# What has no order of its own is compared without one.
COMPOUND = {
    "list": [
        ["list", []], ["list", [["uint", "1"], ["null"], ["string", "x"], ["list", [["boolean", True]]]]],
        ["list", [["int", str(each)] for each in range(300)]],
    ],
    "map": [
        ["map", []],
        ["map", [[["string", "a"], ["uint", "1"]], [["string", "b"], ["list", [["null"]]]],
                 [["uint", "7"], ["map", [[["string", "in"], ["boolean", False]]]]]]],
        ["map", [[["string", f"k{each:03}"], ["int", str(each)]] for each in range(200)]],
    ],
}

ARRAYS = {
    name: ["array", name, PRIMITIVES[name]]
    for name in ("boolean", "ubyte", "ushort", "uint", "ulong", "byte", "short", "int", "long", "float", "double",
                 "char", "timestamp", "uuid", "binary", "string", "symbol")
}
# fe2o3-amqp counts characters instead of bytes here; values of their own have all characters.
ARRAYS["string"] = ["array", "string", [["string", each] for each in ("", "tern", "x" * 255, "x" * 256)]]

DESCRIBED = [
    ["described", ["symbol", "example:point"], ["list", [["int", "1"], ["int", "-300"]]]],
    ["described", ["ulong", "4886718345"], ["string", "by number"]],
]


def binary(value: bytes) -> list:
    return ["binary", base64.b64encode(value).decode()]


def text(value: str) -> list:
    return ["string", value]


def data(*sections: bytes) -> dict:
    return {"data": [base64.b64encode(one).decode() for one in sections]}


def message(body=b"", **sections) -> dict:
    """A message: bytes become a data section, a list is a value."""
    if isinstance(body, bytes):
        body = data(body)
    elif isinstance(body, str):
        body = {"value": text(body)}
    elif isinstance(body, list):
        body = {"value": body}
    return {"body": body, **sections}


def payload(got: dict) -> bytes:
    """The bytes of a received message whose body is data."""
    return b"".join(base64.b64decode(one) for one in got["body"].get("data", []))


def pattern(size: int) -> bytes:
    """The bytes that drivers make of `{"pattern": size}`."""
    block = bytes(range(251))
    return (block * (size // 251 + 1))[:size]


def digest(size: int) -> list:
    return [size, hashlib.sha256(pattern(size)).hexdigest()]


def normal(value):
    """A value without the order of its maps."""
    if isinstance(value, list) and value and value[0] == "map":
        return ["map", sorted(([normal(key), normal(item)] for key, item in value[1]), key=str)]
    if isinstance(value, list) and value and value[0] == "list":
        return ["list", [normal(one) for one in value[1]]]
    if isinstance(value, list) and value and value[0] == "array":
        return ["array", value[1], [normal(one) for one in value[2]]]
    if isinstance(value, list) and value and value[0] == "described":
        return ["described", normal(value[1]), normal(value[2])]
    return value


def pairs(section: list) -> list:
    """A section that is a map, in an order of its own."""
    return normal(["map", section])[1]
