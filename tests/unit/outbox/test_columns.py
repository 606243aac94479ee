"""Mappings of columns: what they need, and what the presets name."""

import pytest

from headwater.errors import SettingsError
from headwater.outbox import OutboxColumns


def test_the_columns_of_a_message_are_named_once_each_and_without_the_transaction():
    assert OutboxColumns.headwater().names == ("id", "topic", "type", "key", "payload", "headers", "created_at")
    assert OutboxColumns.debezium().names == ("id", "aggregatetype", "type", "aggregateid", "payload")
    shared = OutboxColumns(id="id", payload="body", topic="kind", type="kind", header_columns=(("h", "body"),))
    assert shared.names == ("id", "kind", "body")


def test_dialogporten_has_one_topic_and_its_correlation_id_is_a_header():
    columns = OutboxColumns.dialogporten("dialogs")
    assert (columns.topic, columns.topic_value, columns.key) == (None, "dialogs", None)
    assert dict(columns.parts())["header correlation-id"] == "CorrelationId"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"type": "type"}, "either a column for the topic or topic_value"),
        ({"topic": "topic", "topic_value": "orders", "type": "type"}, "either a column for the topic or topic_value"),
        ({"topic": "topic"}, "either a column for the type or type_value"),
        ({"topic_value": "", "type": "type"}, "topic_value is empty"),
        ({"topic": "", "type": "type"}, "empty name"),
        ({"topic": "topic", "type": "type", "xid": ""}, "empty name"),
        ({"topic": "t", "type": "t", "header_columns": (("a", "b"), ("a", "c"))}, "the same header"),
    ],
)
def test_a_mapping_without_sense_is_refused_when_it_is_made(given, said):
    with pytest.raises(SettingsError, match=said):
        OutboxColumns(id="id", payload="payload", **given)
