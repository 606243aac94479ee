"""What tests of capture share: a database with a table, a publication and a slot, and a reader of it."""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from headwater.capture import Capture, CaptureSettings
from headwater.model import Change, LogicalMessage, Lsn
from headwater.postgres.connect import Connection, connect_sync
from headwater.postgres.replication.batch import Batch
from headwater.postgres.replication.rows import decode_rows
from headwater.postgres.replication.slot import create_slot
from headwater.postgres.replication.stream import ReplicationConnection
from headwater.postgres.types import Types

TYPES = Types.builtin()


def prepare(url: str, *statements: str) -> Connection:
    """A table `item`, published, with a slot `hw`; then the statements, each in its own transaction."""
    connection = connect_sync(url)
    connection.execute("create table item (id int primary key, v text)")
    connection.execute("create publication pub for table item")
    with closing(ReplicationConnection(url)) as replication:
        create_slot(replication, "hw")
    for statement in statements:
        connection.execute(statement.encode())
    return connection


def settings(url: str, **changed: object) -> CaptureSettings:
    return replace(CaptureSettings(url=url, slot="hw", publications=("pub",)), **changed)  # type: ignore[arg-type]


def decoded(batch: Batch) -> list[Change | LogicalMessage]:
    return list(decode_rows(batch, TYPES))


def changes_in(batch: Batch) -> list[Change]:
    return [change for change in decoded(batch) if isinstance(change, Change)]


def row_after(change: Change) -> Mapping[str, Any]:
    """The row as a change has left it, which it has."""
    assert change.after is not None
    return change.after


def collect(capture: Capture, enough: Callable[[list[Change]], bool], *, confirm: bool = True) -> list[Change]:
    """Take changes until there are enough; each batch is confirmed unless told otherwise."""
    found: list[Change] = []
    while not enough(found):
        batch = capture.take(15)
        assert batch is not None, f"nothing more came after {len(found)} changes"
        found += changes_in(batch)
        if confirm and batch.end:
            capture.confirm(batch.end)
    return found


def take(capture: Capture) -> Batch:
    """The next batch, which must come."""
    batch = capture.take(15)
    assert batch is not None, "nothing came"
    return batch


def count(wanted: int) -> Callable[[list[Change]], bool]:
    return lambda found: len(found) >= wanted


def ids(changes: list[Change]) -> list[object]:
    return [(change.after or change.key or {})["id"] for change in changes]


def ask(connection: Connection, query: str, *parameters: object) -> Any:
    """The one value that a query gives."""
    ((value,),) = connection.execute(query.encode(), parameters)
    return value


def open_files(directory: Path) -> int:
    """How many files below a directory this process has open, also those without a name."""
    opened = (entry.readlink() for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink())
    return sum(path.is_relative_to(directory) for path in opened)


def confirmed_flush(connection: Connection, slot: str = "hw") -> Lsn:
    return Lsn(ask(connection, "select confirmed_flush_lsn from pg_replication_slots where slot_name = %s", slot))
