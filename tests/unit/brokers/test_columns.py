from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from headwater.brokers.base import cloud_event
from headwater.brokers.columns import event_columns, gathered, header_entries, holders, instants
from headwater.model import Messages
from tests.conformance.broker_contract import CREATED_AT_TEXT, message, messages

ROWS = messages(
    message("a", headers={"x": "1", "y": "2"}, key="k"),
    message("b"),
    message("c", headers={}),
    message("d", headers={"y": "3"}, key=""),
)


def test_the_attributes_of_an_event_are_those_of_one_message_after_the_other():
    columns = event_columns(ROWS, "s")
    for at, row in enumerate(ROWS.rows.to_pylist()):
        found = {name: (one if isinstance(one, pa.Scalar) else one[at]).as_py() for name, one in columns.items()}
        expected = cloud_event(row["id"], "s", row["type"], CREATED_AT_TEXT, row["key"])
        assert {name: value for name, value in found.items() if value is not None} == expected


def test_times_have_all_their_digits():
    times = pa.array([datetime(2026, 1, 2, 3, 4, 5, 6, UTC), datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)])
    assert instants(times).to_pylist() == ["2026-01-02T03:04:05.000006Z", "1969-12-31T23:59:59.000000Z"]


def test_what_is_made_of_headers_is_joined_for_each_message_also_of_a_slice():
    for start, expected in ((0, [b"x1y2", b"", b"", b"y3"]), (1, [b"", b"", b"y3"]), (3, [b"y3"]), (4, [])):
        names, values, offsets = header_entries(Messages(ROWS.rows.slice(start)))
        made = pc.binary_join_element_wise(names, values, "").cast(pa.large_binary())
        assert gathered(made, offsets).to_pylist() == expected


def test_messages_with_a_marked_header_are_found_also_in_a_slice():
    for start, expected in ((0, {0: "y", 3: "y"}), (1, {2: "y"}), (4, {})):
        names, _, offsets = header_entries(Messages(ROWS.rows.slice(start)))
        assert holders(pc.equal(names, "y"), names, offsets) == expected
