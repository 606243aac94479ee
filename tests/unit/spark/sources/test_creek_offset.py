"""How far a Creek stream was read, and the options that say what is."""

import json

import pytest

from headwater.brokers.nats.access import NatsAccess
from headwater.creek.consumer.mapping import TableMapping
from headwater.creek.names import Generation
from headwater.errors import PositionError, SettingsError
from headwater.spark.shape import Shape
from headwater.spark.sources.creek.offset import Behind, Mark, Offset, Step
from headwater.spark.sources.creek.options import access_options, parse_options

TABLE, OTHER = TableMapping.parse("shop.public.orders:copy.orders"), TableMapping.parse('shop.public."a.b"')
OFFSET = Offset(
    "CREEK_wal",
    "20240101T000000000000",
    Mark(12, {"CREEK.shop.wal.public.orders": 9}),
    4,
    ((TABLE, 2),),
    (Behind(OTHER, 1, Mark(5)),),
    Step(Mark(3), Mark(12), ((TABLE, 2),), changes={str(TABLE): 8}),
)


def test_an_offset_survives_the_log():
    logged = json.loads(json.dumps(OFFSET.to_json()))
    assert Offset.from_json(logged) == OFFSET


def test_the_text_of_an_offset_is_always_the_same():
    """Spark compares offsets as text."""
    assert json.dumps(Offset.from_json(OFFSET.to_json()).to_json()) == json.dumps(OFFSET.to_json())


@pytest.mark.parametrize("name", ["stream", "identity", "sequence", "begun", "lanes", "tables", "behind", "step"])
def test_an_offset_of_something_else_is_refused(name):
    logged = {**OFFSET.to_json()}
    del logged[name]
    with pytest.raises(PositionError, match=r"not one of a `headwater\.creek` source"):
        Offset.from_json(logged)


def test_an_offset_of_another_release_is_refused():
    with pytest.raises(PositionError, match="another release"):
        Offset.from_json({**OFFSET.to_json(), "version": 99})


def test_a_message_that_has_begun_is_needed_from_its_first_packet_on():
    assert Mark(12).first_needed == 13
    assert OFFSET.mark.first_needed == 9


def test_options_name_server_tables_and_shape():
    options = parse_options(
        {
            "url": "nats://me:secret@host:4222",
            "tables": 'shop.public.orders, shop.public."a,b":copy.x',
            "generation": "2",
            "maxrowspertrigger": "10",
        }
    )
    assert options.tables == (TableMapping.parse("shop.public.orders"), TableMapping.parse('shop.public."a,b":copy.x'))
    assert (options.stream, options.generation, options.max_rows) == ("CREEK_wal_shop", Generation.TWO, 10)
    assert options.shape is Shape.ENVELOPE
    assert "secret" not in repr(options)


def test_the_options_of_a_server_are_those_that_name_it():
    access = NatsAccess(
        url="nats://host:4222", creds_file="/some/file", tls_ca="/ca", is_tls_first=True, inbox_prefix="_INBOX_me"
    )
    given = {**access_options(access), "tables": "a.b.c"}
    assert all(isinstance(value, str) for value in given.values())
    assert parse_options(given).access == access
    plain = NatsAccess(url="nats://host:4222")
    assert parse_options({**access_options(plain), "tables": "a.b.c"}).access == plain


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "needs the option 'url'"),
        ({"url": "nats://h:1"}, "needs the option 'tables'"),
        ({"url": "nats://h:1", "tables": "a.b.c", "tabels": "x"}, "did you mean 'tables'"),
        ({"url": "nats://h:1", "tables": "orders"}, "no mapping of a table"),
        ({"url": "nats://h:1", "tables": "a.b.c", "start": "now"}, "has to be one of earliest, latest"),
        ({"url": "nats://h:1", "tables": "a.b.c", "lanes": "0"}, "between 1 and 256"),
        ({"url": "nats://h:1", "tables": "a.b.c", "tlsFirst": "perhaps"}, "has to be true or false"),
        ({"url": "nats://h:1", "tables": "a.b.c,d.e.f", "generation": "2"}, "in one stream"),
    ],
)
def test_wrong_options_say_what_is_wrong(given, said):
    with pytest.raises(SettingsError, match=said):
        parse_options(given)


def test_tables_of_several_databases_share_the_stream_of_generation_one():
    assert parse_options({"url": "nats://h:1", "tables": "a.b.c,d.e.f"}).stream == "CREEK_wal"
