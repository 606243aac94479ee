"""Logs for tests, made the way of the product: pgoutput messages, decoded and gathered."""

from collections.abc import Sequence

import numpy as np

from headwater.postgres.replication.batch import Batch, lay_out
from headwater.postgres.replication.columnar import as_sent, decode_columns
from headwater.postgres.types import Types
from headwater.spark.sinks.postgres.log import Log, Part, gather
from tests.support.capture import pgoutput_writer as write

OID, INT8, TEXT = 7, 20, 25


def batch_of(messages: Sequence[bytes], columns: Sequence[str], key: Sequence[str], identity: str = "d") -> Batch:
    """Changes in transactions of three, from LSN 100 on."""
    described = [(name, INT8 if name in key else TEXT, -1, name in key or identity == "f") for name in columns]
    lines: list[bytes] = [write.relation(OID, "item", described, identity)]
    for start in range(0, len(messages), 3):
        lsn = 100 + 10 * start
        lines += [write.begin(lsn), *messages[start : start + 3], write.commit(lsn, lsn + 5)]
    data, bounds = lay_out(lines)
    return Batch(data, bounds, {}, len(messages), None)


def log_of(messages: Sequence[bytes], columns: Sequence[str], key: Sequence[str], identity: str = "d") -> Log:
    groups = decode_columns(batch_of(messages, columns, key, identity), Types.builtin(), as_sent)
    parts = [Part(group, np.arange(len(group)), 0) for group in groups]
    return gather(parts, tuple(columns), tuple(columns.index(name) for name in key))
