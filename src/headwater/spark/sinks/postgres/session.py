"""Connections to the target that outlive a task, and trying again while it is away."""

import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from types import MappingProxyType
from typing import Final, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict

from headwater.errors import ConnectionLost, HeadwaterError, SinkError, SinkUnavailable
from headwater.postgres.backoff import Backoff
from headwater.postgres.catalog import load_types
from headwater.postgres.connect import Connection, connect_sync, describe, is_passing
from headwater.postgres.statements import execute_sync
from headwater.postgres.types import Types
from headwater.spark.frame import Layout
from headwater.spark.rules import SchemaChanges
from headwater.spark.sinks.postgres import statements
from headwater.spark.sinks.postgres.apply import Staging, reason_of
from headwater.spark.sinks.postgres.statements import table_statements
from headwater.spark.sinks.postgres.target import Fit, Misfit, Sent, Target, fit, narrowed, read_targets

Result = TypeVar("Result")

# How a target that fell silent is noticed, within half a minute; what the URL says of it wins.
_ALIVE: Final = MappingProxyType(
    {"keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "4", "tcp_user_timeout": "30000"}
)
# Lost races with other writers: serialization failure, deadlock, lock not available.
_LOST_RACES = ("40001", "40P01", "55P03")
# The target's tables are not what they were when this connection first saw them.
_STALE = "42"


@dataclass(frozen=True, slots=True)
class Address:
    """Which sink of which pipeline, where it writes to, and how long it waits for that to come back.

    `schema_changes` is what it does when tables are altered at the source.
    """

    pipeline: str
    sink: str
    url: str = field(repr=False)
    state_url: str = field(repr=False)
    patience: timedelta
    source_url: str = field(default="", repr=False)
    schema_changes: SchemaChanges = SchemaChanges.EVOLVE


class Session:
    """A connection to the target, with what was learned of its tables. It is opened when first used, or when it was lost."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Connection | None = None
        self._fits: dict[tuple[str, str, Sent, Layout | None], tuple[Fit, Staging]] = {}
        # How many staging tables there may be, by their numbers.
        self._made = 0

    @property
    def connection(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self.forget()
            self._connection = open_target(self._url)
        return self._connection

    def forget(self) -> None:
        """A transaction was undone, and with it the staging tables that were made in it."""
        self._fits.clear()
        self._made = 0

    def forget_table(self, schema: str, table: str) -> None:
        """A table may have been altered: what was learned of it is void."""
        for key in [key for key in self._fits if key[:2] == (schema, table)]:
            _, staging = self._fits.pop(key)
            execute_sync(self.connection, staging.statements.drop_staging)

    def begin(self) -> None:
        """A transaction has begun: staging tables are empty again, and no constraint waits for its end."""
        execute_sync(self.connection, statements.check_at_once())
        for _, staging in self._fits.values():
            staging.is_used = False

    def known(self, schema: str, table: str, sent: Sent, layout: Layout | None) -> tuple[Fit, Staging] | None:
        """How such changes went into a table before; None if that is not known, or may be otherwise by now."""
        return self._fits.get((schema, table, sent, layout))

    def fit(
        self, schema: str, table: str, sent: Sent, layout: Layout | None = None, *, is_narrow: bool = False
    ) -> tuple[Fit, Staging]:
        """How changes go into a table, and where they are staged; raises Misfit.

        If it `is_narrow`, columns that the target does not have are left out.
        """
        known = self.known(schema, table, sent, layout)
        if known is not None:
            return known
        connection = self.connection
        found = self.fit_whole(schema, table, sent, is_narrow=is_narrow)
        made = table_statements(found.target.identifier, f"headwater_{self._made}", found.columns, found.key)
        execute_sync(connection, made.drop_staging)
        execute_sync(connection, made.create_staging)
        self._made += 1
        self._fits[schema, table, sent, layout] = found, Staging(made)
        return self._fits[schema, table, sent, layout]

    def fit_whole(self, schema: str, table: str, sent: Sent, *, is_narrow: bool = False) -> Fit:
        """How the rows of a whole table go into it, as it is now; raises Misfit."""
        target = read_targets(self.connection, [(schema, table)]).get((schema, table))
        if target is None:
            raise Misfit(f"table {schema}.{table} is missing in the target; start the pipeline again to have it made")
        return fit(target, narrowed(target, sent) if is_narrow else sent, self._types(target))

    def _types(self, target: Target) -> Types:
        own = {column.type_oid for column in target.columns} - set(Types.builtin())
        return Types.builtin().extended(load_types(self.connection, own)) if own else Types.builtin()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


# As many targets as the pipelines of one Spark application are likely to write to at a time.
@lru_cache(maxsize=8)
def kept_session(url: str) -> Session:
    """The session of this process with a target: Spark's Python workers serve many tasks."""
    return Session(url)


def open_target(url: str) -> Connection:
    """A connection that reads and writes values as the source does, and notices when the target is gone."""
    given = conninfo_to_dict(url)
    connection = connect_sync(url, **{name: value for name, value in _ALIVE.items() if name not in given})
    execute_sync(connection, statements.set_session())
    # Without that right foreign keys are checked, and triggers fire.
    with suppress(psycopg.errors.InsufficientPrivilege):
        execute_sync(connection, statements.set_replica())
    return connection


def patiently(address: Address, session: Session, work: Callable[[], Result]) -> Result:
    """The result of `work`, which leaves nothing behind when it fails, and is done again while the target is away.

    Raises SinkUnavailable when it stays away, SinkError when it refuses.
    """
    deadline, failures, is_stale = time.monotonic() + address.patience.total_seconds(), 0, False
    while True:
        try:
            return work()
        except (psycopg.Error, ConnectionLost) as exc:
            session.close()
            failures += 1
            error = _translated(address, exc)
            state = exc.sqlstate or "" if isinstance(exc, psycopg.Error) else ""
            may_be_stale = state.startswith(_STALE) and not is_stale
            is_stale |= may_be_stale
            wait = Backoff(longest=timedelta(seconds=5)).after(failures, random.random()).total_seconds()
            if not (may_be_stale or error.retryable) or time.monotonic() + wait > deadline:
                raise error from exc
            time.sleep(wait)
        except Misfit as exc:
            session.close()
            raise SinkError(address.sink, str(exc)) from exc
        except Exception:
            # What was made in the transaction, such as staging tables, is gone with it.
            session.close()
            raise


def _translated(address: Address, error: psycopg.Error | ConnectionLost) -> HeadwaterError:
    server, waited = describe(address.url), int(address.patience.total_seconds())
    if isinstance(error, ConnectionLost):
        return SinkUnavailable(address.sink, f"gave up after {waited} s: {error}")
    if is_passing(error) or error.sqlstate in _LOST_RACES:
        said = error.diag.message_primary or "the connection was lost"
        return SinkUnavailable(
            address.sink,
            f"PostgreSQL at {server} gave up ({said}) for {waited} s; nothing was written, and it is tried again",
        )
    return SinkError(address.sink, f"PostgreSQL at {server} refused: {reason_of(error)}; correct it there, and start again")
