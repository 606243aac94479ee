"""Which table of which database goes into which table of the target: `database.schema.table:schema.table`. Pure.

A name with a dot, a colon or a quote in it is quoted as in SQL. Letters stay as they are, quoted or not, as in Creek's
subjects. `written_name` and `parse_mapping` of the SQL API do the same, for what is stored.
"""

import re
from dataclasses import dataclass

from headwater.errors import SettingsError

_NAME = r'("(?:[^"]|"")+"|[^".:]+)'
_TOPIC = re.compile(rf"{_NAME}\.{_NAME}\.{_NAME}")
_TARGET = re.compile(rf"{_NAME}\.{_NAME}")
_MAPPING = re.compile(rf"{_NAME}\.{_NAME}\.{_NAME}(?::{_NAME}\.{_NAME})?")
_SPECIAL = re.compile(r'[.:"]')


@dataclass(frozen=True, slots=True, order=True)
class Topic:
    """A table of a source database."""

    database: str
    schema: str
    table: str

    def __str__(self) -> str:
        return ".".join(map(written, (self.database, self.schema, self.table)))

    @classmethod
    def parse(cls, text: str) -> "Topic":
        match = _TOPIC.fullmatch(text.strip())
        if match is None:
            raise SettingsError(f"{text!r} names no table; write it as database.schema.table")
        return cls(*map(_plain, match.groups()))


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """A table of the target database."""

    schema: str
    table: str

    def __str__(self) -> str:
        return f"{written(self.schema)}.{written(self.table)}"

    @property
    def name(self) -> tuple[str, str]:
        return self.schema, self.table

    @classmethod
    def parse(cls, text: str) -> "Target":
        match = _TARGET.fullmatch(text.strip())
        if match is None:
            raise SettingsError(f"{text!r} names no table of the target; write it as schema.table")
        return cls(*map(_plain, match.groups()))


@dataclass(frozen=True, slots=True, order=True)
class TableMapping:
    """A table of a source, and where it goes."""

    topic: Topic
    target: Target

    def __str__(self) -> str:
        return f"{self.topic}:{self.target}"

    @classmethod
    def parse(cls, text: str) -> "TableMapping":
        """Without a target, the table of the same name."""
        match = _MAPPING.fullmatch(text.strip())
        if match is None:
            raise SettingsError(
                f"{text!r} is no mapping of a table; write it as database.schema.table:target_schema.target_table, with "
                "names that have a dot or a colon in quotes"
            )
        database, schema, table, *target = (_plain(part) for part in match.groups() if part is not None)
        return cls(Topic(database, schema, table), Target(*target) if target else Target(schema, table))


def written(name: str) -> str:
    """The name with quotes if it cannot do without."""
    return '"' + name.replace('"', '""') + '"' if _SPECIAL.search(name) or name != name.strip(" \t\r\n") else name


def _plain(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part.strip()
