"""`headwater topics init`, `create` and `list`: the tables, the topics in them, and who may do what."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any

import typer

from headwater.cli.config import Json, Url
from headwater.cli.confirm import confirm
from headwater.cli.output import human_bytes, print_json, print_table
from headwater.cli.session import session
from headwater.errors import SettingsError, TopicError
from headwater.model.amount import parse_size
from headwater.postgres.connect import Connection
from headwater.postgres.statements import execute_sync, fetch_sync
from headwater.topics import Topic, create_sync, find_sync, list_topics_sync, prepare_topics, require_topics
from headwater.topics.operate_statements import (
    Measured,
    grant_appending,
    grant_appending_to,
    grant_reading,
    grant_reading_from,
    measure_topics,
)
from headwater.topics.statements import read_bounds
from headwater.topics.topic import add_partitions_sync

Grant = Annotated[list[str] | None, typer.Option("--grant", metavar="ROLE", help="A role that may append; may be repeated.")]
GrantRead = Annotated[
    list[str] | None,
    typer.Option("--grant-read", metavar="ROLE", help="A role that may read in groups, and append; may be repeated."),
]


def init(url: Url = "", grant: Grant = None, grant_read: GrantRead = None) -> None:
    """Make the tables for topics in a database, or bring them to the version of this release.

    What is there stays. Roles get their rights for all topics that there are; `headwater topics create` has the same
    options for a new one.

    Examples:

        headwater topics init --url postgresql://owner@db.example.com/shop --grant shop_app --grant-read billing
    """
    with session(url) as connection:
        prepare_topics(connection)
        _grant(connection, list_topics_sync(connection), grant or (), grant_read or ())
    typer.echo("topics are in schema headwater; make one with `headwater topics create NAME`")
    _tell(grant or (), grant_read or ())


def create(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    partitions: Annotated[int, typer.Option("--partitions", min=1, help="How many can be read side by side.")] = 1,
    retention: Annotated[
        str | None,
        typer.Option("--retention", metavar="DURATION", show_default="for ever", help="How long messages are kept."),
    ] = None,
    retention_bytes: Annotated[
        str | None,
        typer.Option("--retention-bytes", metavar="SIZE", show_default="any", help="How much is kept, as 10GiB."),
    ] = None,
    compression: Annotated[str, typer.Option("--compression", metavar="none|zstd", help="How frames are packed.")] = "none",
    max_bytes: Annotated[str, typer.Option("--max-bytes", metavar="SIZE", help="The largest message.")] = "1MiB",
    url: Url = "",
    grant: Grant = None,
    grant_read: GrantRead = None,
) -> None:
    """Make a topic. Messages of one key keep their order; the key decides on the partition.

    Choose as many partitions as members of a group should ever work at once: more can be added, but then keys move.

    Examples:

        headwater topics create orders --partitions 4 --retention '7 days' --compression zstd
        headwater topics create clicks --retention-bytes 50GiB --grant shop_app --grant-read billing
    """
    sizes = _size("--retention-bytes", retention_bytes), _size("--max-bytes", max_bytes)
    with session(url) as connection, connection.transaction():
        require_topics(connection)
        try:
            topic = create_sync(
                connection,
                name,
                partitions=partitions,
                retention=retention,
                retention_bytes=sizes[0],
                compression=compression,
                max_bytes=sizes[1] or 0,
            )
        except TopicError as exc:
            raise SettingsError(str(exc)) from exc
        _grant(connection, [topic], grant or (), grant_read or ())
    typer.echo(f"topic {topic.name}: made, with {topic.partitions} partitions; kept {_kept(topic)}")
    _tell(grant or (), grant_read or ())


def add_partitions(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    partitions: Annotated[int, typer.Option("--partitions", min=1, help="How many it has then.", show_default=False)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = "",
) -> None:
    """Give a topic more partitions. Keys move: their order holds before and after, and not from the one to the other.

    Where that matters, stop who appends, let the groups read everything, and then do it. Fewer are not possible.

    Examples:

        headwater topics add-partitions orders --partitions 8
    """
    with session(url) as connection:
        require_topics(connection)
        before = find_sync(connection, name)
        confirm(f"Keys of topic {name} will lead to other partitions, and lose their order once. Go on?", yes=yes)
        topic = add_partitions_sync(connection, name, partitions)
    typer.echo(f"topic {name}: {topic.partitions} partitions, where it had {before.partitions}")


def show_all(url: Url = "", json: Json = False) -> None:
    """List the topics of a database, with what they hold and take.

    Examples:

        headwater topics list --url postgresql://owner@db.example.com/shop
        headwater topics list --json
    """
    with session(url) as connection:
        require_topics(connection)
        found = list_topics_sync(connection)
        measured = {one.id: one for one in fetch_sync(connection, measure_topics())}
        counts = {topic.id: _messages(connection, topic) for topic in found}
    if json:
        print_json([plain(topic, measured[topic.id], counts[topic.id]) for topic in found])
    elif found:
        columns = ("topic", "partitions", "messages", "waiting", "size", "segments", "groups", "compression", "kept")
        print_table(columns, [_row(topic, measured[topic.id], counts[topic.id]) for topic in found])
    else:
        typer.echo("there is no topic yet; make one with `headwater topics create NAME`")


def plain(topic: Topic, measured: Measured, messages: int) -> dict[str, Any]:
    """A topic as JSON has it."""
    return {
        "topic": topic.name,
        "id": topic.id,
        "partitions": topic.partitions,
        "messages": messages,
        "appends_waiting": measured.waiting,
        "bytes": measured.bytes,
        "segments": measured.segments,
        "groups": measured.groups,
        "compression": _compression(topic),
        "retention_seconds": None if topic.retention is None else topic.retention.total_seconds(),
        "retention_bytes": topic.retention_bytes,
        "max_bytes": topic.max_bytes,
        "created_at": topic.created_at.isoformat(),
    }


def facts(topic: Topic, measured: Measured) -> list[tuple[str, str]]:
    """What is fixed for a topic, in words."""
    return [
        ("made", f"{topic.created_at:%Y-%m-%d %H:%M:%S%z}"),
        ("size", f"{human_bytes(measured.bytes)} in {measured.segments} segments, compression {_compression(topic)}"),
        ("kept", _kept(topic)),
        ("messages", f"at most {human_bytes(topic.max_bytes)} each"),
        ("waiting", f"{measured.waiting:,} appends that were committed and have no offsets yet"),
    ]


def _grant(connection: Connection, found: Sequence[Topic], appending: Sequence[str], reading: Sequence[str]) -> None:
    for role in (*appending, *reading):
        execute_sync(connection, grant_appending(role))
        for topic in found:
            execute_sync(connection, grant_appending_to(topic.id, role))
    for role in reading:
        execute_sync(connection, grant_reading(role))
        for topic in found:
            execute_sync(connection, grant_reading_from(topic.id, role))


def _tell(appending: Sequence[str], reading: Sequence[str]) -> None:
    for role in appending:
        typer.echo(f"role {role} may append")
    for role in reading:
        typer.echo(f"role {role} may append, and read in groups")


def _messages(connection: Connection, topic: Topic) -> int:
    return sum(one.next_offset - one.first_offset for one in fetch_sync(connection, read_bounds(topic.id)))


def _size(option: str, text: str | None) -> int | None:
    try:
        return None if text is None else parse_size(text)
    except ValueError as exc:
        raise SettingsError(f"{option} {exc}, not {text!r}") from exc


def _row(topic: Topic, measured: Measured, messages: int) -> tuple[str, ...]:
    counts = (topic.partitions, messages, measured.waiting)
    return (
        topic.name,
        *(f"{count:,}" for count in counts),
        human_bytes(measured.bytes),
        f"{measured.segments:,}",
        f"{measured.groups:,}",
        _compression(topic),
        _kept(topic),
    )


def _compression(topic: Topic) -> str:
    return "zstd" if topic.compresses else "none"


def _kept(topic: Topic) -> str:
    limits = []
    if topic.retention is not None:
        limits.append(f"for {_length(topic.retention)}")
    if topic.retention_bytes is not None:
        limits.append(f"up to {human_bytes(topic.retention_bytes)}")
    return " and ".join(limits) or "for ever"


def _length(time: timedelta) -> str:
    for unit, length in (("days", timedelta(days=1)), ("hours", timedelta(hours=1)), ("minutes", timedelta(minutes=1))):
        if not time % length:
            return f"{time // length} {unit}"
    return f"{time.total_seconds():g} s"
