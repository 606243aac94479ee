"""Connection strings: what counts, what is shown of them, and what becomes of a refusal; and reading without waiting."""

import os
import socket

import psycopg
import pytest
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict
from psycopg.waiting import Ready, Wait

from headwater.errors import ConnectionLost, SettingsError, SourceError
from headwater.postgres.connect import (
    _READS,
    _eager,
    complete,
    connect,
    connect_sync,
    describe,
    is_passing,
    translate,
    translated,
)

URL = "postgresql://me:hunter2@db.example.com:6543/shop"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith("PG")]:
        monkeypatch.delenv(name)


def completed(url, **parameters):
    return conninfo_to_dict(complete(url, **parameters))


@pytest.mark.parametrize("url", [URL, "host=db.example.com port=6543 user=me password=hunter2 dbname=shop"])
def test_a_uri_and_a_key_value_string_mean_the_same(url):
    assert completed(url) == {
        "host": "db.example.com",
        "port": "6543",
        "user": "me",
        "password": "hunter2",
        "dbname": "shop",
        "application_name": "headwater",
        "connect_timeout": "10",
        "client_encoding": "UTF8",
    }


def test_an_empty_string_leaves_all_but_our_defaults_to_the_environment():
    assert completed("") == {"application_name": "headwater", "connect_timeout": "10", "client_encoding": "UTF8"}


def test_a_value_with_blanks_and_quotes_survives():
    assert completed(r"password='a b\'c\\d' host=h")["password"] == r"a b'c\d"


def test_the_environment_wins_over_our_defaults(monkeypatch):
    monkeypatch.setenv("PGAPPNAME", "mine")
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "3")

    # What is left out is taken from the environment by libpq.
    assert completed("host=h") == {"host": "h", "client_encoding": "UTF8"}


@pytest.mark.parametrize(
    "url", ["postgresql://h/?application_name=its&connect_timeout=7", "host=h application_name=its connect_timeout=7"]
)
def test_the_url_wins_over_the_environment_and_our_defaults(monkeypatch, url):
    monkeypatch.setenv("PGAPPNAME", "mine")
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "3")

    found = completed(url)

    assert (found["application_name"], found["connect_timeout"]) == ("its", "7")


def test_what_a_part_of_headwater_asks_for_wins_over_all(monkeypatch):
    monkeypatch.setenv("PGAPPNAME", "mine")

    found = completed("postgresql://h/?application_name=its", application_name="headwater listen", replication="database")

    assert (found["application_name"], found["replication"]) == ("headwater listen", "database")


def test_text_is_always_utf_8(monkeypatch):
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")

    assert completed("postgresql://h/?client_encoding=LATIN1")["client_encoding"] == "UTF8"


@pytest.mark.parametrize("url", ["postgresql://me:hunter2 hunter2@/", "postgresql//me:hunter2@h/d", "password=hunter2 'x"])
@pytest.mark.parametrize("function", [complete, connect_sync])
def test_a_malformed_string_is_never_repeated(url, function):
    with pytest.raises(SettingsError, match="connection string is malformed; write it as") as caught:
        function(url)

    assert "hunter2" not in f"{caught.value!r}"
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


async def test_a_malformed_string_is_refused_before_an_async_connect_too():
    with pytest.raises(SettingsError, match="malformed"):
        await connect("postgresql//me:hunter2@h/d")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (URL, "me@db.example.com:6543/shop"),
        ("postgresql://me:hunter2@h/d?sslpassword=hunter2", "me@h:5432/d"),
        ("postgresql://me:hunter2@one:1,two:2/d", "me@one:1,two:2/d"),
        ("postgresql://me:hunter2@one,two/d?port=6000", "me@one:6000,two:6000/d"),
        ("host=one,two user=me password=hunter2 dbname=d", "me@one:5432,two:5432/d"),
        ("host=one,two port=,7 user=me password=hunter2 dbname=d", "me@one:5432,two:7/d"),
        ("hostaddr=10.0.0.1 user=me password=hunter2 dbname=d", "me@10.0.0.1:5432/d"),
        ("host=/run/postgresql user=me password=hunter2", "me@/run/postgresql:5432/me"),
        ("user=me password=hunter2", "me@localhost:5432/me"),
    ],
)
def test_a_server_is_described_without_secrets(url, shown):
    assert describe(url) == describe(complete(url)) == shown


