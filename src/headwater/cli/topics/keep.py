"""`headwater topics maintain` and `trim`: what of a topic is kept."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from headwater.cli.config import Json, Url
from headwater.cli.confirm import confirm
from headwater.cli.output import human_bytes, print_json, print_table
from headwater.cli.session import session
from headwater.cli.topics.groups import Name
from headwater.cli.topics.place import parse_place
from headwater.errors import HeadwaterError, SettingsError
from headwater.topics import Topic, find_sync, list_topics_sync, number_sync, require_topics
from headwater.topics.retention import Upkept
from headwater.topics.retention import maintain as maintain_topic
from headwater.topics.retention import trim as trim_topic
from headwater.topics.retention_statements import Segment


def maintain(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME...", help="Topics.", show_default="all of them")] = None,
    url: Url = "",
    json: Json = False,
) -> None:
    """Begin new segments where the present ones are old or large, and drop those that are not kept any more.

    For every few minutes, as the owner of the tables. Appends that wait for their offsets get them. Dropped are segments
    whose messages are all older than the topic's retention and dealt with by all groups, and the oldest beyond its size.
    What others stand in the way of is said, and done the next time.

    Examples:

        headwater topics maintain
        headwater topics maintain orders --json
    """
    with session(url) as connection:
        require_topics(connection)
        found = [find_sync(connection, name) for name in names] if names else list_topics_sync(connection)
        for topic in found:
            # A topic that is only appended to, in transactions, has nobody else who does.
            number_sync(connection, topic)
        done = [(topic, maintain_topic(connection, topic)) for topic in found]
    if json:
        print_json([_plain(topic, upkept) for topic, upkept in done])
        return
    rows = [_row(topic, upkept) for topic, upkept in done]
    if rows:
        print_table(("topic", "new segment", "dropped", "size", "not done"), rows)
    else:
        typer.echo("there is no topic yet; make one with `headwater topics create NAME`")


def trim(
    name: Name,
    before: Annotated[
        str,
        typer.Option(
            "--before", metavar="latest|OFFSET|TIME", help="What may go: everything before it.", show_default=False
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell what would be dropped, and change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = "",
    json: Json = False,
) -> None:
    """Drop the segments of a topic that have nothing but messages before an offset or a time, read or not.

    Only whole segments are dropped, so that some of what may go can stay. A group that has not read them gets an error that
    says so, and names the oldest message that is there; `headwater topics seek` moves it.

    Examples:

        headwater topics trim orders --before 2026-11-10T00:00:00Z --dry-run
        headwater topics trim orders --before latest --yes
    """
    place = parse_place("--before", before)
    if place == "earliest":
        raise SettingsError("there is nothing before the earliest message; name an offset, a time, or latest for everything")
    with session(url) as connection:
        require_topics(connection)
        topic = find_sync(connection, name)
        if not dry_run:
            confirm(f"Drop what topic {name} has before {before}, read or not?", yes=yes)
        done = trim_topic(connection, topic, None if isinstance(place, str) else place, dry_run=dry_run)
    if json:
        print_json({"dry_run": dry_run, **_plain(topic, done)})
    elif done.dropped:
        outcome = "would be dropped" if dry_run else "dropped"
        print_table(
            ("segment", "outcome", "size", "up to offset", "up to"), [_segment_row(one, outcome) for one in done.dropped]
        )
    elif not done.hindrances:
        typer.echo("no segment has nothing but messages before that")
    if done.hindrances:
        raise HeadwaterError(f"topic {name}: {'; '.join(done.hindrances)}")


def segment_rows(segments: Sequence[Segment]) -> list[tuple[str, ...]]:
    """Segments for people, with what they are there for."""
    return [_segment_row(one, _state(one)) for one in segments]


def _state(segment: Segment) -> str:
    return "current" if segment.is_current else "read by all" if segment.is_read else "not read by all"


def _segment_row(one: Segment, state: str) -> tuple[str, ...]:
    newest = "" if one.newest_at is None else f"{one.newest_at:%Y-%m-%d %H:%M:%S%z}"
    return str(one.segment), state, human_bytes(one.bytes), "" if one.last_offset is None else f"{one.last_offset:,}", newest


def _row(topic: Topic, done: Upkept) -> tuple[str, ...]:
    size = human_bytes(sum(one.bytes for one in done.dropped))
    return topic.name, "yes" if done.has_rotated else "", f"{len(done.dropped):,}", size, "; ".join(done.hindrances)


def _plain(topic: Topic, done: Upkept) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "new_segment": done.has_rotated,
        "dropped": [
            {
                "segment": one.segment,
                "bytes": one.bytes,
                "last_offset": one.last_offset,
                "newest_at": None if one.newest_at is None else one.newest_at.isoformat(),
            }
            for one in done.dropped
        ],
        "not_done": list(done.hindrances),
    }
