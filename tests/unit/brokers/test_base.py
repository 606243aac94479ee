import pytest

from headwater.brokers.base import check_template, cloud_event, destinations
from headwater.errors import SettingsError
from tests.conformance.broker_contract import message, messages


@pytest.mark.parametrize("template", ["{topic}", "{type}", "shop.{topic}.{type}", "all"])
def test_a_template_may_name_topic_and_type(template):
    check_template("subject", template)


@pytest.mark.parametrize(
    ("template", "reason"),
    [("", "is empty"), ("{table}", "names {table}"), ("{}", "names {}"), ("{0}", "names {0}"), ("{topic", "no template")],
)
def test_what_is_no_template_is_refused_with_the_name_of_the_setting(template, reason):
    with pytest.raises(SettingsError, match=reason) as refusal:
        check_template("subject", template)
    assert str(refusal.value).startswith("subject ")


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{topic}", ["orders", "users", "orders"]),
        ("shop.{topic}", ["shop.orders", "shop.users", "shop.orders"]),
        ("{topic}/{type}", ["orders/Placed", "users/Placed", "orders/Paid"]),
        ("all", ["all", "all", "all"]),
    ],
)
def test_each_message_goes_where_the_template_says(template, expected):
    rows = [message("orders", type="Placed"), message("users", type="Placed"), message("orders", type="Paid")]
    assert destinations(template, messages(*rows)).to_pylist() == expected


def test_braces_in_a_topic_are_a_topic_s_own():
    assert destinations("a.{topic}", messages(message("{type}"))).to_pylist() == ["a.{type}"]


def test_an_event_has_a_partition_key_only_if_there_is_a_key():
    event = {"specversion": "1.0", "id": "1", "source": "s", "type": "t", "time": "now"}
    assert cloud_event("1", "s", "t", "now", None) == event
    assert cloud_event("1", "s", "t", "now", "") == {**event, "partitionkey": ""}
