"""The types that captured tables use, with those of the user's own read from the catalog when they first appear."""

from collections.abc import Iterable
from contextlib import closing

import numpy as np

from headwater.postgres.catalog import load_types
from headwater.postgres.connect import connect_sync
from headwater.postgres.replication.batch import Batch, relations_in, tags_of
from headwater.postgres.replication.pgoutput import parse_relation
from headwater.postgres.types import Types


class CatalogTypes:
    """Answers for each batch with types that know all its columns; one that the catalog no longer has is read as text."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._types = Types.builtin()
        self._asked: set[int] = set()
        self._seen: object = None

    def of(self, batch: Batch) -> Types:
        tags = tags_of(batch.data, batch.bounds)
        if batch.relations is not self._seen or np.any(tags == ord("R")):
            self._seen = batch.relations
            sent = relations_in(batch.data, batch.bounds, tags, batch.xid_bytes)
            self._learn({**batch.relations, **sent}.values())
        return self._types

    def _learn(self, relations: Iterable[bytes]) -> None:
        used = {column.type_oid for message in relations for column in parse_relation(message).columns}
        unknown = used - set(self._types) - self._asked
        if unknown:
            with closing(connect_sync(self._url)) as connection:
                self._types = self._types.extended(load_types(connection, unknown))
            self._asked |= unknown
