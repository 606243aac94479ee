"""`headwater topics groups`, `pause` and `resume`: who reads, and how far they are."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

import typer

from headwater.cli.config import Json, Url
from headwater.cli.confirm import confirm
from headwater.cli.output import print_json, print_table
from headwater.cli.session import session
from headwater.postgres.connect import Connection
from headwater.postgres.statements import fetch_sync
from headwater.topics import operate, require_topics
from headwater.topics.group_statements import Group, Lag
from headwater.topics.operate_statements import count_dead

Name = Annotated[str, typer.Argument(metavar="NAME", help="The topic.", show_default=False)]
GroupName = Annotated[str, typer.Argument(metavar="GROUP", show_default=False)]


@dataclass(frozen=True, slots=True)
class Reader:
    """A group, how far it is in each partition, and how many messages it has put aside."""

    group: Group
    lags: Sequence[Lag]
    dead: int

    @property
    def lag(self) -> int:
        return sum(one.lag for one in self.lags)

    @property
    def oldest_age(self) -> timedelta | None:
        return max((one.oldest_age for one in self.lags if one.oldest_age is not None), default=None)


def groups(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The topic.", show_default="all topics")] = None,
    url: Url = "",
    json: Json = False,
) -> None:
    """Show the groups of a topic, or of all: their members, and how far they are behind.

    `oldest` is the age of the oldest message that a group has not dealt with: watch that one.

    Examples:

        headwater topics groups orders
        headwater topics groups --json
    """
    with session(url) as connection:
        require_topics(connection)
        found = readers(connection, name)
    if json:
        print_json([plain(one) for one in found])
    elif found:
        print_readers(found)
    else:
        typer.echo("no group has read yet; one is there when its first subscriber is")


def pause(name: Name, group: GroupName, url: Url = "") -> None:
    """Have the members of a group get nothing more, within a poll, until `resume`. What they have they may commit.

    Messages wait meanwhile, and are not dropped for their age.

    Examples:

        headwater topics pause orders billing
    """
    with session(url) as connection:
        require_topics(connection)
        operate.pause_sync(connection, name, group)
    typer.echo(f"group {group} of topic {name}: paused")


def resume(name: Name, group: GroupName, url: Url = "") -> None:
    """Have the members of a paused group go on where they were.

    Examples:

        headwater topics resume orders billing
    """
    with session(url) as connection:
        require_topics(connection)
        operate.resume_sync(connection, name, group)
    typer.echo(f"group {group} of topic {name}: goes on")


def drop_group(
    name: Name,
    group: GroupName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = "",
) -> None:
    """Forget a group for good, with its place and its dead letters, so that nothing is kept for it any more.

    Members that are still there fail. A group of the same name begins anew.

    Examples:

        headwater topics drop-group orders billing
    """
    with session(url) as connection:
        require_topics(connection)
        found = operate.find_group_sync(connection, name, group)
        confirm(f"Forget group {group} of topic {name}, with {found.members} members?", yes=yes)
        operate.drop_group_sync(connection, name, group)
    typer.echo(f"group {group} of topic {name}: gone")


def readers(connection: Connection, topic: str | None) -> list[Reader]:
    lags = operate.read_lag_sync(connection, topic)
    dead = {one.group_id: one.letters for one in fetch_sync(connection, count_dead())}
    return [
        Reader(
            group,
            [lag for lag in lags if (lag.topic, lag.group_name) == (group.topic, group.name)],
            dead.get(group.id, 0),
        )
        for group in operate.list_groups_sync(connection, topic)
    ]


def print_readers(found: Sequence[Reader]) -> None:
    columns = ("topic", "group", "mode", "state", "members", "lag", "oldest", "dead")
    styles = ["yellow" if one.dead or one.group.is_paused else "" for one in found]
    print_table(columns, [_row(one) for one in found], styles)


def plain(reader: Reader) -> dict[str, Any]:
    """A group as JSON has it."""
    group = reader.group
    return {
        "topic": group.topic,
        "group": group.name,
        "mode": group.mode,
        "is_paused": group.is_paused,
        "members": group.members,
        "lag": reader.lag,
        "oldest_seconds": _seconds(reader.oldest_age),
        "dead": reader.dead,
        "created_at": group.created_at.isoformat(),
        "partitions": [_plain_lag(one) for one in reader.lags],
    }


def _plain_lag(lag: Lag) -> dict[str, Any]:
    return {
        "partition": lag.partition,
        "next_offset": lag.next_offset,
        "tip": lag.tip,
        "claimed": lag.claimed,
        "lag": lag.lag,
        "oldest_seconds": _seconds(lag.oldest_age),
        "member": None if lag.member is None else str(lag.member),
        "epoch": lag.epoch,
        "committed_at": None if lag.committed_at is None else lag.committed_at.isoformat(),
    }


def _row(reader: Reader) -> tuple[str, ...]:
    group = reader.group
    oldest = "" if reader.oldest_age is None else f"{reader.oldest_age.total_seconds():,.1f} s"
    state = "paused" if group.is_paused else "reads" if group.members else "nobody there"
    counts = f"{group.members:,}", f"{reader.lag:,}", oldest, f"{reader.dead:,}"
    return group.topic, group.name, group.mode, state, *counts


def _seconds(age: timedelta | None) -> float | None:
    return None if age is None else age.total_seconds()
