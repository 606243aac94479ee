"""The types that captured tables use, with those of the user's own read from the catalog, again whenever they may differ."""

import logging
import random
import time
from collections.abc import Callable, Iterable
from contextlib import closing

import numpy as np

from headwater.errors import DecodeError, HeadwaterError
from headwater.postgres.backoff import Backoff
from headwater.postgres.catalog import load_types
from headwater.postgres.connect import connect_sync, translated
from headwater.postgres.replication.batch import Batch, relations_in, tags_of
from headwater.postgres.replication.pgoutput import parse_relation
from headwater.postgres.types import Kind, PgType, Types

_log = logging.getLogger(__name__)

# With the waits of `Backoff` about three seconds in all: a server that restarts, not one that is gone.
_TRIES = 6

# Long enough that a connection made for it costs nothing, short enough for somebody who alters a type and looks.
_FRESH_SECONDS = 5


class CatalogTypes:
    """Answers for each batch with types that know all its columns; one that the catalog no longer has is read as text.

    A type of the user's own is read when it first appears, and again when the server describes a table that uses it, as it
    does after `alter table` and on a new connection. It does not after `alter type`, so composites are also read again when
    what is known of them is some seconds old. What is read is the catalog as it is then, which may be later than the
    changes. `wait` sleeps for seconds between tries at a server that is away for a moment; `clock` gives seconds.
    """

    def __init__(
        self, url: str, *, wait: Callable[[float], object] = time.sleep, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._url, self._wait, self._clock = url, wait, clock
        self._types = Types.builtin()
        self._asked: set[int] = set()
        self._has_composites = False
        self._read_at = 0.0
        self._seen: object = None

    def of(self, batch: Batch) -> Types:
        tags = tags_of(batch.data, batch.bounds)
        wanted: set[int] = set()
        # The Type messages in front of a Relation tell of no type that is not one of its columns'.
        if np.any(tags == ord("R")):
            wanted |= _own_types(relations_in(batch.data, batch.bounds, tags, batch.xid_bytes).values())
        if batch.relations is not self._seen:
            wanted |= _own_types(batch.relations.values()) - self._asked
            self._seen = batch.relations
        if self._has_composites and self._clock() - self._read_at >= _FRESH_SECONDS:
            wanted |= self._asked
        if wanted:
            self._learn(wanted)
        return self._types

    def _learn(self, oids: set[int]) -> None:
        try:
            loaded = self._load_patiently(oids)
        except HeadwaterError as error:
            if not error.retryable or oids - self._asked:
                raise
            # What is known of these types may well be right still, and if not, their values are text.
            _log.warning("types not read again: %s", error)
            loaded = []
        self._read_at = self._clock()
        # The same value as long as nothing is new, for it holds what was compiled for each type.
        if any(self._types.get(type_.oid) != type_ for type_ in loaded):
            self._types = self._types.extended(loaded)
            self._has_composites |= any(type_.kind is Kind.COMPOSITE for type_ in loaded)
        self._asked |= oids

    def _load_patiently(self, oids: set[int]) -> list[PgType]:
        for failures in range(1, _TRIES):
            try:
                return self._load(oids)
            except HeadwaterError as error:
                if not error.retryable:
                    raise
                _log.info("%s; trying again", error)
                self._wait(Backoff().after(failures, random.random()).total_seconds())
        return self._load(oids)

    def _load(self, oids: set[int]) -> list[PgType]:
        with translated(self._url), closing(connect_sync(self._url)) as connection:
            return load_types(connection, oids)


def _own_types(relations: Iterable[bytes]) -> set[int]:
    """The types of the columns that are not built in."""
    return {oid for message in relations for oid in _column_types(message)} - set(Types.builtin())


def _column_types(relation: bytes) -> list[int]:
    try:
        return [column.type_oid for column in parse_relation(relation).columns]
    except DecodeError:
        # Decoding the batch raises it again, with the place where it happened.
        return []
