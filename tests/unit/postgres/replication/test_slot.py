"""Which slots we can stream from, and which names a slot can bear."""

from dataclasses import replace

import pytest

from headwater.errors import ConnectionLost, SettingsError, SlotActive, SlotInvalidated, SlotMissing, SourceError
from headwater.postgres.replication.slot import check_slot_name, create_slot, require_usable
from headwater.postgres.replication.stream import ReplicationConnection
from tests.support.capture.catalog_values import SLOT


def slot(**facts):
    return replace(SLOT, **facts)


def test_a_slot_of_ours_is_usable():
    assert require_usable(slot(), "shop", "shop") == slot()


def test_a_missing_slot_is_named():
    with pytest.raises(SlotMissing, match="'shop' does not exist"):
        require_usable(None, "shop", "shop")


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"plugin": None, "database": None}, "'shop' is a physical one"),
        ({"plugin": "test_decoding"}, "'shop' speaks test_decoding"),
        ({"database": "crm"}, "'shop' belongs to database 'crm'"),
        ({"two_phase": True}, "'shop' decodes prepared transactions"),
    ],
)
def test_a_slot_that_is_not_for_us_is_named_with_a_remedy(facts, said):
    with pytest.raises(SourceError, match=f"{said}.*; .*name a"):
        require_usable(slot(**facts), "shop", "shop")


def test_an_invalidated_slot_is_named_with_its_reason():
    with pytest.raises(SlotInvalidated, match=r"'shop' was invalidated by the server \(wal_removed\)"):
        require_usable(slot(invalidation_reason="wal_removed"), "shop", "shop")


def test_a_slot_that_is_being_made_is_named_with_who_makes_it():
    said = r"'shop' is in use \(session 4711 is making it, until .*\); end these, or .*pg_terminate_backend\(4711\)"
    with pytest.raises(SlotActive, match=said):
        require_usable(slot(confirmed_flush_lsn=None, active_pid=4711), "shop", "shop")


class Refusing(ReplicationConnection):
    """A replication connection to a server that refuses every command, in its own language."""

    server_version = 180000

    def __init__(self, error):
        self.error = error

    def command(self, _command):
        raise self.error


@pytest.mark.parametrize(
    ("sqlstate", "remedy"),
    [
        ("42710", "headwater slots drop shop"),
        ("53400", "raise max_replication_slots"),
        ("55000", "set wal_level = logical"),
        ("42501", "alter role"),
    ],
)
def test_a_refusal_of_a_new_slot_is_known_by_its_code_whatever_the_language(sqlstate, remedy):
    with pytest.raises(SourceError, match=rf"cannot create slot 'shop': abgelehnt; (?!look).*{remedy}") as caught:
        create_slot(Refusing(SourceError("abgelehnt; look around", sqlstate=sqlstate)), "shop")
    assert caught.value.sqlstate == sqlstate


@pytest.mark.parametrize("error", [SourceError("already exists", sqlstate="XX000"), ConnectionLost("gone")])
def test_a_refusal_of_a_new_slot_with_another_code_is_passed_on(error):
    with pytest.raises(SourceError) as caught:
        create_slot(Refusing(error), "shop")
    assert caught.value is error


@pytest.mark.parametrize("name", ["", "Shop", "shop-1", "a.b", "a" * 64, "ü", 'a"b'])
def test_a_name_that_the_server_would_refuse_is_refused_before_it_is_asked(name):
    with pytest.raises(SettingsError, match="cannot be a slot's name"):
        check_slot_name(name)


def test_a_name_may_have_63_letters():
    assert check_slot_name("a" * 63) == "a" * 63
