"""Ids of many messages at a time are those that `Lineage.event_id` gives one by one."""

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headwater.model import Lineage, Lsn, Position, TimelineSwitch
from headwater.postgres.replication.messages import Relation
from headwater.spark.frame import Chunk
from headwater.spark.letters import row_id
from headwater.spark.sinks.nats.identity import event_ids, instants, read_ids

PLAIN = Lineage("7123", 1, (), "shop", "slot")
PROMOTED = Lineage("7123", 3, (TimelineSwitch(1, Lsn(0x500)), TimelineSwitch(2, Lsn(0xA00))), "shop.eu", "slot")


@given(st.lists(st.tuples(st.integers(1, 0xFFF), st.integers(0, 10**9))))
def test_event_ids_are_the_same_as_one_by_one(places):
    lsns = np.array([lsn for lsn, _ in places], np.int64)
    ordinals = np.array([ordinal for _, ordinal in places], np.int64)
    for lineage in (PLAIN, PROMOTED):
        found = event_ids(lineage, lsns, ordinals).to_pylist()

        assert found == [lineage.event_id(Position(Lsn(lsn), ordinal)) for lsn, ordinal in places]


def test_a_name_that_would_break_a_header_is_escaped():
    lineage = Lineage("7123", 1, (), "a\r\nb", "slot")

    assert event_ids(lineage, np.array([255]), np.array([3])).to_pylist() == ["7123.1.a%0D%0Ab.slot.FF.3"]


def test_ids_of_rows_that_were_read_are_the_same_as_one_by_one():
    relation = Relation(1, "public", "item", "d", ())
    rows = pa.RecordBatch.from_arrays([pa.array(["a"] * 12)], ["v"])
    chunk = Chunk("at.1", 4, 95, relation, rows, (), PLAIN, Lsn(0xABC), datetime(2026, 1, 1, tzinfo=UTC))

    assert read_ids(chunk).to_pylist() == [row_id(chunk, row) for row in range(95, 107)]


def test_instants_are_those_of_rfc_3339():
    assert instants(np.array([0, 0, 1_700_000_000_500_000])).to_pylist() == [
        "1970-01-01T00:00:00Z",
        "1970-01-01T00:00:00Z",
        "2023-11-14T22:13:20.500000Z",
    ]