def test_a_server_that_the_environment_names_is_described_too(monkeypatch):
    for name, value in {"HOST": "one,two", "PORT": "6", "USER": "me", "PASSWORD": "hunter2", "DATABASE": "d"}.items():
        monkeypatch.setenv(f"PG{name}", value)

    assert describe("") == "me@one:6,two:6/d"
    assert describe("host=three") == "me@three:6/d"


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ('password authentication failed for user "me"', "check user and password"),
        ("fe_sendauth: no password supplied", "check user and password"),
        ('no pg_hba.conf entry for host "10.0.0.1", user "me", database "shop"', "pg_hba.conf"),
        ('pg_hba.conf rejects connection for host "10.0.0.1"', "pg_hba.conf"),
        ('database "shop" does not exist', "create the database"),
        ('role "me" does not exist', "create the role with LOGIN"),
        ('role "me" is not permitted to log in', "create the role with LOGIN"),
        ("must be superuser or replication role to start walsender", "alter role me replication"),
        ("permission denied to start WAL sender", "alter role me replication"),
        ("server does not support SSL, but SSL was required", "correct sslmode"),
        ("SSL error: certificate verify failed", "correct sslmode"),
    ],
)
def test_a_refusal_names_the_server_and_the_remedy_and_is_final(said, remedy):
    error = translate(psycopg.OperationalError(f'connection to server at "db", port 6543 failed: FATAL:  {said}'), URL)

    assert type(error) is SourceError
    assert not error.retryable
    assert str(error).startswith(f"PostgreSQL at me@db.example.com:6543/shop refused the connection: {said}; ")
    assert remedy in str(error)
    assert "hunter2" not in str(error)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("FATAL:  the database system is starting up", "the database system is starting up"),
        ("FATAL:  sorry, too many clients already", "sorry, too many clients already"),
        ("connection refused\n\tIs the server running?", "connection refused"),
        ("", "OperationalError"),
    ],
)
def test_anything_else_may_pass_and_be_tried_again(said, shown):
    error = translate(psycopg.OperationalError(said), URL)

    assert isinstance(error, ConnectionLost)
    assert error.retryable
    assert str(error).startswith(f"no connection to PostgreSQL at me@db.example.com:6543/shop: {shown}; ")
    assert "hunter2" not in str(error)


def test_of_several_hosts_the_last_refusal_counts():
    said = ('"one" failed: FATAL:  the database system is starting up', '"two" failed: FATAL:  role "me" does not exist')

    assert "create the role" in str(translate(psycopg.OperationalError("\n".join(said)), URL))


def test_an_error_that_is_translated_keeps_its_cause():
    with pytest.raises(ConnectionLost) as caught, translated(URL):
        raise psycopg.OperationalError("gone")

    assert isinstance(caught.value.__cause__, psycopg.OperationalError)


@pytest.mark.parametrize(
    ("error", "is_it"),
    [
        (psycopg.OperationalError("the connection is lost"), True),
        (errors.AdminShutdown(), True),
        (errors.ConnectionFailure(), True),
        (errors.TooManyConnections(), True),
        (errors.QueryCanceled(), False),
        (errors.ReadOnlySqlTransaction(), False),
        (errors.InsufficientPrivilege(), False),
        (psycopg.ProgrammingError("odd"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_trouble_with_the_connection_is_told_from_a_refusal(error, is_it):
    assert is_passing(error) is is_it


@pytest.mark.parametrize("password", ["geh@S3CRETim", "geh#S3CRET/im", "geh/S3CRET", "geh:S3CRET@x"])
def test_a_password_that_is_not_percent_encoded_is_refused_and_not_shown(password):
    with pytest.raises(SettingsError, match="percent-encode") as raised:
        complete(f"postgresql://capture:{password}@127.0.0.1:5432/shop")
    assert "S3CRET" not in str(raised.value)


def asks_for(*waits):
    """A generator such as those of psycopg, and what it was answered."""
    answers = []

    def waiting():
        for wait in waits:
            answers.append((yield wait))
        return "the result"

    return waiting(), answers


def test_what_is_there_to_read_is_read_without_waiting_for_it():
    here, there = socket.socketpair()
    with here, there:
        there.send(b"x")
        given, answers = asks_for(Wait.R, Wait.R, Wait.RW)
        eager = _eager(given, here.fileno())
        assert next(eager) == Wait.RW
        assert answers == [Ready.R, Ready.R]
        with pytest.raises(StopIteration, match="the result"):
            eager.send(Ready.W)
        assert answers[2] == Ready.W


def test_what_is_not_there_is_waited_for():
    here, there = socket.socketpair()
    with here, there:
        given, answers = asks_for(Wait.R, Wait.R)
        eager = _eager(given, here.fileno())
        assert (next(eager), eager.send(0)) == (Wait.R, Wait.R)
        assert answers == [0]


def test_of_a_large_answer_others_have_their_turn():
    here, there = socket.socketpair()
    with here, there:
        there.send(b"x")
        given, answers = asks_for(*[Wait.R] * 200)
        eager = _eager(given, here.fileno())
        next(eager)
        assert len(answers) == _READS
        eager.send(Ready.R)
        assert len(answers) == 2 * _READS + 1
