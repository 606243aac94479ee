"""PostgreSQL's types as Creek maps them to Avro: which form a column's values have on the wire, and which of them it holds.

Creek knows eighteen types and one-level arrays of each. Any other, and so every domain, is text: PostgreSQL's own, as a
string. A form may have no room for some values of its type; `ColumnType.can_misfit` tells which do.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

from headwater.postgres.types import Kind, Types


class Form(Enum):
    """How a value stands in a datum."""

    BOOLEAN = auto()
    INT = auto()
    LONG = auto()
    FLOAT = auto()
    DOUBLE = auto()
    STRING = auto()
    UUID = auto()
    JSON = auto()
    DECIMAL = auto()
    # A numeric whose precision and scale make no decimal of Avro's: Creek says bytes, which hold none of its values.
    NUMERIC = auto()
    DATE = auto()
    TIME = auto()
    TIMESTAMP = auto()

    @property
    def has_infinities(self) -> bool:
        """Whether it is a union of a number and the enum of the infinities; Creek's time is one that has none."""
        return self in (Form.DATE, Form.TIME, Form.TIMESTAMP)


_FORMS: Final[Mapping[str, Form]] = MappingProxyType(
    {
        "bool": Form.BOOLEAN,
        "char": Form.STRING,
        "varchar": Form.STRING,
        "bpchar": Form.STRING,
        "date": Form.DATE,
        "float4": Form.FLOAT,
        "float8": Form.DOUBLE,
        "int2": Form.INT,
        "int4": Form.INT,
        "int8": Form.LONG,
        "json": Form.JSON,
        "jsonb": Form.JSON,
        "text": Form.STRING,
        "time": Form.TIME,
        "timestamp": Form.TIMESTAMP,
        "timestamptz": Form.TIMESTAMP,
        "uuid": Form.UUID,
        "numeric": Form.DECIMAL,
    }
)


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The type of a column on the wire; of an array, `form`, `oid`, `typmod`, `precision` and `scale` are its elements'."""

    pg_type: str
    form: Form
    oid: int
    typmod: int = -1
    is_array: bool = False
    precision: int = 0
    scale: int = 0

    @property
    def can_misfit(self) -> bool:
        """Whether there are values of the type that its form cannot hold.

        They are NULL in an array, further dimensions and lower bounds of one; NaN; all of an unconstrained numeric; and
        timestamps that are later than 64 bits of microseconds can tell.
        """
        return self.is_array or self.form in (Form.DECIMAL, Form.NUMERIC, Form.TIMESTAMP)


def column_type(types: Types, oid: int, typmod: int = -1) -> ColumnType:
    """The type of a column on the wire."""
    return types.compiled(_column_type, oid, typmod)


def _column_type(types: Types, oid: int, typmod: int) -> ColumnType:
    type_ = types.get(oid)
    if type_ is None:
        return ColumnType("text", Form.STRING, oid, typmod)
    is_array = type_.kind is Kind.ARRAY
    element = types.get(type_.element) if is_array else type_
    form = None if element is None else _FORMS.get(element.builtin_name)
    if element is None or form is None:
        return ColumnType("text", Form.STRING, oid, typmod)
    precision, scale = _attributes(typmod) if form is Form.DECIMAL else (0, 0)
    if form is Form.DECIMAL and not 0 <= scale <= precision:
        form, precision, scale = Form.NUMERIC, 0, 0
    return ColumnType(type_.name, form, element.oid, typmod, is_array, precision, scale)


def _attributes(typmod: int) -> tuple[int, int]:
    """Precision and scale of a numeric; without any, a scale that is less than 0."""
    # Precision in the upper half, scale as an 11-bit number with sign in the lower, and a header's 4 added to the whole.
    return ((typmod - 4) >> 16) & 0xFFFF, (((typmod - 4) & 0x7FF) ^ 0x400) - 0x400
