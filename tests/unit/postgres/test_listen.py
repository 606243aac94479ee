"""Which settings of listening make no sense, and what they show."""

import pytest

from headwater.errors import SettingsError
from headwater.postgres.listen import ListenSettings


def test_settings_do_not_show_the_password():
    assert "secret" not in repr(ListenSettings(url="postgresql://u:secret@h/d", channels=["jobs"]))


def test_a_channel_is_needed():
    with pytest.raises(SettingsError, match="at least one channel"):
        ListenSettings(url="", channels=[])


@pytest.mark.parametrize("channel", ["", "a" * 64, "ü" * 32])
def test_a_channel_that_the_server_would_cut_is_refused(channel):
    with pytest.raises(SettingsError, match="must have 1 to 63 bytes"):
        ListenSettings(url="", channels=["jobs", channel])
