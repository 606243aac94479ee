"""Ids of many messages at a time: the event id of each change, the same after any replay. Pure."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.model import Lineage, Lsn, Position
from headwater.postgres.replication.columnar import Ints
from headwater.spark.frame import Chunk
from headwater.spark.letters import row_id

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")


def event_ids(lineage: Lineage, commit_lsn: Ints, ordinal: Ints) -> pa.StringArray:
    """The event ids of changes in the order of the stream."""
    runs, run_of = _runs(commit_lsn)
    prefixes = pa.array(_prefixes(lineage, commit_lsn[runs].tolist()), pa.string())
    return pc.binary_join_element_wise(prefixes.take(run_of), pa.array(ordinal).cast(pa.string()), "")


def read_ids(chunk: Chunk) -> pa.StringArray:
    """The event ids of the rows of a table that was read as a whole."""
    first, count = chunk.first_row, chunk.rows.num_rows
    prefix = in_header(row_id(chunk, first).removesuffix(str(first)))
    numbers = pa.array(np.arange(first, first + count)).cast(pa.string())
    return pc.binary_join_element_wise(prefix, numbers, "")


def instants(micros: Ints) -> pa.StringArray:
    """Times of RFC 3339, of microseconds of Unix time that come in runs."""
    runs, run_of = _runs(micros)
    texts = [_instant(micro) for micro in micros[runs].tolist()]
    return pa.array(texts, pa.string()).take(run_of)


def _runs(values: Ints) -> tuple[npt.NDArray[np.intp], pa.Array]:
    """Where runs of equal values begin, and the run that each place is in."""
    is_first = np.ones(len(values), np.bool_)
    is_first[1:] = values[1:] != values[:-1]
    return np.flatnonzero(is_first), pa.array(np.cumsum(is_first) - 1)


def _prefixes(lineage: Lineage, commits: Sequence[int]) -> list[str]:
    """What the event ids of each transaction begin with. A call for each would cost more than all the rest."""
    bases: dict[int, str] = {}
    found = []
    for lsn in commits:
        timeline = lineage.timeline_of(Lsn(lsn)) if lineage.switches else lineage.timeline
        base = bases.get(timeline)
        if base is None:
            whole = lineage.event_id(Position(Lsn(lsn), 0))
            base = bases[timeline] = in_header(whole.removesuffix(f"{lsn:X}.0"))
        found.append(f"{base}{lsn:X}.")
    return found


def in_header(text: str) -> str:
    """A text that can stand in a header; a database may have a line break in its name."""
    return _CONTROLS.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _instant(micros: int) -> str:
    return (_EPOCH + timedelta(microseconds=micros)).isoformat().replace("+00:00", "Z")
