"""The fingerprint of an Avro schema as Creek computes it: CRC-64-AVRO over a canonical form that keeps logical types.

The canonical form of the Avro specification drops them. The eight bytes are big-endian, and in text base64 for URLs.
"""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

_EMPTY: Final = 0xC15D213AA4D7A795
BYTES: Final = 8
_PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})


def fingerprint_of(schema: object) -> bytes:
    """The fingerprint of a schema, which is given as JSON text or as what that parses to."""
    table, value = _table(), _EMPTY
    for byte in canonical(schema).encode():
        value = (value >> 8) ^ table[(value ^ byte) & 0xFF]
    return value.to_bytes(BYTES)


def fingerprint_text(fingerprint: bytes) -> str:
    """Eight bytes as the twelve characters that messages and requests carry."""
    return urlsafe_b64encode(fingerprint).decode("ascii")


def fingerprint_bytes(text: str) -> bytes:
    """The eight bytes behind twelve characters; raises `ValueError` for anything else."""
    found = urlsafe_b64decode(text)
    if len(found) != BYTES or fingerprint_text(found) != text:
        raise ValueError(f"not a fingerprint: {text!r}")
    return found


@cache
def _table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_EMPTY if value & 1 else 0)
        table.append(value)
    return tuple(table)


def canonical(schema: object) -> str:
    """The text that is hashed: no blanks, full names, no attributes but those that tell values apart."""
    is_text = isinstance(schema, str) and schema not in _PRIMITIVES
    return _Canonical().of(json.loads(str(schema)) if is_text else schema, "")


class _Canonical:
    """One schema being written; a named type is written out where it is met first, and is its name afterwards."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def of(self, schema: Any, namespace: str) -> str:
        if isinstance(schema, str):
            return f'"{schema if schema in _PRIMITIVES else _full(schema, namespace)}"'
        if isinstance(schema, list):
            return f"[{','.join(self.of(member, namespace) for member in schema)}]"
        match schema["type"]:
            case "record" | "enum" as kind:
                return self._named(kind, schema, namespace)
            case "array":
                return f'{{"type":"array","items":{self.of(schema["items"], namespace)}}}'
            case other:
                return _logical(other, schema) if isinstance(other, str) else self.of(other, namespace)

    def _named(self, kind: str, schema: Mapping[str, Any], namespace: str) -> str:
        name = _full(schema["name"], schema.get("namespace", namespace))
        if name in self._seen:
            return f'"{name}"'
        self._seen.add(name)
        if kind == "enum":
            symbols = ",".join(f'"{symbol}"' for symbol in schema["symbols"])
            return f'{{"name":"{name}","type":"enum","symbols":[{symbols}]}}'
        within = name.rpartition(".")[0]
        fields = ",".join(
            f'{{"name":"{field["name"]}","type":{self.of(field["type"], within)}}}' for field in schema["fields"]
        )
        return f'{{"name":"{name}","type":"record","fields":[{fields}]}}'


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _logical(primitive: str, schema: Mapping[str, Any]) -> str:
    logical = schema.get("logicalType")
    if logical is None:
        return f'"{primitive}"'
    if logical != "decimal":
        return f'{{"type":"{primitive}","logicalType":"{logical}"}}'
    precision, scale = schema.get("precision", 0), schema.get("scale", 0)
    if not 0 <= scale <= precision or precision == 0:
        return f'"{primitive}"'
    shown = f',"scale":{scale}' if scale else ""
    return f'{{"type":"{primitive}","logicalType":"decimal","precision":{precision}{shown}}}'
