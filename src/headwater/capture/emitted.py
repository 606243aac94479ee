"""Logical messages of a prefix as rows of a table that there is not: so they have positions, and go through ranges and lanes
as rows do. Only those of a transaction count, which come when it has committed. Pure."""

from collections.abc import Iterable, Iterator
from typing import Final

from headwater.postgres.replication.compose import describe_relation, insert_row
from headwater.postgres.replication.messages import Message, Relation, RelationColumn
from headwater.postgres.replication.pgoutput import decode

_TEXT: Final = 25
# No table has this number: the server counts from 16384 on, and comes round before it.
EMITTED: Final = Relation(
    0xFFFFFFFF,
    "headwater",
    "emitted",
    "n",
    (RelationColumn("lsn", False, _TEXT, -1), RelationColumn("content", False, _TEXT, -1)),
)
_MESSAGE: Final = ord("M")


class EmittedRows:
    """Takes messages in the order of the stream, and gives them with those of the prefix made into inserts."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._is_described = False

    def of(self, messages: Iterable[memoryview]) -> Iterator[memoryview]:
        for message in messages:
            found = decode(message) if len(message) and message[0] == _MESSAGE else None
            if not isinstance(found, Message) or not found.transactional or found.prefix != self._prefix:
                yield message
                continue
            if not self._is_described:
                self._is_described = True
                yield memoryview(describe_relation(EMITTED))
            # What is no text is no event either, and whoever reads it says so.
            yield memoryview(insert_row(EMITTED.oid, (str(found.lsn), found.content.decode(errors="replace"))))
