from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from headwater.capture import CaptureSettings
from headwater.errors import SettingsError

GOOD = CaptureSettings(url="postgresql://u:secret@h/d", slot="hw", publications=("p",))


def test_settings_do_not_show_the_password():
    assert "secret" not in repr(GOOD)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"slot": "Not-A-Name"}, "lower-case"),
        ({"publications": ()}, "at least one publication"),
        ({"batch_bytes": 0}, "batch_bytes"),
        ({"batch_bytes": 10, "buffer_bytes": 5}, "batch_bytes"),
        ({"status_interval": timedelta(0)}, "status_interval"),
        ({"heartbeat_interval": timedelta(seconds=-1)}, "heartbeat_interval"),
        ({"batch_bytes": 2**30, "buffer_bytes": 2**31}, "256 MiB"),
        ({"slot_patience": timedelta(seconds=-1)}, "slot_patience"),
        ({"heartbeat_bytes": 0}, "heartbeat_bytes"),
        ({"spill_directory": Path("/nowhere/at/all")}, "/nowhere/at/all"),
    ],
)
def test_settings_that_make_no_sense_are_refused_with_the_name_of_the_setting(changed, reason):
    with pytest.raises(SettingsError, match=reason):
        replace(GOOD, **changed)
