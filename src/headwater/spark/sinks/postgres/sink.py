"""The sink that keeps tables of another PostgreSQL equal to those of the source, each change exactly once."""

import logging
from collections.abc import Collection, Sequence
from contextlib import closing, suppress
from datetime import timedelta
from typing import Final

import psycopg
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, when

from headwater.capture.tables import prepare_tables
from headwater.errors import HeadwaterError, SettingsError, SinkError
from headwater.model import Lineage, Op
from headwater.postgres.catalog import read_server
from headwater.postgres.connect import Connection, connect_sync, translate, translated
from headwater.postgres.migrate import Component, migrate
from headwater.postgres.statements import fetch_sync
from headwater.spark.letters import Letter, OpenLetter, frame_of, is_attempt_of, list_open, prepare_letters
from headwater.spark.rules import SchemaChanges
from headwater.spark.shape import Shape
from headwater.spark.sink_settings import PostgresSinkSettings
from headwater.spark.sinks.postgres.envelope import Envelopes
from headwater.spark.sinks.postgres.follow import Follower, find_followed
from headwater.spark.sinks.postgres.lane import Inputs, replay_change
from headwater.spark.sinks.postgres.loading_statements import list_attempts
from headwater.spark.sinks.postgres.positions import take_over
from headwater.spark.sinks.postgres.prepare import (
    Expected,
    SourceTable,
    create_missing,
    is_source,
    problems,
    read_source,
    read_tables,
    require_fit,
)
from headwater.spark.sinks.postgres.session import Address, Session, open_target, patiently
from headwater.spark.sinks.postgres.statements import Table
from headwater.spark.sinks.postgres.swap import TableSwapper
from headwater.spark.sinks.postgres.target import Misfit
from headwater.spark.sinks.postgres.task import LOADED_LANE, OUTCOME, WriteTask, total
from headwater.spark.sinks.postgres.wire import Frames
from headwater.spark.sinks.sink import Loading, Span, Written
from headwater.spark.sources.layouts import read_layouts

_log = logging.getLogger(__name__)

# About as long as a server takes to restart, or a standby to be promoted.
_PATIENCE = timedelta(seconds=30)


_ITSELF: Final = "the target is the source's own database, so changes would go round in circles; name another database"


