"""The environment of a Creek producer: which values are understood, and what is said of those that are not."""

from datetime import timedelta

import pytest

from headwater.cli.creek.environment import parse_go_duration, read_environment
from headwater.errors import SettingsError

LEAST = {
    "PG_URI": "postgres://me:secret@db/shop",
    "PG_PUBLICATION_NAME": "pub",
    "PG_PUBLICATION_SLOT": "slot",
    "NATS_URI": "nats://me:hidden@nats:4222",
}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10s", 10),
        ("1m30s", 90),
        ("500ms", 0.5),
        ("1h", 3600),
        ("1.5h", 5400),
        ("2m0.5s", 120.5),
        ("250us", 0.00025),
        (".5s", 0.5),
    ],
)
def test_durations_are_written_as_go_does(text, seconds):
    assert parse_go_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["10", "", "s", "1 s", "-5s", "0s", "1d", "5s5", "ten"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match="not"):
        parse_go_duration(text)


def test_the_least_environment_has_creeks_defaults():
    found = read_environment(LEAST)

    assert (found.publication, found.slot, found.tables) == ("pub", "slot", ())
    assert (found.namespace, found.nats_timeout, found.max_pending) == ("CREEK", timedelta(seconds=30), 4000)
    assert (found.prometheus_port, found.generation, found.log_level) == (7779, "1", None)
    assert (found.replicas, found.retention, found.max_age, found.max_bytes, found.max_msgs) == (None,) * 5
    assert found.message_timeout is None


def test_no_secret_is_shown():
    shown = repr(read_environment(LEAST))

    assert "secret" not in shown and "hidden" not in shown


@pytest.mark.parametrize(
    ("text", "tables"),
    [
        ("public.a public.b", ("public.a", "public.b")),
        ("public.a,public.b", ("public.a", "public.b")),
        (" public.a , public.b\tc ", ("public.a", "public.b", "c")),
        ('public."Order, Items" s."a ""b"""', ('public."Order, Items"', 's."a ""b"""')),
    ],
)
def test_tables_stand_with_spaces_or_commas_between(text, tables):
    assert read_environment(LEAST | {"PG_TABLES": text}).tables == tables


@pytest.mark.parametrize(
    ("text", "name"), [("0", "limits"), ("1", "interest"), ("2", "workqueue"), ("Interest", "interest")]
)
def test_retention_is_a_number_as_creek_has_it_or_a_name(text, name):
    assert read_environment(LEAST | {"NATS_RETENTION_POLICY": text}).retention == name


@pytest.mark.parametrize("text", ["0", "-1"])
def test_no_limit_is_none(text):
    found = read_environment(LEAST | {"NATS_RETENTION_MAX_BYTES": text, "NATS_RETENTION_MAX_MSGS": text})

    assert (found.max_bytes, found.max_msgs) == (None, None)
    assert read_environment(LEAST | {"NATS_RETENTION_MAX_AGE": "0s"}).max_age is None


@pytest.mark.parametrize(("text", "level"), [("trace", "debug"), ("WARN", "warning"), ("fatal", "error"), ("info", "info")])
def test_levels_are_those_of_creeks_logger(text, level):
    assert read_environment(LEAST | {"LOG_LEVEL": text}).log_level == level


def test_all_faults_are_told_at_once_and_no_value_is_repeated():
    wrong = {"PG_MESSAGE_TIMEOUT": "soon", "NATS_MAX_PENDING": "-5", "LOG_LEVEL": "loud", "CREEK_GENERATION": "3"}

    with pytest.raises(SettingsError) as raised:
        read_environment({"NATS_REPLICAS": "9"} | wrong)

    said = str(raised.value)
    for name in ("PG_URI", "PG_PUBLICATION_NAME", "PG_PUBLICATION_SLOT", "NATS_URI", "NATS_REPLICAS", *wrong):
        assert f"\n  {name} " in said
    assert not any(value in said for value in ("soon", "loud"))


def test_one_fault_is_one_line():
    with pytest.raises(SettingsError, match=r"^NATS_TIMEOUT must be a duration such as 30s or 500ms, more than 0; corr"):
        read_environment(LEAST | {"NATS_TIMEOUT": "0"})
