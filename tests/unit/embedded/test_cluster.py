import pytest

from headwater.embedded.binaries import Binaries
from headwater.embedded.claim import claim_directory
from headwater.embedded.cluster import ensure_cluster
from headwater.errors import SettingsError, SourceError


@pytest.fixture
def claim(tmp_path):
    claim = claim_directory(tmp_path, None, "postgres")
    yield claim
    claim.release()


@pytest.fixture
def binaries(tmp_path):
    return Binaries(tmp_path, 18)


def test_a_cluster_of_another_version_is_refused(claim, binaries):
    (claim.directory / "data").mkdir()
    (claim.directory / "data" / "PG_VERSION").write_text("16\n")
    with pytest.raises(SettingsError, match="is of PostgreSQL 16 and cannot be served by 18; ask for version 16"):
        ensure_cluster(claim, binaries, None, is_synced=False)


def test_a_directory_that_holds_something_else_is_refused(claim, binaries):
    (claim.directory / "data").mkdir()
    with pytest.raises(SettingsError, match="is not a PostgreSQL cluster"):
        ensure_cluster(claim, binaries, None, is_synced=False)


def test_a_cluster_whose_password_is_lost_is_refused(claim, binaries):
    (claim.directory / "data").mkdir()
    (claim.directory / "data" / "PG_VERSION").write_text("18\n")
    with pytest.raises(SettingsError, match=r"password of the cluster .* is lost"):
        ensure_cluster(claim, binaries, None, is_synced=False)


def test_a_failed_initdb_is_an_error_with_what_it_said_and_leaves_no_cluster(claim, binaries):
    (binaries.directory / "initdb").write_text("#!/bin/sh\necho cannot, sorry\nexit 1\n")
    (binaries.directory / "initdb").chmod(0o755)
    with pytest.raises(SourceError, match="cannot, sorry"):
        ensure_cluster(claim, binaries, None, is_synced=False)
    assert not (claim.directory / "data").exists()
    assert not list(claim.directory.glob("initdb-*"))


@pytest.mark.parametrize(("is_synced", "expected"), [(True, False), (False, True)])
def test_only_a_cluster_that_may_be_lost_is_made_without_waiting_for_the_disk(claim, binaries, is_synced, expected):
    script = """#!/bin/sh\nfor a do case $a in --pgdata=*) mkdir "${a#*=}"; echo "$@" >"${a#*=}/arguments";; esac; done\n"""
    (binaries.directory / "initdb").write_text(script)
    (binaries.directory / "initdb").chmod(0o755)
    (claim.directory / "initdb-left-over").mkdir()

    password = ensure_cluster(claim, binaries, None, is_synced=is_synced)

    arguments = (claim.directory / "data" / "arguments").read_text()
    assert ("--no-sync" in arguments) == expected
    assert password == (claim.directory / "password").read_text()
    assert password not in arguments
    assert not list(claim.directory.glob("initdb-*"))
