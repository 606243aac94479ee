"""Names of streams and subjects in both generations, and names that no subject can hold."""

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.creek.names import Generation, Kind, Names, Subject, parse_subject, snapshot_suffix, token
from headwater.errors import SettingsError

ONE = Names("CREEK", "test_db")
TWO = Names("CREEK", "test_db", Generation.TWO)


def test_streams_of_generation_one_are_shared_by_databases():
    assert [ONE.stream(kind) for kind in Kind] == ["CREEK_wal", "CREEK_schema", "CREEK_snap"]
    assert [ONE.stream_subject(kind) for kind in Kind] == [
        "CREEK.test_db.wal.>",
        "CREEK.test_db.schema.>",
        "CREEK.test_db.snap.>",
    ]


def test_streams_of_generation_two_are_a_databases_own():
    assert [TWO.stream(kind) for kind in Kind] == ["CREEK_wal_test_db", "CREEK_schema_test_db", "CREEK_snap_test_db"]
    assert TWO.stream_subject(Kind.WAL) == "CREEK_wal_test_db.>"


def test_subjects_are_those_of_creek():
    assert ONE.subject(Kind.WAL, "public", "other") == "CREEK.test_db.wal.public.other"
    assert TWO.subject(Kind.SCHEMA, "public", "other") == "CREEK_schema_test_db.public.other"
    suffix = "20230830120102_123456_ab12"
    assert ONE.snapshot("public", "other", suffix) == f"CREEK.test_db.snap.public.other.{suffix}"
    assert TWO.snapshot("public", "other", suffix) == f"CREEK_snap_test_db.public.other.{suffix}"


def test_requests_are_heard_on_both_names_that_creek_gives_for_schemas():
    assert ONE.schema_requests == ("CREEK._schema", "CREEK._schemas")
    assert ONE.snapshot_requests == ("CREEK._snapshot",)
    assert TWO.schema_requests == ("CREEK_schema_test_db",)
    assert TWO.snapshot_requests == ("CREEK_snap_test_db",)


def test_request_subjects_are_in_no_stream():
    for names in (ONE, TWO):
        prefixes = [names.stream_subject(kind).removesuffix(">") for kind in Kind]
        for subject in (*names.schema_requests, *names.snapshot_requests):
            assert not any(subject.startswith(prefix) for prefix in prefixes)


def test_names_that_no_token_can_hold_are_escaped_and_others_stay():
    assert token("order_items-2$") == "order_items-2$"
    assert token("a.b *>%") == "a%2Eb%20%2A%3E%25"
    assert token("naïve\n\x7f") == "na%C3%AFve%0A%7F"
    assert Names("CREEK", "a/b", Generation.TWO).stream(Kind.WAL) == "CREEK_wal_a%2Fb"
    assert Names("CREEK", "a/b").subject(Kind.WAL, "s", "t") == "CREEK.a/b.wal.s.t"


@pytest.mark.parametrize("root", ["", "a b", "a.b", "a*", "ä", "a/b", ">"])
def test_a_namespace_that_nats_does_not_take_is_refused(root):
    with pytest.raises(SettingsError, match="cannot be a NATS namespace"):
        Names(root, "db")


NAME = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(
    st.sampled_from(Generation),
    st.sampled_from(Kind),
    NAME,
    NAME,
    NAME,
    st.sampled_from(["CREEK", "CREEK_wal", "a-b", "CREEK_"]),
)
def test_a_subject_tells_the_names_that_it_was_made_from(generation, kind, database, schema, table, root):
    names = Names(root, database, generation)
    suffix = "20230830120102_123456_ab12" if kind is Kind.SNAPSHOT else None
    subject = names.snapshot(schema, table, suffix) if suffix else names.subject(kind, schema, table)
    assert subject.isascii()
    assert subject.isprintable()
    assert " " not in subject
    assert subject.startswith(names.stream_subject(kind).removesuffix(">"))
    assert parse_subject(subject, root, generation) == Subject(kind, database, schema, table, suffix)


@pytest.mark.parametrize(
    ("subject", "generation"),
    [
        ("CREEK.db.wal.public", Generation.ONE),
        ("CREEK.db.wal.public.t.x", Generation.ONE),
        ("CREEK.db.snap.public.t", Generation.ONE),
        ("CREEK.db.other.public.t", Generation.ONE),
        ("OTHER.db.wal.public.t", Generation.ONE),
        ("CREEKS.db.wal.public.t", Generation.ONE),
        ("CREEK.db.wal..t", Generation.ONE),
        ("CREEK._schema", Generation.ONE),
        ("CREEK_wal_db.public.t", Generation.ONE),
        ("CREEK.db.wal.public.t", Generation.TWO),
        ("CREEK_wal.public.t", Generation.TWO),
        ("CREEK_wal_db.public", Generation.TWO),
        ("", Generation.TWO),
    ],
)
def test_other_subjects_are_refused(subject, generation):
    with pytest.raises(ValueError, match="not a subject"):
        parse_subject(subject, "CREEK", generation)


def test_the_suffix_of_a_snapshot_has_six_digits_of_microseconds_and_four_of_hex():
    at = datetime(2023, 8, 30, 12, 1, 2, 1200)
    assert snapshot_suffix(at, b"\xab\x02") == "20230830120102_001200_ab02"
    with pytest.raises(ValueError, match="2 random bytes"):
        snapshot_suffix(at, b"\xab")
