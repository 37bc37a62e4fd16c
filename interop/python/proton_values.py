"""Values and messages of the AMQP scenario, to and from those of python-qpid-proton (../README.md has the form)."""

from __future__ import annotations

import base64
import hashlib
import struct
import uuid

import proton
from proton import Array, Data, Described

# The library's classes of what Python itself has no type for.
NUMBERS = {
    "ubyte": proton.ubyte, "ushort": proton.ushort, "uint": proton.uint, "ulong": proton.ulong, "byte": proton.byte,
    "short": proton.short, "int": proton.int32, "long": int, "timestamp": proton.timestamp,
}
ELEMENTS = {
    "boolean": Data.BOOL, "ubyte": Data.UBYTE, "ushort": Data.USHORT, "uint": Data.UINT, "ulong": Data.ULONG,
    "byte": Data.BYTE, "short": Data.SHORT, "int": Data.INT, "long": Data.LONG, "float": Data.FLOAT,
    "double": Data.DOUBLE, "char": Data.CHAR, "timestamp": Data.TIMESTAMP, "uuid": Data.UUID, "binary": Data.BINARY,
    "string": Data.STRING, "symbol": Data.SYMBOL, "list": Data.LIST, "map": Data.MAP,
}
NAMES = {number: name for name, number in ELEMENTS.items()}
HEADER = ["durable", "priority", "ttl", "first_acquirer", "delivery_count"]
PROPERTIES = [
    "message_id", "user_id", "to", "subject", "reply_to", "correlation_id", "content_type", "content_encoding",
    "absolute_expiry_time", "creation_time", "group_id", "group_sequence", "reply_to_group_id",
]
HEADER_TYPES = {"durable": "boolean", "priority": "ubyte", "ttl": "uint", "first_acquirer": "boolean",
                "delivery_count": "uint"}
# Bodies above this are told by their length and digest.
SHOWN_BYTES = 65_536


def decode(value):
    """A value of the scenario as the library's."""
    kind, rest = value[0], value[1:]
    if kind == "null":
        return None
    if kind in NUMBERS:
        return NUMBERS[kind](int(rest[0]))
    if kind == "boolean":
        return bool(rest[0])
    if kind == "float":
        return proton.float32(struct.unpack(">f", bytes.fromhex(rest[0]))[0])
    if kind == "double":
        return struct.unpack(">d", bytes.fromhex(rest[0]))[0]
    if kind == "decimal32":
        return proton.decimal32(int(rest[0], 16))
    if kind == "decimal64":
        return proton.decimal64(int(rest[0], 16))
    if kind == "decimal128":
        return proton.decimal128(bytes.fromhex(rest[0]))
    if kind == "char":
        return proton.char(chr(int(rest[0])))
    if kind == "uuid":
        return uuid.UUID(hex=rest[0])
    if kind == "binary":
        return base64.b64decode(rest[0])
    if kind == "string":
        return rest[0]
    if kind == "symbol":
        return proton.symbol(rest[0])
    if kind == "list":
        return [decode(one) for one in rest[0]]
    if kind == "map":
        return {decode(key): decode(item) for key, item in rest[0]}
    if kind == "array":
        return Array(proton.UNDESCRIBED, ELEMENTS[rest[0]], *[decode(one) for one in rest[1]])
    if kind == "described":
        return Described(decode(rest[0]), decode(rest[1]))
    raise ValueError(f"no type {kind}")


