"""`headwater topics dead`: messages that a group has put aside."""

import sys
from typing import Annotated, Any

import typer

from headwater.cli.config import Json, Url
from headwater.cli.confirm import confirm
from headwater.cli.lines import printable, shortened
from headwater.cli.output import print_json, print_table
from headwater.cli.session import session
from headwater.cli.topics.groups import GroupName, Name
from headwater.cli.topics.messages import plain_payload
from headwater.errors import HeadwaterError, SettingsError
from headwater.topics import operate, require_topics
from headwater.topics.group_statements import DeadLetter

Partition = Annotated[int | None, typer.Option("--partition", min=0, help="Only of this one.", show_default="all")]
Offset = Annotated[int | None, typer.Option("--offset", min=0, help="Only this one.", show_default="all")]


def dead(
    name: Name,
    group: GroupName,
    replay: Annotated[
        bool, typer.Option("--replay", help="Append them to the topic again, for all groups, and forget them here.")
    ] = False,
    partition: Partition = None,
    offset: Offset = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many to show.")] = 100,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = "",
    json: Json = False,
) -> None:
    """List the messages that a group could not deal with, with the reason, or have them read again.

    With --replay they are appended once more, behind all that came since, and every group gets them; the header
    `headwater-replay` says for which group that is, and where they stood.

    Examples:

        headwater topics dead orders billing
        headwater topics dead orders billing --partition 0 --offset 4711 --replay
        headwater topics dead orders billing --replay --yes
    """
    if offset is not None and partition is None:
        raise SettingsError("an offset is one of a partition; name it with --partition")
    with session(url) as connection:
        require_topics(connection)
        found = operate.list_dead_sync(connection, name, group, partition=partition, offset=offset, limit=limit)
        if not replay:
            _show(found, as_json=json)
            return
        if not found:
            raise HeadwaterError(f"group {group} of topic {name} has no such dead letter; leave out --replay to list them")
        confirm(f"Append dead letters of group {group} to topic {name} again?", yes=yes)
        replayed = operate.replay_dead_sync(connection, name, group, partition=partition, offset=offset)
    typer.echo(f"appended again: {replayed:,}")


def _show(found: list[DeadLetter], *, as_json: bool) -> None:
    if as_json:
        print_json([_plain(one) for one in found])
    elif found:
        print_table(("partition", "offset", "key", "died at", "attempts", "reason", "payload"), [_row(one) for one in found])
    else:
        typer.echo("nothing was put aside")


def _row(one: DeadLetter) -> tuple[str, ...]:
    payload = printable(one.payload.decode(errors="backslashreplace"))
    texts = printable(one.reason), payload
    reason, payload = (shortened(text) for text in texts) if sys.stdout.isatty() else texts
    at = f"{one.died_at:%Y-%m-%d %H:%M:%S%z}"
    return str(one.partition), f"{one.message_offset:,}", one.key or "", at, f"{one.attempts:,}", reason, payload


def _plain(one: DeadLetter) -> dict[str, Any]:
    return {
        "partition": one.partition,
        "offset": one.message_offset,
        "created_at": one.created_at.isoformat(),
        "key": one.key,
        "headers": dict(one.headers),
        **plain_payload(one.payload),
        "reason": one.reason,
        "attempts": one.attempts,
        "died_at": one.died_at.isoformat(),
    }
