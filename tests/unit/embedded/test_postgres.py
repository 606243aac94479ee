from datetime import timedelta
from pathlib import Path

import pytest

from headwater.embedded import EmbeddedPostgres, PostgresSettings
from headwater.errors import HeadwaterError, SettingsError


@pytest.mark.parametrize("version", [15, 17, 0])
def test_a_version_that_the_wheel_does_not_have_is_refused(version):
    with pytest.raises(SettingsError, match=f"no embedded PostgreSQL {version}, only 16 and 18"):
        PostgresSettings(version=version)


def test_any_version_may_be_served_from_a_directory():
    assert PostgresSettings(version=15, bin_directory=Path("/usr/lib/postgresql/15/bin")).version == 15


@pytest.mark.parametrize("name", ["port", "Listen_Addresses", "unix_socket_directories"])
def test_settings_that_are_ours_to_choose_are_refused(name):
    with pytest.raises(SettingsError, match="chosen for you"):
        PostgresSettings(config={name: "1"})


@pytest.mark.parametrize("config", [{"": "1"}, {"a b": "1"}, {"a=b": "1"}, {"work_mem": "1\0"}])
def test_what_cannot_be_a_setting_is_refused(config):
    with pytest.raises(SettingsError, match="is not a setting of PostgreSQL"):
        PostgresSettings(config=config)


def test_settings_of_extensions_are_taken():
    assert PostgresSettings(config={"my_extension.limit": "1"}).config == {"my_extension.limit": "1"}


def test_a_relative_directory_is_refused():
    with pytest.raises(SettingsError, match="must be absolute"):
        PostgresSettings(directory=Path("data"))


def test_a_timeout_of_nothing_is_refused():
    with pytest.raises(SettingsError, match="more than 0 s"):
        PostgresSettings(stop_timeout=timedelta(0))


def test_a_server_that_was_not_started_has_no_address_and_nothing_to_stop():
    server = EmbeddedPostgres()
    for ask in (lambda: server.url, lambda: server.port, lambda: server.pid, lambda: server.directory):
        with pytest.raises(HeadwaterError, match="not"):
            ask()
    with pytest.raises(HeadwaterError, match="not been started"):
        _ = server.bin_directory
    server.kill()
    server.stop()
    assert repr(server) == "<EmbeddedPostgres stopped>"
