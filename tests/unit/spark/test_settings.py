"""What the settings of a pipeline refuse, and what they show of themselves."""

from dataclasses import replace

import pytest

from headwater.brokers.nats.access import NatsAccess
from headwater.errors import SettingsError
from headwater.spark.settings import (
    ChangesSettings,
    Encoding,
    LaneRule,
    NatsSinkSettings,
    NoopSinkSettings,
    PipelineSettings,
    PostgresSinkSettings,
    TransformSettings,
)

SOURCE = ChangesSettings(url="postgresql://me:hunter2@db/shop", tables=("orders",), slot="shop", publication="shop")


def pipeline(*sinks, **more):
    return PipelineSettings(name="shop", source=SOURCE, sinks=sinks, checkpoint="c", state_url="password=hunter2", **more)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tables": ()}, "at least one table"),
        ({"slot": "Shop"}, "cannot be a slot's name"),
        ({"lanes": 0}, "lanes must be between 1 and 256"),
        ({"lanes": 257}, "lanes must be between 1 and 256"),
        ({"max_rows": 0}, "max_rows must be at least 1"),
        ({"max_bytes": 1000}, "max_bytes must be between 64KiB and 64MiB"),
        ({"max_bytes": 1 << 30}, "max_bytes must be between 64KiB and 64MiB"),
    ],
)
def test_a_source_that_cannot_work_is_refused(changed, said):
    with pytest.raises(SettingsError, match=said):
        ChangesSettings(**{"url": "", "tables": ("orders",), "slot": "shop", "publication": "shop", **changed})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sql": "select 1", "function": "a:b"}, "both `sql` and `function`"),
        ({"hash": ("orders.note",)}, "'orders.note' names no column"),
        ({"mask": {"public..note": "x"}}, "'public..note' names no column"),
        ({"mask": {"public.orders.note": "x"}, "hash": ("public.orders.note",)}, "both masked and hashed"),
    ],
)
def test_a_transform_that_contradicts_itself_is_refused(given, said):
    with pytest.raises(SettingsError, match=said):
        TransformSettings(**given)


def test_sinks_need_names_of_their_own():
    with pytest.raises(SettingsError, match="at least one sink"):
        pipeline()
    with pytest.raises(SettingsError, match="two sinks are called 'noop'"):
        pipeline(NoopSinkSettings(name="noop"), NoopSinkSettings(name="noop"))


def test_no_secret_is_shown():
    shown = repr(
        pipeline(
            PostgresSinkSettings(name="replica", url="password=hunter2"),
            transform=TransformSettings(salt="hunter2"),
            spark={"spark.hadoop.fs.s3a.secret.key": "hunter2"},
        )
    )

    assert "hunter2" not in shown


def nats(**changed):
    return NatsSinkSettings(name="nats", access=NatsAccess(url="nats://me:secret@nats:4222"), **changed)


def test_a_nats_sink_shows_no_secret():
    assert "secret" not in repr(nats())


@pytest.mark.parametrize("namespace", ["", "a.b", "a b", "*", ">", "a/b"])
def test_a_namespace_that_is_no_part_of_a_streams_name_is_refused(namespace):
    with pytest.raises(SettingsError, match="cannot be a NATS namespace"):
        nats(namespace=namespace)


def test_lanes_by_key_do_not_go_with_a_nats_sink():
    with pytest.raises(SettingsError, match=r"sink 'nats' keeps all changes of a table in order.*set lane_by to table"):
        replace(pipeline(nats()), source=replace(SOURCE, lane_by=LaneRule.KEY))


def test_two_nats_sinks_with_the_same_streams_are_refused_since_the_server_would_drop_what_the_second_sends():
    with pytest.raises(SettingsError, match="sinks 'nats' and 'other' have the same streams"):
        pipeline(nats(), replace(nats(encoding=Encoding.JSON), name="other"))

    assert len(pipeline(nats(), replace(nats(namespace="JSON"), name="other")).sinks) == 2


def test_a_transform_goes_with_a_nats_sink_of_json_alone():
    transform = TransformSettings(filter="true")
    with pytest.raises(SettingsError, match="set its encoding to json, or leave the transform out"):
        pipeline(nats(), transform=transform)

    assert pipeline(nats(encoding=Encoding.JSON), transform=transform).transform is transform


def test_a_pipeline_follows_its_publication_if_it_has_a_nats_sink():
    assert pipeline(NoopSinkSettings(name="none"), nats()).follows_publication
    assert not pipeline(NoopSinkSettings(name="none")).follows_publication


def test_requests_are_answered_for_creeks_wire_alone():
    assert nats().answers
    assert not nats(requests=False).answers
    assert not nats(encoding=Encoding.JSON).answers
