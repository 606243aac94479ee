"""Which columns of a table hold the parts of a message: Headwater's own outbox, Debezium's, or anybody's."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from headwater.errors import SettingsError

OUTBOX_TABLE: Final = "headwater.outbox_message"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxColumns:
    """The columns of an outbox, by what they hold; names are as in the catalog, without quotes.

    What a table has no column for is None. `topic_value` and `type_value` stand in for columns that say the topic and the
    type. `header_columns` are columns that become headers, as pairs of header and column.
    """

    id: str
    payload: str
    topic: str | None = None
    type: str | None = None
    key: str | None = None
    headers: str | None = None
    created_at: str | None = None
    xid: str | None = None
    topic_value: str | None = None
    type_value: str | None = None
    header_columns: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for what, column, value in (("topic", self.topic, self.topic_value), ("type", self.type, self.type_value)):
            if (column is None) == (value is None):
                raise SettingsError(
                    f"an outbox needs either a column for the {what} or {what}_value for all messages; give one"
                )
            if value == "":
                raise SettingsError(f"{what}_value is empty; every message needs a {what}")
        if "" in self.names or self.xid == "":
            raise SettingsError("a column of the outbox has an empty name; leave out what the table has no column for")
        headers = [header for header, _ in self.header_columns]
        if len(set(headers)) < len(headers):
            raise SettingsError("two columns of the outbox become the same header; give each a name of its own")

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that messages are made of, each once."""
        return tuple(dict.fromkeys(column for _, column in self.parts()))

    def parts(self) -> Iterator[tuple[str, str]]:
        """What each column is for, and its name; the transaction id is no part of a message."""
        for part in ("id", "topic", "type", "key", "payload", "headers", "created_at"):
            column: str | None = getattr(self, part)
            if column is not None:
                yield part, column
        for header, column in self.header_columns:
            yield f"header {header}", column

    @classmethod
    def headwater(cls) -> "OutboxColumns":
        """Headwater's own table, `headwater.outbox_message`."""
        return cls(
            id="id",
            topic="topic",
            type="type",
            key="key",
            payload="payload",
            headers="headers",
            created_at="created_at",
            xid="xid",
        )

    @classmethod
    def debezium(cls, *, created_at: str | None = None, xid: str | None = None) -> "OutboxColumns":
        """The outbox of Debezium's event router, which has neither time nor transaction id unless columns were added."""
        return cls(
            id="id",
            topic="aggregatetype",
            key="aggregateid",
            type="type",
            payload="payload",
            created_at=created_at,
            xid=xid,
        )

    @classmethod
    def dialogporten(cls, topic: str, *, xid: str | None = None) -> "OutboxColumns":
        """The table `OutboxMessage` of Dialogporten; all messages go to one topic."""
        return cls(
            id="EventId",
            type="EventType",
            payload="EventPayload",
            created_at="CreatedAt",
            xid=xid,
            topic_value=topic,
            header_columns=(("correlation-id", "CorrelationId"),),
        )
