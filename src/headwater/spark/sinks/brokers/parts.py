"""From what a partition holds to messages for a broker: messages of an outbox as they are, changes as JSON. Pure.

A change goes to the topic `schema.table`, its type is the operation, and its key that of the row, as JSON.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from headwater.creek.encode import UNCHANGED_HEADER
from headwater.errors import SinkError
from headwater.model import MESSAGE, Lineage, Messages
from headwater.spark.frame import unpack
from headwater.spark.letters import Letter
from headwater.spark.shape import Shape
from headwater.spark.sinks.brokers.letters import letters_of
from headwater.spark.sinks.nats.parts import JsonParts, Part, Whose
from headwater.spark.sources.outbox.messages import unpack_messages

# The letters of messages by their place, given why each is refused.
MakeLetters: TypeAlias = Callable[[Mapping[int, str]], list[Letter]]
Given: TypeAlias = tuple[Messages, MakeLetters]

_JSON: Final = "application/json"
_NO_TOPIC: Final = "it has no topic, or is no event, so that there is nowhere to send it"


@dataclass(frozen=True, slots=True)
class Parts:
    """Takes the batches of a partition apart. `table` is where the messages of an outbox were written.

    `lineage` and `attempt` name the rows of a DataFrame `changes`, which do not say what their positions belong to.
    """

    whose: Whose
    shape: Shape
    table: tuple[str, str]
    lineage: Lineage | None = None
    attempt: str = ""

    def of(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[list[Given], list[Letter]]]:
        """Messages in their order, with how to make letters of them; and the letters of rows that can be none."""
        for batch in batches:
            match self.shape:
                case Shape.MESSAGE:
                    yield self._of_messages(batch)
                case Shape.PACKED:
                    yield from (self._of_messages(unpack_messages(packed.as_buffer())) for packed in batch["frame"])
                case Shape.WIRE:
                    for packed in batch["frame"]:
                        parts, letters = JsonParts(self.whose).of(unpack(packed.as_buffer().to_pybytes()))
                        yield [(_as_messages(part), part.letters) for part in parts], letters
                case Shape.ENVELOPE if self.lineage is not None:
                    parts, letters = JsonParts(self.whose).of_envelopes(batch, self.lineage, self.attempt)
                    yield [(_as_messages(part), part.letters) for part in parts], letters
                case _:
                    raise SinkError(self.whose.sink, f"it does not take changes of shape {self.shape}")

    def _of_messages(self, rows: pa.RecordBatch) -> tuple[list[Given], list[Letter]]:
        is_nowhere = pc.equal(pc.fill_null(rows["topic"], ""), "")
        nowhere = pc.indices_nonzero(is_nowhere).to_pylist()
        letters = self._letters(rows, dict.fromkeys(nowhere, _NO_TOPIC))
        kept = rows.filter(pc.invert(is_nowhere)) if nowhere else rows
        return [(Messages(kept.select(MESSAGE.names).cast(MESSAGE)), partial(self._letters, kept))], letters

    def _letters(self, rows: pa.RecordBatch, reasons: Mapping[int, str]) -> list[Letter]:
        return letters_of(rows, reasons, **self.whose.addressee, table=self.table)


def _as_messages(part: Part) -> Messages:
    given = part.messages
    count, unchanged = len(given), given.unchanged
    headers = [None if not names else [(UNCHANGED_HEADER, names)] for names in unchanged.to_pylist()] if unchanged else None
    columns = {
        "id": given.ids,
        "topic": pa.array([given.table] * count, pa.string()),
        "type": given.ops,
        "key": pa.nulls(count, pa.string()) if given.keys is None else given.keys,
        "payload": given.payloads,
        "content_type": pa.array([_JSON] * count, pa.string()),
        "headers": pa.array(headers or [None] * count, MESSAGE.field("headers").type),
        "created_at": pa.array(given.committed_at).cast(pa.timestamp("us", "UTC")),
    }
    return Messages(pa.RecordBatch.from_arrays(list(columns.values()), schema=MESSAGE))
