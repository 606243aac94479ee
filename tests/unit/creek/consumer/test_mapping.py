"""Mappings as people write them."""

import pytest

from headwater.creek.consumer.mapping import TableMapping, Target, Topic
from headwater.errors import SettingsError


def test_a_mapping_has_a_source_and_a_target():
    mapping = TableMapping.parse("shop.public.orders:copy.orders_of_shop")
    assert mapping == TableMapping(Topic("shop", "public", "orders"), Target("copy", "orders_of_shop"))
    assert str(mapping) == "shop.public.orders:copy.orders_of_shop"


def test_without_a_target_a_table_keeps_its_name():
    assert TableMapping.parse("shop.public.orders").target == Target("public", "orders")


def test_odd_names_are_quoted_as_in_sql():
    mapping = TableMapping.parse('shop."a.b"."say ""hi""":"x:y".z')
    assert mapping.topic == Topic("shop", "a.b", 'say "hi"')
    assert mapping.target == Target("x:y", "z")
    assert TableMapping.parse(str(mapping)) == mapping


def test_letters_stay_as_they_are():
    assert TableMapping.parse("Shop.public.Orders").topic == Topic("Shop", "public", "Orders")


@pytest.mark.parametrize("text", ["", "orders", "public.orders", "a.b.c.d", "a.b.c:d", "a.b.c:d.e.f", 'a.b."c', "a..c"])
def test_what_is_no_mapping_is_refused(text):
    with pytest.raises(SettingsError, match="no mapping"):
        TableMapping.parse(text)


def test_a_topic_is_a_table_with_its_database():
    assert Topic.parse('shop.public."a.b"') == Topic("shop", "public", "a.b")
    with pytest.raises(SettingsError, match=r"database\.schema\.table"):
        Topic.parse("public.orders")
    with pytest.raises(SettingsError, match=r"schema\.table"):
        Target.parse("orders")
