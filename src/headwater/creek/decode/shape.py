"""The JSON text of a Creek schema as a tree: which Avro types follow each other, and what Creek's attributes say of columns.

It takes what Creek's producers of all times have written: named types that are spelled out twice, columns that are listed
twice, decimals that are none. An Avro library refuses each of these.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, TypeAlias

from headwater.errors import MessageError

ENVELOPE = "publish_message"


class Kind(StrEnum):
    """Avro's primitive types."""

    NULL = "null"
    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    BYTES = "bytes"
    STRING = "string"


@dataclass(frozen=True, slots=True)
class Primitive:
    """`precision` and `scale` are those of a decimal; None for bytes that are none, and for all else."""

    kind: Kind
    precision: int | None = None
    scale: int | None = None


_PRIMITIVES = {kind.value: Primitive(kind) for kind in Kind}


@dataclass(frozen=True, slots=True)
class Enumeration:
    symbols: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Array:
    items: "Shape"


@dataclass(frozen=True, slots=True)
class Record:
    name: str
    fields: tuple["Field", ...]


Node: TypeAlias = Primitive | Enumeration | Array | Record


@dataclass(frozen=True, slots=True)
class Shape:
    """One type, or the branches of a union."""

    branches: tuple[Node, ...]
    is_union: bool = False

    @property
    def is_nullable(self) -> bool:
        return Primitive(Kind.NULL) in self.branches

    @property
    def decimal(self) -> Primitive | None:
        """The decimal among the branches, or among those of the array that it is."""
        for node in self.branches:
            if isinstance(node, Primitive) and node.scale is not None:
                return node
            if isinstance(node, Array):
                return node.items.decimal
        return None


@dataclass(frozen=True, slots=True)
class Field:
    """A column (or a part of the envelope, which has no `pg_type`); `name` is the true one, whatever Avro allows."""

    name: str
    shape: Shape
    pg_type: str
    is_key: bool

    @property
    def record(self) -> Record | None:
        """The record that it is, or is if it is not null."""
        return next((node for node in self.shape.branches if isinstance(node, Record)), None)


class Schema:
    """A parsed schema: that of WAL messages, or that of a snapshot's rows."""

    def __init__(self, text: str) -> None:
        try:
            node = _Parser().node(json.loads(text), "")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise MessageError(f"not an Avro schema as Creek writes it: {text[:200]!r}") from error
        if not isinstance(node, Record):
            raise MessageError(f"the schema is no record: {text[:200]!r}")
        self.record = node

    @cached_property
    def parts(self) -> Mapping[str, Field]:
        return {field.name: field for field in self.record.fields}

    @property
    def is_envelope(self) -> bool:
        return self.record.name == ENVELOPE and {"source", "before", "after"} <= self.parts.keys()

    @cached_property
    def before(self) -> Record:
        return self._row("before") if self.is_envelope else self.record

    @cached_property
    def after(self) -> Record:
        """All columns of the table."""
        return self._row("after") if self.is_envelope else self.record

    def _row(self, part: str) -> Record:
        record = self.parts[part].record
        if record is None:
            raise MessageError(f"the schema has no record for {part!r}")
        return record


class _Parser:
    """Reads one schema; named types are known from where they were first spelled out."""

    def __init__(self) -> None:
        self._named: dict[str, Node] = {}

    def shape(self, json_: Any, namespace: str) -> Shape:
        if isinstance(json_, list):
            return Shape(tuple(self.node(branch, namespace) for branch in json_), is_union=True)
        return Shape((self.node(json_, namespace),))

    def node(self, json_: Any, namespace: str) -> Node:
        if isinstance(json_, str):
            return self._by_name(json_, namespace)
        match json_["type"]:
            case "record":
                return self._record(json_, namespace)
            case "enum":
                return self._name(json_, namespace, Enumeration(tuple(json_["symbols"])))
            case "array":
                return Array(self.shape(json_["items"], namespace))
            case "bytes" if json_.get("logicalType") == "decimal":
                return _decimal(json_["precision"], json_.get("scale", 0))
            case inner:
                return self.node(inner, namespace)

    def _by_name(self, name: str, namespace: str) -> Node:
        if name in _PRIMITIVES:
            return _PRIMITIVES[name]
        return self._named.get(_full_name(name, namespace)) or self._named[name]

    def _record(self, json_: Any, namespace: str) -> Record:
        full = _full_name(json_["name"], json_.get("namespace", namespace))
        inside = full.rpartition(".")[0]
        record = Record(json_.get("pgName", full), tuple(self._field(field, inside) for field in json_["fields"]))
        self._named[full] = record
        return record

    def _field(self, json_: Any, namespace: str) -> Field:
        # Creek takes a column for a key unless it is said not to be one.
        is_key = json_.get("pgKey", True) is not False
        shape = self.shape(json_["type"], namespace)
        return Field(json_.get("pgName", json_["name"]), shape, json_.get("pgType", ""), is_key)

    def _name(self, json_: Any, namespace: str, node: Node) -> Node:
        self._named[_full_name(json_["name"], json_.get("namespace", namespace))] = node
        return node


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _decimal(precision: int, scale: int) -> Primitive:
    """What Creek writes for a numeric without limits is no decimal to Avro, and so plain bytes."""
    is_decimal = precision > 0 and 0 <= scale <= precision
    return Primitive(Kind.BYTES, precision, scale) if is_decimal else Primitive(Kind.BYTES)
