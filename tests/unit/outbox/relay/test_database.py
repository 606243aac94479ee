"""Whether the database is there, by the sessions that use it."""

import logging

from headwater.errors import ConnectionLost
from headwater.outbox.relay.counts import Counts
from headwater.outbox.relay.database import Database

AWAY = ConnectionLost("away")


def test_it_is_said_once_that_it_is_away_and_once_that_all_have_it_again(caplog):
    caplog.set_level(logging.INFO)
    database = Database(counts := Counts())
    assert not counts.is_database_up
    database.found("saver")
    assert (counts.is_database_up, caplog.messages) == (True, [])
    for session in ("saver", "reviver", "saver"):
        database.lost(AWAY, session)
    database.found("saver")
    after_one = counts.is_database_up
    database.found("reviver")
    assert (after_one, counts.is_database_up) == (False, True)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "the outbox cannot be read or written for now: away"),
        ("INFO", "the database is back, and the outbox is read and written again"),
    ]
