import pytest

from headwater.embedded import NatsSettings
from headwater.errors import SettingsError


@pytest.mark.parametrize("make", [lambda: NatsSettings(max_file_bytes=0), lambda: NatsSettings(max_memory_bytes=0)])
def test_a_server_that_may_keep_nothing_is_refused(make):
    with pytest.raises(SettingsError, match="must be at least 1"):
        make()
