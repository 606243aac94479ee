"""Which type an oid stands for: the types that every server has, and those that a catalog adds to them.

`Types` is a value: `extended` makes a new one. It also keeps what the neighbouring modules compile for a type, so that a
converter is built once for a set of types, however many rows it converts.
"""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import TypeVar, cast

Compiled = TypeVar("Compiled")

CATALOG_SCHEMA = "pg_catalog"


class Kind(StrEnum):
    """What a type is made of; the letters are those of `pg_type.typtype`, and `a` for an array (a base type there)."""

    BASE = "b"
    ENUM = "e"
    DOMAIN = "d"
    COMPOSITE = "c"
    RANGE = "r"
    MULTIRANGE = "m"
    ARRAY = "a"


@dataclass(frozen=True, slots=True)
class Field:
    """A column of a composite type."""

    name: str
    oid: int
    typmod: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PgType:
    """A type as the catalog describes it.

    `element` is the element of an array or vector, the subtype of a range, the range of a multirange; `base` and
    `base_typmod` are what a domain stands on; `delimiter` parts the elements in an array of this type.
    """

    oid: int
    schema: str
    name: str
    kind: Kind = Kind.BASE
    element: int = 0
    base: int = 0
    base_typmod: int = -1
    delimiter: str = ","
    fields: tuple[Field, ...] = ()

    @property
    def builtin_name(self) -> str:
        """The name by which a base type that every server has is known, empty for any other type."""
        return self.name if self.schema == CATALOG_SCHEMA and self.kind is Kind.BASE else ""

    @property
    def is_vector(self) -> bool:
        """Whether the text is numbers with spaces between them, counted from 0 by the type's nature."""
        return self.builtin_name in ("int2vector", "oidvector")

    @property
    def is_list(self) -> bool:
        return self.kind is Kind.ARRAY or self.is_vector


class Types(Mapping[int, PgType]):
    """Types by oid. An unknown oid is no error: `resolve` gives a nameless base type for it, whose values stay text."""

    __slots__ = ("_by_oid", "_compiled")

    def __init__(self, types: Iterable[PgType] = ()) -> None:
        self._by_oid = {type_.oid: type_ for type_ in types}
        self._compiled: dict[tuple[object, int, int], object] = {}

    @staticmethod
    def builtin() -> "Types":
        """The types whose oid is the same on all servers from 15 to 18."""
        return _builtin()

    def extended(self, types: Iterable[PgType]) -> "Types":
        """These types and the given ones, which win where an oid is in both."""
        return Types((*self._by_oid.values(), *types))

    def resolve(self, oid: int, typmod: int = -1) -> tuple[PgType, int]:
        """The type and typmod that values are stored as: a domain's, to any depth, are those that it stands on."""
        type_ = self._by_oid.get(oid)
        while type_ is not None and type_.kind is Kind.DOMAIN:
            typmod = type_.base_typmod if typmod == -1 else typmod
            oid = type_.base
            type_ = self._by_oid.get(oid)
        return type_ or PgType(oid=oid, schema="", name=""), typmod

    def delimiter(self, array: PgType) -> str:
        """What parts the elements of an array; the element type says it, as it does for the server."""
        return self._by_oid.get(array.element, array).delimiter

    def compiled(self, compiler: Callable[["Types", int, int], Compiled], oid: int, typmod: int = -1) -> Compiled:
        """What `compiler` makes for a type, made once."""
        key = (compiler, oid, typmod)
        if key not in self._compiled:
            self._compiled[key] = compiler(self, oid, typmod)
        return cast("Compiled", self._compiled[key])

    def __getitem__(self, oid: int) -> PgType:
        return self._by_oid[oid]

    def __iter__(self) -> Iterator[int]:
        return iter(self._by_oid)

    def __len__(self) -> int:
        return len(self._by_oid)

    # Converters are closures, which do not pickle; the other side compiles its own.
    def __reduce__(self) -> tuple[type["Types"], tuple[tuple[PgType, ...]]]:
        return Types, (tuple(self._by_oid.values()),)


@cache
def _builtin() -> Types:
    text = files(__package__).joinpath("builtin.csv").read_text(encoding="utf-8")
    return Types(
        PgType(
            oid=int(row["oid"]),
            schema=CATALOG_SCHEMA,
            name=row["name"],
            kind=Kind(row["kind"]),
            element=int(row["element"] or 0),
            delimiter=row["delimiter"] or ",",
        )
        for row in csv.DictReader(text.splitlines())
    )