class PostgresSink:
    """Writes changes to the tables of the same names in another database.

    A table's rows and its position are in one transaction, so that what comes again is left out. `tables` are names or
    patterns at the source. The rows of a DataFrame `changes` do not say what their positions belong to: `lineage` does.
    `patience` is how long a target that is away is waited for before SinkUnavailable is raised.
    """

    def __init__(  # noqa: PLR0913 - who delivers, from where, to where; and two that tests and notebooks may set
        self,
        settings: PostgresSinkSettings,
        *,
        pipeline: str,
        source_url: str,
        state_url: str,
        tables: Sequence[str],
        lineage: Lineage | None = None,
        patience: timedelta = _PATIENCE,
    ) -> None:
        self._settings, self._source_url, self._tables = settings, source_url, tuple(tables)
        self._address = Address(
            pipeline, settings.name, settings.url, state_url, patience, source_url, settings.schema_changes
        )
        self._lineage = lineage
        self._session = Session(settings.url)
        self._epoch = 0
        # The attempt at loading tables that this run has begun, or gone on with, last.
        self._attempt: str | None = None
        # Whether there may be letters that wait; a write that made some sets it.
        self._may_have_letters = True

    @property
    def name(self) -> str:
        return self._settings.name

    def check(self) -> list[str]:
        """What would fail later, each with its remedy; writes nothing."""
        try:
            source = read_source(self._source_url, self._tables)
            with translated(self._settings.url), closing(open_target(self._settings.url)) as connection:
                if is_source(connection, self._source_url):
                    return [_ITSELF]
                return list(problems(connection, source, self._expected(connection, source)))
        except HeadwaterError as error:
            return [str(error)]
        except psycopg.Error as exc:
            return [str(translate(exc, self._settings.url))]

    def open(self) -> None:
        prepare_letters(self._address.state_url)
        prepare_tables(self._address.state_url)
        source = read_source(self._source_url, self._tables)
        self._lineage = self._lineage or self._source_lineage()
        layouts = read_layouts(self._source_url, _names(source)) if self._settings.schema_changes.follows else {}

        def prepare() -> int:
            connection = self._session.connection
            if is_source(connection, self._source_url):
                raise Misfit(_ITSELF)
            migrate(connection, Component.of("headwater.spark.sinks.postgres"))
            with connection.transaction():
                require_fit(connection, source, self._expected(connection, source))
                create_missing(connection, source)
                Follower(self._address, self._session).take_over(layouts)
                return take_over(connection, self._address)

        self._epoch = patiently(self._address, self._session, prepare)
        self._attempt = None
        self._may_have_letters = True

    def write(self, batch: DataFrame, shape: Shape, span: Span) -> Written:
        if shape is Shape.TABLE:
            raise SettingsError("the postgres sink takes changes of the shapes wire and envelope, not table")
        swapped = Written() if span.loading is None else self._prepare_load(span.loading)
        if shape is Shape.ENVELOPE:
            batch = _in_lanes(batch)
        letters = self._open_letters()
        written, loaded = self._run(batch, shape, span, letters, is_alone=False)
        if written is None:
            # Lanes stood in each other's way: those that could not are done again, in the order of all their changes.
            changes = batch.filter(f"lane <> {LOADED_LANE}" if shape is Shape.WIRE else f"not op <=> '{Op.READ}'")
            written, _ = self._run(changes.coalesce(1), shape, span, letters, is_alone=True)
        if written is None:
            raise SinkError(self.name, "changes are in each other's way, though no other task has any; report it")
        written += loaded + swapped
        self._may_have_letters |= written.letters > 0
        return written

    def replay(self, letter: Letter) -> None:
        """Apply the change of a dead letter, without regard to positions, which it does not move.

        Raises SinkError with the reason if it still cannot be taken.
        """
        inputs: Inputs
        self._require_swapped(letter)
        if letter.envelope is None:
            inputs = Frames([frame_of(letter)])
        else:
            inputs = Envelopes([_row(letter)], self._lineage or self._source_lineage(), self.name)
        replay_change(self._address, self._session, inputs, moves=letter.new_key is not None)

    def close(self) -> None:
        self._session.close()

    def _run(
        self, batch: DataFrame, shape: Shape, span: Span, letters: tuple[OpenLetter, ...], *, is_alone: bool
    ) -> tuple[Written | None, Written]:
        task = WriteTask(self._address, self._epoch, shape, span, letters, self._opened_lineage, is_alone)
        outcomes = batch.mapInArrow(task, OUTCOME).collect()
        for note in (note for row in outcomes if row["notes"] for note in row["notes"].splitlines()):
            _log.warning("sink %s: %s", self.name, note, extra={"pipeline": self._address.pipeline, "sink": self.name})
        return total(self.name, outcomes)

    def _expected(self, connection: Connection, source: Sequence[SourceTable]) -> Expected:
        rule, creates = self._settings.schema_changes, self._settings.create_tables
        followed: Collection[Table] = ()
        if rule.follows:
            # A check may come before the first run, which makes the table of layouts.
            with suppress(psycopg.errors.UndefinedTable):
                followed = find_followed(connection, self._address, _names(source)).keys()
        return Expected(creates, is_narrow=rule is SchemaChanges.IGNORE, followed=followed)

    def _prepare_load(self, loading: Loading) -> Written:
        """What comes before the rows of a batch: a new attempt is begun, or one that is complete swapped in."""
        swapper = TableSwapper(self._address, self._session, self._epoch, self._opened_lineage)
        if self._attempt != loading.attempt:
            source = read_tables(self._source_url, loading.tables)
            swapper.begin(loading, source, creates=self._settings.create_tables)
            self._attempt, self._may_have_letters = loading.attempt, True
        return swapper.swap(loading) if loading.is_complete else Written()

    def _require_swapped(self, letter: Letter) -> None:
        """A row that waits aside with others of its table cannot go there before them: the swap would take it out again."""
        if letter.op != Op.READ:
            return

        def is_loading() -> bool:
            attempts = fetch_sync(self._session.connection, list_attempts(self._address))
            return any(is_attempt_of(attempt, letter.event_id) for attempt in attempts)

        if patiently(self._address, self._session, is_loading):
            raise SinkError(
                self.name,
                f"table {letter.schema}.{letter.table} is still being loaded; replay the letter when it is complete",
            )

    @property
    def _opened_lineage(self) -> Lineage:
        if self._lineage is None:
            raise SinkError(self.name, "it was not opened; call open() before the first batch")
        return self._lineage

    def _open_letters(self) -> tuple[OpenLetter, ...]:
        if not self._may_have_letters:
            return ()
        url = self._address.state_url
        with translated(url), closing(connect_sync(url)) as state:
            found = tuple(list_open(state, self._address.pipeline, self._address.sink))
        self._may_have_letters = bool(found)
        return found

    def _source_lineage(self) -> Lineage:
        """What tells the source from any other, for changes that do not say where they came from."""
        with translated(self._source_url), closing(connect_sync(self._source_url)) as connection:
            server = read_server(connection)
        return Lineage(server.system_identifier, 1, (), server.database, self._address.pipeline)


def _in_lanes(batch: DataFrame) -> DataFrame:
    """The changes of a table together and in order; behind them rows of whole tables, in parts that are always the same."""
    lanes, is_read = batch.sparkSession.sparkContext.defaultParallelism, col("op").eqNullSafe(str(Op.READ))
    # Rows of whole tables are spread by their number, which is NULL for the others.
    parted = batch.repartition(lanes, "schema", "table", when(is_read, col("ordinal")))
    read_table = [when(is_read, col(name)) for name in ("schema", "table")]
    return parted.sortWithinPartitions(is_read, *read_table, "commit_lsn", "ordinal")


def _names(source: Sequence[SourceTable]) -> list[Table]:
    return [(one.table.schema, one.table.name) for one in source]


def _row(letter: Letter) -> dict[str, object]:
    return {**(letter.envelope or {}), "committed_at": letter.committed_at}
