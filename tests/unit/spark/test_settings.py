"""What the settings of a pipeline refuse, and what they show of themselves."""

import pytest

from headwater.errors import SettingsError
from headwater.spark.settings import (
    ChangesSettings,
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
        ({"max_bytes": 1000}, "max_bytes must be between 64KiB and 100MiB"),
        ({"max_bytes": 1 << 30}, "max_bytes must be between 64KiB and 100MiB"),
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
