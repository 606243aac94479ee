"""Which run may write, and how far each table is: rows of the target, written in the transaction of the changes."""

import hashlib
from collections.abc import Sequence

from headwater.errors import SinkError, SinkFenced
from headwater.model import Lineage, Lsn
from headwater.postgres.connect import Connection
from headwater.postgres.statements import execute_sync, fetch_sync
from headwater.spark.sinks.postgres import statements
from headwater.spark.sinks.postgres.session import Address
from headwater.spark.sinks.postgres.statements import LanePosition, Reached, Table
from headwater.spark.sinks.sink import Span


def take_over(connection: Connection, address: Address) -> int:
    """The number of this run, from which on no earlier one can write; waits for what they write, but not for ever."""
    fetch_sync(connection, statements.limit_waiting(int(address.patience.total_seconds() * 1000)))
    return fetch_sync(connection, statements.take_epoch(address.pipeline, address.sink))[0]


def hold(
    connection: Connection, address: Address, epoch: int, locks: Sequence[str], tables: Sequence[Table]
) -> list[LanePosition]:
    """How far some tables are, once it is sure that until the transaction ends this run may write, and nobody else does.

    `locks` name what no other task of this run writes, except one that does the same again. Raises SinkFenced.
    """
    pipeline, sink = address.pipeline, address.sink
    held = statements.hold_epoch(pipeline, sink, [_number(pipeline, sink, lock) for lock in locks])
    asked = statements.list_positions(pipeline, sink, tables)
    with (
        connection.cursor(row_factory=held.row_factory) as epochs,
        connection.cursor(row_factory=asked.row_factory) as positions,
    ):
        # Both in one go; the second sees what was committed while the first one waited.
        with connection.pipeline():
            epochs.execute(held.query, held.parameters)
            positions.execute(asked.query, asked.parameters)
        if epochs.fetchall() != [epoch]:
            raise SinkFenced(
                sink,
                f"a later run of pipeline {pipeline!r} has taken it over; stop one of them, and start the other again",
            )
        return positions.fetchall()


def check_origin(address: Address, positions: Sequence[LanePosition], lineages: Sequence[Lineage]) -> None:
    """Raise SinkError unless all positions are part of the history that the changes come from."""
    for one in positions:
        for lineage in lineages:
            _check_origin(address, one, lineage)


def _check_origin(address: Address, one: LanePosition, lineage: Lineage) -> None:
    remedy = "give the pipeline another name, and start from a copy of the table"
    if one.system_identifier not in (None, lineage.system_identifier):
        raise SinkError(
            address.sink,
            f"table {one.schema}.{one.table} was written from another server (system identifier {one.system_identifier}, "
            f"now {lineage.system_identifier}), whose positions mean nothing here; {remedy}",
        )
    if one.timeline not in (None, timeline_before(lineage, one.commit_lsn)):
        raise SinkError(
            address.sink,
            f"table {one.schema}.{one.table} holds changes up to {one.commit_lsn} of timeline {one.timeline}, which the "
            f"server does not have any more (a standby that lagged when it was promoted, or restored); {remedy}",
        )


def timeline_before(lineage: Lineage, lsn: Lsn) -> int:
    """The timeline that wrote what ends at a position."""
    return lineage.timeline_of(Lsn(max(0, lsn - 1)))


def move_on(
    connection: Connection, address: Address, positions: Sequence[LanePosition], reached: Sequence[Reached], span: Span
) -> None:
    """Say that all changes of some lanes before the end of a span are applied."""
    known = {(one.schema, one.table, one.lanes, one.lane): one.position for one in positions}
    behind = [one for one in reached if known.get((one.schema, one.table, one.lanes, one.lane), span.start) < span.end]
    if behind:
        execute_sync(connection, statements.save_positions(address.pipeline, address.sink, behind, span.end))


def _number(*names: str) -> int:
    """A number for an advisory lock, the same in all processes."""
    return int.from_bytes(hashlib.blake2b("\0".join(names).encode(), digest_size=8).digest(), signed=True)
