"""Events as rows of a transaction of SQLAlchemy's, by whichever driver it has."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from headwater.errors import OutboxError
from headwater.outbox.statements import identify_database

if TYPE_CHECKING:
    from headwater.outbox.relay import LeasedEvent

_OUTBOX: Final = sa.Table(
    "outbox_message",
    sa.MetaData(),
    sa.Column("id", sa.Uuid),
    *(sa.Column(name, sa.Text) for name in ("topic", "type", "key", "locked_by")),
    *(sa.Column(name, postgresql.JSON) for name in ("payload", "headers")),
    *(sa.Column(name, sa.DateTime(timezone=True)) for name in ("created_at", "locked_until")),
    schema="headwater",
)
# Payload and headers are JSON texts already, which the type of the columns would write as strings once more.
INSERT: Final = (
    sa.insert(_OUTBOX)
    .values(
        {
            **{name: sa.bindparam(name) for name in ("id", "topic", "type", "key", "locked_by")},
            **{name: sa.cast(sa.bindparam(name, type_=sa.Text), postgresql.JSON) for name in ("payload", "headers")},
            "locked_until": sa.func.clock_timestamp()
            + sa.func.make_interval(0, 0, 0, 0, 0, 0, sa.bindparam("lease_seconds", type_=sa.Double)),
        }
    )
    .returning(_OUTBOX.c.id, _OUTBOX.c.created_at)
)

_IDENTIFY: Final = sa.text(identify_database().query.as_string())
# In the `info` of a connection, which is that of the driver's connection below, and lasts as long as that.
_DATABASE: Final = "headwater.outbox.database"


def database_of(connection: sa.Connection) -> str:
    """Which database it leads to, as relays know theirs; asked of each connection of the driver once."""
    if (found := connection.info.get(_DATABASE)) is None:
        found = connection.info[_DATABASE] = connection.execute(_IDENTIFY).scalar_one()
    return str(found)


def insert(connection: sa.Connection, events: "Sequence[LeasedEvent]") -> None:
    if any(not each.event.is_ascii for each in events) and (encoding := _server_encoding(connection)) != "UTF8":
        raise OutboxError(
            f"the database is encoded in {encoding}, which may lack characters of the event; use one in UTF8, or ASCII only"
        )
    written = {row.id: row.created_at for row in connection.execute(INSERT, [each.row for each in events])}
    for each in events:
        each.created_at = written[each.event.id]


def _server_encoding(connection: sa.Connection) -> str:
    """As the server has said at the beginning, which psycopg, psycopg2 and asyncpg remember."""
    driver: Any = connection.connection.driver_connection
    if hasattr(driver, "get_settings"):
        return str(getattr(driver.get_settings(), "server_encoding", "UTF8"))
    return str(driver.info.parameter_status("server_encoding"))
