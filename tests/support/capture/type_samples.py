"""A few values of every type, as text that the server reads: usual ones, and those at the edges.

What holds other values (arrays, composites, multiranges, domains without rules) is made from the samples of its parts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from headwater.postgres.types import Kind, Types

# The server writes values of these, and its input function refuses all text; they live in system tables and indexes only.
NO_INPUT: Mapping[str, str] = MappingProxyType(
    {
        "gtsvector": "the key of a text search index",
        "pg_node_tree": "a parsed expression",
        "pg_ndistinct": "extended statistics",
        "pg_dependencies": "extended statistics",
        "pg_mcv_list": "extended statistics",
        "pg_brin_bloom_summary": "the entry of a BRIN index",
        "pg_brin_minmax_multi_summary": "the entry of a BRIN index",
    }
)

_AWKWARD_TEXT = ["", " ", "NULL", "null", 'a"b', "a\\b", "{a,b}", "(a,b)", "[a,b)", "line\nend\tx", "é😀", "it's; a, test"]
_JSON = ["null", "1.0", '"x"', '{"a": [1, null], "b": "\\u00e9"}', "[]", '""']
_TIMES = ["00:00:00", "21:36:08.12", "23:59:59.999999", "24:00:00"]
_DATES = ["2026-11-15", "0001-01-01", "9999-12-31", "10000-01-01", "5874897-12-31", "4713-01-01 BC", "infinity", "-infinity"]
_MOMENTS = [
    *("2026-11-15 21:36:08.12", "1970-01-01 00:00:00", "2000-02-29 23:59:59.999999", "0001-01-01 00:00:00", "infinity"),
    *("9999-12-31 23:59:59.999999", "10000-01-01 00:00:00", "294247-01-10 04:00:54.775806", "-infinity"),
    *("4713-01-01 00:00:00 BC", "0001-12-31 23:59:59.999999 BC"),
]

# int64 microseconds end at the first of these, and mean an infinity there.
REJECTED_MOMENTS = ("294247-01-10 04:00:54.775807", "294276-12-31 23:59:59.999999")

BASE: Mapping[str, list[str]] = MappingProxyType(
    {
        "bool": ["t", "f"],
        "bytea": ["\\x", "\\x00", "\\xdeadbeef00ff", "\\x22275c7b7d2c"],
        "char": ["a", "", " ", '"', "\\", ",", "\\377"],
        "name": ["abc", "", 'With "quotes"', "x" * 63],
        "int8": ["0", "-1", "9223372036854775807", "-9223372036854775808"],
        "int2": ["0", "-1", "32767", "-32768"],
        "int2vector": ["1 2 3", "", "-32768"],
        "int4": ["0", "-1", "2147483647", "-2147483648"],
        "regproc": ["now", "-"],
        "text": _AWKWARD_TEXT,
        "oid": ["0", "4294967295"],
        "tid": ["(0,1)", "(4294967295,65535)"],
        "xid": ["0", "4294967295"],
        "cid": ["0", "4294967295"],
        "oidvector": ["1 2 4294967295", ""],
        "json": [*_JSON, ' {"b" : 1, "a":1, "a":2} '],
        "xml": ["<a b='c'>x &amp; y</a>", "text"],
        "point": ["(1,2)", "(-0.5,1e+300)", "(Infinity,NaN)"],
        "lseg": ["[(0,0),(1,1)]"],
        "path": ["[(0,0),(1,1)]", "((0,0),(1,1),(2,0))"],
        "box": ["(2,2),(0,0)", "(1.5,1),(0,-1)"],
        "polygon": ["((0,0),(1,1),(2,0))"],
        "line": ["{1,-1,0}"],
        "cidr": ["10.0.0.0/8", "2001:db8::/32"],
        "float4": ["0", "-0", "0.1", "3.4028235e+38", "1e-45", "1e+10", "NaN", "Infinity", "-Infinity"],
        "float8": [
            "0",
            "-0",
            "0.1",
            "1.7976931348623157e+308",
            "5e-324",
            "1e+15",
            "123456789012345680",
            "NaN",
            "Infinity",
            "-Infinity",
        ],
        "circle": ["<(0,0),1.5>"],
        "macaddr8": ["08:00:2b:01:02:03:04:05"],
        "money": ["$0.00", "-$92,233,720,368,547,758.08", "$1,234.50"],
        "macaddr": ["08:00:2b:01:02:03"],
        "inet": ["10.0.0.1", "10.0.0.1/8", "::1", "::ffff:1.2.3.4/100"],
        "aclitem": ["=r/pg_monitor", "pg_monitor=arwd*/pg_read_all_data"],
        "bpchar": ["", "abc", "abc  ", *_AWKWARD_TEXT],
        "varchar": _AWKWARD_TEXT,
        "date": _DATES,
        "time": _TIMES,
        "timestamp": [*_MOMENTS, *REJECTED_MOMENTS],
        "timestamptz": [*(f"{moment} UTC" if "inf" not in moment else moment for moment in (*_MOMENTS, *REJECTED_MOMENTS))],
        "interval": ["PT0S", "P1Y2M3DT4H5M6.789S", "P-178000000Y", "-1 day 00:00:01", "1 year -1 month"],
        "timetz": ["00:00:00+00", "24:00:00-15:59:59", "21:36:08.12+05:30"],
        "bit": ["1", "0101", "000000001"],
        "varbit": ["", "0101"],
        "numeric": ["0", "1.50", "-0.00000000000000000001", "NaN", "Infinity", "-Infinity", "9" * 60, "1e500", "1e-300"],
        "refcursor": ["c", "<unnamed portal 1>"],
        "regprocedure": ["now()", "pg_catalog.lower(text)"],
        "regoper": ["||/"],
        "regoperator": ["+(integer,integer)"],
        "regclass": ["pg_class", "-", "4000000000"],
        "regtype": ["int4", "timestamp with time zone", '"char"', "text[]"],
        "uuid": ["00000000-0000-0000-0000-000000000000", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
        "txid_snapshot": ["10:20:10,14", "10:20:"],
        "pg_lsn": ["0/0", "FFFFFFFF/FFFFFFFF"],
        "tsvector": ["", "'a':1A 'it''s':2,3", "'b c' 'd\\e'"],
        "tsquery": ["", "'a' & ( !'b':*A | 'c d' ) <-> 'e'"],
        "regconfig": ["simple"],
        "regdictionary": ["simple"],
        "jsonb": _JSON,
        "jsonpath": ["$.a[*]?(@ > 1)", 'lax $."b c"'],
        "regnamespace": ["pg_catalog"],
        "regrole": ["pg_monitor"],
        "regcollation": ['"C"'],
        "pg_snapshot": ["10:20:10,14", "10:20:"],
        "xid8": ["0", "18446744073709551615"],
    }
)

# By name: ranges, whose bounds must be in order, and domains with rules of their own.
OTHER: Mapping[str, list[str]] = MappingProxyType(
    {
        "int4range": ["empty", "[1,10)", "(,)", "[5,)", "(,-5)"],
        "int8range": ["empty", "[1,9223372036854775807)", "(,)"],
        "numrange": ["empty", "[1.50,2.00]", "(1,NaN)", "(,Infinity]"],
        "tsrange": [
            "empty",
            '["2026-01-01 00:00:00","2026-11-15 21:36:08.12")',
            "[-infinity,infinity]",
            '("0044-03-15 00:00:00 BC",)',
        ],
        "tstzrange": ["empty", '["2026-01-01 00:00:00+00","10000-01-01 00:00:00+00"]', "(,infinity)"],
        "daterange": ["empty", "[2026-01-01,2026-11-15)", "[-infinity,infinity]", "[0044-03-15 BC,10000-01-01)"],
        "yes_or_no": ["YES", "NO"],
        "cardinal_number": ["0", "2147483647"],
        # timestamptz(2), which the server rounds past its own last moment.
        "time_stamp": ["2026-11-15 21:36:08.12+00", "infinity"],
        "amount": ["0.00", "-1.50", "99999999.99", "NaN"],
        "fee": ["1.10", "NaN"],
        "label_range": ["empty", '[a,"b c"]', '["",)', '("a""b","b\\\\")', "[{,})"],
        "mood_range": ["[sad,happy]", "empty", '["so so",)'],
    }
)


@dataclass(frozen=True, slots=True)
class Samples:
    """The samples of a database's types; `labels` are those of its enums by oid."""

    types: Types
    labels: Mapping[int, list[str]]
    no_input: Mapping[str, str]

    def of(self, oid: int) -> list[str] | None:
        """Texts that the server reads as values of a type; none for one that has no input, None if there are no samples."""
        type_ = self.types.get(oid)
        if type_ is None or type_.name in self.no_input:
            # What the catalog gives no type for is a pseudo-type, such as the anyarray of pg_statistic.
            return []
        if type_.name in OTHER:
            return OTHER[type_.name]
        match type_.kind:
            case Kind.ARRAY:
                return _arrays(self.types.delimiter(type_), self.of(type_.element))
            case Kind.COMPOSITE:
                return _rows([self.of(field.oid) for field in type_.fields])
            case Kind.MULTIRANGE:
                return _multiranges(self.of(type_.element))
            case Kind.DOMAIN:
                return self.of(type_.base)
            case Kind.ENUM:
                return self.labels.get(oid)
            case _:
                return BASE.get(type_.builtin_name)


def _arrays(delimiter: str, elements: list[str] | None) -> list[str] | None:
    if elements is None:
        return None
    quoted = [_quoted(element) for element in elements]
    one = delimiter.join([*quoted, "NULL"])
    return [
        "{}",
        "{NULL}",
        "{" + one + "}",
        "{{" + one + "}" + delimiter + "{" + one + "}}",
        f"[0:{len(quoted)}]=" + "{" + one + "}",
    ]


def _rows(fields: list[list[str] | None]) -> list[str] | None:
    if None in fields:
        return None
    first, last = ([field[at] if field else None for field in fields if field is not None] for at in (0, -1))
    return [
        "(" + ",".join("" if part is None else _quoted(part) for part in parts) + ")"
        for parts in (first, last, [None] * len(fields))
    ]


def _multiranges(ranges: list[str] | None) -> list[str] | None:
    if ranges is None:
        return None
    single = [range_ for range_ in ranges if range_ != "empty"]
    return ["{}", *("{" + range_ + "}" for range_ in single), "{" + ",".join(single) + "}"]


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
