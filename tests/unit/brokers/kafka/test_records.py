from headwater.brokers.kafka import KafkaAccess
from headwater.brokers.kafka.records import records
from tests.conformance.broker_contract import CREATED_AT_TEXT, message, messages, numbered

ACCESS = KafkaAccess(bootstrap_servers="one:9092", topic="shop.{topic}.{type}", source="urn:shop")


def test_a_record_has_key_value_event_and_headers():
    (record,) = records(ACCESS, messages(message("orders", b"1", id="i", key="k", headers={"traceparent": "00"})), 0)
    assert (record.place, record.topic, record.key, record.value) == (0, "shop.orders.OrderPlaced", "k", b"1")
    assert record.headers == [
        ("content-type", "application/json"),
        ("ce_specversion", "1.0"),
        ("ce_id", "i"),
        ("ce_source", "urn:shop"),
        ("ce_type", "OrderPlaced"),
        ("ce_time", CREATED_AT_TEXT),
        ("ce_partitionkey", "k"),
        ("traceparent", "00"),
    ]


def test_a_header_of_the_user_s_cannot_say_something_else_about_the_event():
    (record,) = records(ACCESS, messages(message("orders", id="i", headers={"ce_id": "other", "a": "b"})), 0)
    assert [pair for pair in record.headers if pair[0] in ("ce_id", "a")] == [("ce_id", "i"), ("a", "b")]


def test_a_message_without_key_has_none_and_an_empty_key_is_one():
    found = list(records(ACCESS, messages(message("orders"), message("orders", key="")), 0))
    assert [record.key for record in found] == [None, ""]
    assert ["ce_partitionkey" in dict(record.headers) for record in found] == [False, True]


def test_records_begin_where_they_are_asked_for_also_across_slices():
    many = messages(*numbered("orders", 10_001))
    found = list(records(ACCESS, many, 4_999))
    assert [record.place for record in found] == list(range(4_999, 10_001))
    assert [record.value for record in found] == [b"%06d" % place for place in range(4_999, 10_001)]
