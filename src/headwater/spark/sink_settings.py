"""The settings of sinks that are not brokers; workers load them, and none of the brokers in `settings`."""

from dataclasses import dataclass, field

from headwater.errors import SettingsError
from headwater.spark.rules import SchemaChanges


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresSinkSettings:
    """Tables of another database, kept equal to those of the source; missing ones are made if `create_tables`."""

    name: str
    url: str = field(repr=False)
    create_tables: bool = True
    schema_changes: SchemaChanges = SchemaChanges.EVOLVE


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTableSettings:
    """A table of another database, or of the same, that messages of a topic are written to, each exactly once."""

    name: str
    url: str = field(repr=False)
    table: str
    create_tables: bool = True

    def __post_init__(self) -> None:
        if len(self.table.split(".")) != 2 or not all(self.table.split(".")):
            raise SettingsError(f"table {self.table!r} names no table; write it as schema.table")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSinkSettings:
    """A topic that changes of tables are appended to, each exactly once."""

    name: str
    url: str = field(repr=False)
    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetSinkSettings:
    """Parquet files under a directory, one folder per table and day."""

    name: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSinkSettings:
    """JSON lines on standard output."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoopSinkSettings:
    """Nowhere: to measure what reading costs."""

    name: str