def encode(value):
    """A value of the library's as the scenario's."""
    for name, made in NUMBERS.items():
        if name != "long" and isinstance(value, made):
            return [name, str(int(value))]
    if value is None:
        return ["null"]
    if isinstance(value, bool):
        return ["boolean", value]
    if isinstance(value, proton.decimal32):
        return ["decimal32", f"{int(value) & 0xFFFFFFFF:08x}"]
    if isinstance(value, proton.decimal64):
        return ["decimal64", f"{int(value) & 0xFFFFFFFFFFFFFFFF:016x}"]
    if isinstance(value, proton.decimal128):
        return ["decimal128", bytes(value).hex()]
    if isinstance(value, proton.float32):
        return ["float", struct.pack(">f", value).hex()]
    if isinstance(value, float):
        return ["double", struct.pack(">d", value).hex()]
    if isinstance(value, int):
        return ["long", str(value)]
    if isinstance(value, proton.char):
        return ["char", str(ord(value))]
    if isinstance(value, proton.symbol):
        return ["symbol", str(value)]
    if isinstance(value, str):
        return ["string", str(value)]
    if isinstance(value, uuid.UUID):
        return ["uuid", value.hex]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return ["binary", base64.b64encode(bytes(value)).decode()]
    if isinstance(value, list):
        return ["list", [encode(one) for one in value]]
    if isinstance(value, dict):
        return ["map", [[encode(key), encode(item)] for key, item in value.items()]]
    if isinstance(value, Array):
        return ["array", NAMES[value.type], [encode(one) for one in value.elements]]
    if isinstance(value, Described):
        return ["described", encode(value.descriptor), encode(value.value)]
    raise ValueError(f"no type of {value!r}")


def section(code: int, value) -> bytes:
    data = Data()
    data.put_object(Described(proton.ulong(code), value))
    return data.encode()


def pairs(value) -> dict:
    return {decode(key): decode(item) for key, item in value}


def pattern(size: int) -> bytes:
    """The bytes of a generated payload: 0 to 250, over and over."""
    block = bytes(range(251))
    return (block * (size // 251 + 1))[:size]


def encode_message(said: dict) -> bytes:
    """A message in its sections, by the library's codec."""
    made = b""
    if header := said.get("header"):
        made += section(0x70, [decode([HEADER_TYPES[name], header[name]]) if name in header else None
                               for name in HEADER])
    for name, code in (("delivery_annotations", 0x71), ("message_annotations", 0x72)):
        if name in said:
            made += section(code, pairs(said[name]))
    if properties := said.get("properties"):
        made += section(0x73, [decode(properties[name]) if name in properties else None for name in PROPERTIES])
    if "application_properties" in said:
        made += section(0x74, pairs(said["application_properties"]))
    body = said["body"]
    if "pattern" in body:
        made += section(0x75, pattern(body["pattern"]))
    for one in body.get("data", []):
        made += section(0x75, base64.b64decode(one))
    for one in body.get("sequence", []):
        made += section(0x76, [decode(item) for item in one])
    if "value" in body:
        made += section(0x77, decode(body["value"]))
    if "footer" in said:
        made += section(0x78, pairs(said["footer"]))
    return made


def decode_message(raw: bytes) -> dict:
    """What has arrived, as the scenario has it."""
    said, rest, sections, held, body = {}, memoryview(raw), [], [], {}
    while len(rest):
        data = Data()
        # The library's values lie in these bytes, and in what read them.
        held.append((data, rest.tobytes()))
        rest = rest[data.decode(held[-1][1]) :]
        data.rewind()
        data.next()
        sections.append(data.get_py_described())
    for one in sections:
        code, value = int(one.descriptor), one.value
        if code == 0x70:
            said["header"] = {name: encode(item)[1] for name, item in zip(HEADER, value) if item is not None}
        elif code in (0x71, 0x72, 0x74, 0x78):
            name = {0x71: "delivery_annotations", 0x72: "message_annotations", 0x74: "application_properties",
                    0x78: "footer"}[code]
            said[name] = encode(dict(value))[1]
        elif code == 0x73:
            said["properties"] = {name: encode(item) for name, item in zip(PROPERTIES, value) if item is not None}
        elif code == 0x75:
            body.setdefault("data", []).append(bytes(value))
        elif code == 0x76:
            body.setdefault("sequence", []).append(encode(value)[1])
        elif code == 0x77:
            body["value"] = encode(value)
    if "data" in body:
        if sum(map(len, body["data"])) > SHOWN_BYTES:
            whole = b"".join(body["data"])
            body["digest"] = [len(whole), hashlib.sha256(whole).hexdigest()]
            del body["data"]
        else:
            body["data"] = [base64.b64encode(one).decode() for one in body["data"]]
    said["body"] = body
    return said
