"""PostgreSQL's types: which there are, and their values from the server's text to Python, JSON and Arrow.

The text is that of a session with `datestyle = ISO`, `intervalstyle = iso_8601`, `timezone = UTC`, `extra_float_digits = 1`,
`bytea_output = hex` and UTF-8. `to_python`, `to_text` and `to_json` give a function per type, compiled once for a `Types`
value; `from_text` converts a whole column to Arrow, `to_json_column` to JSON.
"""

from headwater.postgres.types.arrow import arrow_type, from_text
from headwater.postgres.types.json_columns import to_json_column
from headwater.postgres.types.json_form import to_json
from headwater.postgres.types.python import to_python, to_text
from headwater.postgres.types.registry import Field, Kind, PgType, Types
from headwater.postgres.types.unusual import Rejected

__all__ = [
    "Field",
    "Kind",
    "PgType",
    "Rejected",
    "Types",
    "arrow_type",
    "from_text",
    "to_json",
    "to_json_column",
    "to_python",
    "to_text",
]
