"""Findings about slots, publications and the server behind a replication connection."""

from dataclasses import replace

import pytest

from headwater.cli.check.finding import Level, refused
from headwater.cli.check.replication import check_creation, check_publication, check_slot, judge_identity
from headwater.errors import SlotMissing, SourceError
from headwater.model import Lsn
from headwater.postgres.replication.stream import SystemIdentity
from tests.support.capture.catalog_values import RIGHTS, SERVER, SLOT, published, table

A, B = table(1, "a"), table(2, "b")
OWNED = [replace(RIGHTS, oid=1), replace(RIGHTS, oid=2)]


def publication(found, chosen=(A, B), rights=OWNED, server=SERVER):
    return list(check_publication("shop", found, chosen, [A, B], server, rights))


def test_an_error_of_ours_becomes_a_finding_with_its_remedy():
    finding = refused("slot x", SlotMissing("x"))

    assert finding.found == "replication slot 'x' does not exist"
    assert finding.remedy == "run `headwater slots` to see which do"


def test_an_error_without_a_remedy_is_still_a_finding():
    assert refused("x", SourceError("odd")).found == "odd"


@pytest.mark.parametrize(
    ("slot", "level"),
    [
        (None, Level.OK),
        (SLOT, Level.OK),
        (replace(SLOT, active=True, active_pid=7), Level.WARNING),
        (replace(SLOT, wal_status="unreserved"), Level.WARNING),
        (replace(SLOT, database="crm"), Level.ERROR),
        (replace(SLOT, plugin="test_decoding"), Level.ERROR),
        (replace(SLOT, invalidation_reason="wal_removed"), Level.ERROR),
    ],
)
def test_a_slot_is_judged_and_what_is_not_well_has_a_remedy(slot, level):
    finding = check_slot(slot, "shop", "shop")

    assert finding.level is level
    assert bool(finding.remedy) is (level is not Level.OK)


def test_a_publication_that_covers_the_tables_is_fine():
    (finding,) = publication(published(A, B))

    assert (finding.level, finding.found) == (Level.OK, "covers the tables")


def test_a_publication_that_has_to_change_is_a_warning_to_its_owner():
    (finding,) = publication(published(A))

    assert finding.level is Level.WARNING
    assert "add public.b" in finding.found


def test_a_publication_that_has_to_change_is_an_error_to_others():
    (finding,) = publication(published(A, is_owner=False))

    assert finding.level is Level.ERROR
    assert "its owner dba" in finding.remedy


def test_row_filters_are_a_warning():
    finding, *_ = publication(published(A, B, narrowed=[1]))

    assert (finding.level, finding.found) == (Level.WARNING, "has a row filter or a column list for public.a")


def test_a_publication_that_does_not_exist_needs_the_right_to_make_it():
    said = [finding.level for finding in publication(None, server=replace(SERVER, can_create=False))]

    assert said == [Level.OK, Level.ERROR]


def test_only_the_owner_of_a_table_may_publish_it():
    (finding,) = check_creation("publication", [A, B], SERVER, [RIGHTS, replace(RIGHTS, oid=2, is_owner=False)])

    assert finding.level is Level.ERROR
    assert "does not own public.b" in finding.found


def test_another_server_behind_the_replication_connection_is_an_error():
    identity = SystemIdentity("8", 1, Lsn(1), "shop")

    assert judge_identity(identity, SERVER).level is Level.ERROR
    assert judge_identity(replace(identity, system_identifier="7"), SERVER).level is Level.OK
