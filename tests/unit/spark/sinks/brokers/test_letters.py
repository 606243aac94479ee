"""Messages that a broker refused, as letters and as messages again."""

import pyarrow as pa
import pytest

from headwater.model import MESSAGE, Lsn, Position
from headwater.outbox.columns import OutboxColumns
from headwater.spark.letters import row_of
from headwater.spark.sinks.brokers.letters import is_of_outbox, letters_of, messages_of
from headwater.spark.sources.outbox.messages import SCHEMA, of_rows

OWN = OutboxColumns.headwater()


def _rows(payload, payload_type="json"):
    values = ("id1", "t", "T", "k", payload, '{"a":"é"}', "2026-11-16 10:00:00.5+00")
    batch = pa.RecordBatch.from_arrays([pa.array([value], pa.string()) for value in values], list(OWN.names))
    return of_rows(batch, OWN, payload_type)


@pytest.mark.parametrize(("payload", "payload_type"), [('{"n": 1}', "json"), ("\\x00ff", "bytea")])
def test_a_letter_holds_the_whole_message_and_is_told_by_its_own_id(payload, payload_type):
    rows = _rows(payload, payload_type)
    (letter,) = letters_of(rows, {0: "too large"}, pipeline="p", sink="s", table=("headwater", "outbox_message"))
    assert (letter.event_id, letter.reason, letter.key) == ("id1", "too large", {"id": "id1"})
    assert (letter.schema, letter.table, letter.position) == ("headwater", "outbox_message", Position(Lsn(0), 0))
    assert is_of_outbox(letter)
    assert messages_of(letter).rows.equals(rows.select(MESSAGE.names))
    assert row_of(letter)["after"]["topic"] == "t"


def test_only_those_that_were_refused_become_letters():
    rows = pa.concat_batches([_rows("1"), _rows("2"), _rows("3")]).cast(SCHEMA)
    letters = letters_of(rows, {1: "no"}, pipeline="p", sink="s", table=("a", "b"))
    assert [messages_of(letter).column("payload")[0].as_py() for letter in letters] == [b"2"]
