"""`headwater topics read`: messages as lines, from a place of their own or as a member of a group."""

import sys
from typing import Annotated

import typer

from headwater.cli.config import Json, Url
from headwater.cli.session import session
from headwater.cli.signals import stop_on_sigterm
from headwater.cli.topics.follow import Follower
from headwater.cli.topics.member import Membership
from headwater.cli.topics.place import parse_place
from headwater.cli.topics.printer import Printer
from headwater.errors import SettingsError
from headwater.topics import find_sync, require_topics


def read(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    group: Annotated[
        str | None, typer.Option("--group", help="Read as a member of this group, and move it past what was printed.")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="earliest|latest|OFFSET|TIME",
            show_default="earliest; latest with --follow and no group",
            help="Where to begin; of a group, where it begins if it is new.",
        ),
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", min=0, help="Only this one.", show_default="all")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more, until Ctrl-C or SIGTERM.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Stop after so many.", show_default="no limit")] = None,
    json: Json = False,
    url: Url = "",
) -> None:
    """Print the messages of a topic: readable lines on a terminal, JSON lines into a pipe or with --json.

    Without a group nothing is moved, and nobody notices. With one, this is a member of it like any other: it gets its share
    of the partitions, and each message is printed at least once.

    Examples:

        headwater topics read orders --follow
        headwater topics read orders --from 2026-11-16T10:00:00Z --partition 0 --limit 10 --json
        headwater topics read orders --group audit --follow --json >> audit.jsonl
    """
    place = parse_place("--from", start or ("latest" if follow and group is None else "earliest"))
    if group is not None and partition is not None:
        raise SettingsError("a member of a group reads what falls to it; leave out --partition, or --group")
    printer = Printer(as_json=json or not sys.stdout.isatty(), limit=limit)
    with stop_on_sigterm(or_ctrl_c=follow) as stopping, session(url) as connection:
        require_topics(connection)
        topic = find_sync(connection, name)
        if group is not None:
            Membership(connection, url, topic, group).run(place, printer, stopping, follows=follow)
        else:
            Follower(connection, topic, place, partition).run(printer, stopping, follows=follow)
