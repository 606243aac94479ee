"""Messages for a broker, as columns: what an outbox, a topic or a change becomes on its way out."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

# One row is one message. The id is the same each time that the message is sent. Messages with the same key keep their
# order. `headers` are names and values of the user's own, `traceparent` and `tracestate` among them.
MESSAGE: Final = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("type", pa.string(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("content_type", pa.string(), nullable=False),
        pa.field("headers", pa.map_(pa.string(), pa.string())),
        pa.field("created_at", pa.timestamp("us", "UTC"), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages in the order in which they are to be sent; `rows` has the columns of `MESSAGE`."""

    rows: pa.RecordBatch

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def column(self, name: str) -> pa.Array:
        return self.rows.column(name)

    def taken(self, places: npt.NDArray[np.int64]) -> "Messages":
        """Those at some places."""
        return Messages(self.rows.take(pa.array(places)))

    def headers(self) -> Iterator[Mapping[str, str]]:
        """The headers of each message."""
        for pairs in self.column("headers"):
            yield dict(pairs.as_py() or ())
