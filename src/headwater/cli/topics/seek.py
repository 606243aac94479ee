"""`headwater topics seek`: a group goes on from elsewhere."""

from typing import Annotated

import typer

from headwater.cli.config import Json, Url
from headwater.cli.confirm import confirm
from headwater.cli.output import print_json, print_table
from headwater.cli.session import session
from headwater.cli.topics.groups import GroupName, Name
from headwater.cli.topics.place import parse_place
from headwater.topics import operate, require_topics


def seek(
    name: Name,
    group: GroupName,
    to: Annotated[
        str, typer.Option("--to", metavar="earliest|latest|OFFSET|TIME", help="Where it goes on.", show_default=False)
    ],
    partition: Annotated[int | None, typer.Option("--partition", min=0, help="Only there.", show_default="all")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = "",
    json: Json = False,
) -> None:
    """Have a group go on from another place, earlier to read messages again, or later to leave some out.

    Its members need not be stopped: they begin there with their next batch, and what they have in hand they cannot commit.

    Examples:

        headwater topics seek orders billing --to 2026-11-16T10:00:00Z
        headwater topics seek orders billing --to 4711 --partition 2 --yes
    """
    place = parse_place("--to", to)
    with session(url) as connection:
        require_topics(connection)
        operate.find_group_sync(connection, name, group)
        before = {one.partition: one.next_offset for one in operate.read_lag_sync(connection, name, group)}
        confirm(f"Have group {group} of topic {name} go on from {to}?", yes=yes)
        after = operate.seek_sync(connection, name, group, place, partition)
    if json:
        moved = [{"partition": one, "before": before.get(one), "next_offset": offset} for one, offset in after.items()]
        print_json(moved)
    else:
        rows = [(str(one), f"{before.get(one, 0):,}", f"{offset:,}") for one, offset in after.items()]
        print_table(("partition", "was at", "goes on at"), rows)
