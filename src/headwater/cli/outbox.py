"""`headwater outbox`: makes the tables that applications write events to, and drops what was delivered long ago."""

from datetime import timedelta
from typing import Annotated, Any

import typer

from headwater.cli.config import Json, Url
from headwater.cli.lazy_group import LazyCommand, LazyGroup
from headwater.cli.output import human_bytes, print_json, print_table
from headwater.cli.session import session
from headwater.errors import SettingsError
from headwater.model.amount import parse_duration
from headwater.outbox.checkpoint import prepare_outbox, require_outbox
from headwater.outbox.partitions import Ensured, Purged, drop_partitions, ensure_partitions, is_unused
from headwater.outbox.statements import Partition, grant_relaying, grant_writing, read_clock, require_role
from headwater.postgres.statements import execute_sync, fetch_sync


class OutboxGroup(LazyGroup):
    """The commands, in the order of the help, each with the first line of its own help."""

    listed = (
        LazyCommand(
            "init",
            "headwater.cli.outbox",
            "Make the tables of outbox and inbox in the application's database, and the partitions of the next days.",
        ),
        LazyCommand(
            "purge",
            "headwater.cli.outbox",
            "Drop partitions of the outbox that are old and delivered, and make those of the next days; for once a day.",
        ),
        LazyCommand(
            "dead",
            "headwater.cli.outbox_dead",
            "List the events that relays of the table have given up: refused by the broker, or tried in vain too often.",
        ),
        LazyCommand(
            "relay",
            "headwater.cli.outbox_relay",
            "Relay the outbox to a broker from a process of its own, without Spark and without a slot, until SIGTERM.",
        ),
        LazyCommand(
            "release",
            "headwater.cli.outbox_dead",
            "Say that no relay of the table serves this outbox any more, so that a pipeline may.",
        ),
        LazyCommand(
            "replay",
            "headwater.cli.outbox_state",
            "Send messages that are still in the table once more, in the order of their time, under their own ids.",
        ),
        LazyCommand(
            "revive",
            "headwater.cli.outbox_dead",
            "Have dead events sent again, as if for the first time; a relay that runs finds them within seconds.",
        ),
        LazyCommand(
            "status",
            "headwater.cli.outbox_state",
            "Show how far pipelines, or relays inside of processes, have delivered the outbox of a database.",
        ),
        LazyCommand(
            "checkpoint",
            "headwater.cli.outbox_state",
            "Show what a pipeline has delivered of an outbox, or make it forget that.",
        ),
    )


outbox = typer.Typer(cls=OutboxGroup, no_args_is_help=True)

Ahead = Annotated[str, typer.Option("--ahead", metavar="DURATION", help="For how long from now on partitions are made.")]
Every = Annotated[str, typer.Option("--every", metavar="DURATION", help="How long the time of a new partition is.")]


@outbox.callback()
def default() -> None:
    """Look after the outbox: the table `headwater.outbox_message`, to which applications write events in their transactions.

    A pipeline (`headwater run`) or a relay of the table takes them to a broker.

    Examples:

        headwater outbox init --grant shop_app
        headwater outbox relay relay.toml
        headwater outbox purge --older-than 7d
    """


def init(
    url: Url = "",
    grant: Annotated[
        list[str] | None, typer.Option("--grant", metavar="ROLE", help="A role that may write events; may be repeated.")
    ] = None,
    grant_relay: Annotated[
        list[str] | None,
        typer.Option(
            "--grant-relay", metavar="ROLE", help="A role that may relay them, too, from its process; may be repeated."
        ),
    ] = None,
    ahead: Ahead = "7d",
    every: Every = "1d",
) -> None:
    """Make the tables of outbox and inbox in the application's database, and the partitions of the next days.

    What is there stays. A role that is granted the right may publish events and remember messages, and no more: it cannot
    set what recovery rests on, the time and the transaction of an event. One that is to relay events from inside of its
    process, or by `headwater outbox relay`, may also claim them and write down what became of them. Partitions are its
    owner's: have `headwater outbox purge` run by that role.

    Examples:

        headwater outbox init --url postgresql://owner@db.example.com/shop --grant shop_app
        headwater outbox init --url postgresql://owner@db.example.com/shop --grant-relay shop_app
        headwater outbox init --every 1h --ahead 2d
    """
    lengths = _duration("--ahead", ahead), _duration("--every", every)
    with session(url) as connection:
        for role in (*(grant or ()), *(grant_relay or ())):
            fetch_sync(connection, require_role(role))
    prepare_outbox(url)
    with session(url) as connection:
        ensured = ensure_partitions(connection, *lengths, spares_present=not is_unused(connection))
        for role in (*(grant or ()), *(grant_relay or ())):
            execute_sync(connection, grant_writing(role))
        for role in grant_relay or ():
            execute_sync(connection, grant_relaying(role))
    typer.echo("the outbox is headwater.outbox_message, the inbox headwater.inbox_message")
    _tell(ensured)
    for role in grant or ():
        typer.echo(f"role {role} may write events and remember messages")
    for role in grant_relay or ():
        typer.echo(f"role {role} may write, relay and settle events, and remember messages")


def purge(
    older_than: Annotated[
        str,
        typer.Option("--older-than", metavar="DURATION", help="How long events are kept, as 7d or 12h.", show_default=False),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell what would be dropped, and change nothing.")] = False,
    url: Url = "",
    ahead: Ahead = "7d",
    every: Every = "1d",
    json: Json = False,
) -> None:
    """Drop partitions of the outbox that are old and delivered, and make those of the next days; for once a day.

    A partition is dropped when every event in it was delivered by every pipeline, as far as its saved checkpoint tells.
    Where no pipeline has one, because relays inside of processes deliver the outbox, a partition is dropped when they have
    published every event in it; dead ones keep it. What is kept is named, with the reason.

    Examples:

        headwater outbox purge --older-than 7d
        headwater outbox purge --older-than 12h --dry-run --json
    """
    age = _duration("--older-than", older_than)
    lengths = _duration("--ahead", ahead), _duration("--every", every)
    with session(url) as connection:
        require_outbox(connection)
        (now,) = fetch_sync(connection, read_clock())
        purged = drop_partitions(connection, now - age, dry_run=dry_run)
        ensured = Ensured((), ()) if dry_run else ensure_partitions(connection, *lengths, spares_present=True)
    if json:
        print_json({"dry_run": dry_run, **_plain(purged, ensured)})
    else:
        _print(purged, dry_run=dry_run)
        _tell(ensured)


def _duration(option: str, text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ValueError as exc:
        raise SettingsError(f"{option} must be a duration such as 7d, 12h or 30m, not {text!r}") from exc


def _print(purged: Purged, *, dry_run: bool) -> None:
    done = "would be dropped" if dry_run else "dropped"
    rows = [(one.name, done, human_bytes(one.bytes)) for one in purged.dropped]
    rows += [(one.name, "kept", one.reason) for one in purged.kept]
    if rows:
        print_table(("partition", "outcome", "size or reason"), rows, ["" if row[1] == done else "yellow" for row in rows])
    if purged.deleted and dry_run:
        typer.echo(f"old rows in the default partition: {purged.deleted}; those that were delivered would be deleted")
    elif purged.deleted:
        typer.echo(f"deleted from the default partition: {purged.deleted}")
    if not rows and not purged.deleted:
        typer.echo("nothing is that old")


def _tell(ensured: Ensured) -> None:
    if ensured.made:
        typer.echo(f"partitions made: {len(ensured.made)}, up to {ensured.made[-1].upper:%Y-%m-%d %H:%M}Z")
    for one in ensured.missing:
        typer.echo(f"partition {one.name} was not made: {one.reason}")


def _plain(purged: Purged, ensured: Ensured) -> dict[str, Any]:
    return {
        "dropped": [_described(one) for one in purged.dropped],
        "kept": [{"partition": one.name, "reason": one.reason} for one in purged.kept],
        "deleted_from_default": purged.deleted,
        "made": [_described(one) for one in ensured.made],
        "not_made": [{"partition": one.name, "reason": one.reason} for one in ensured.missing],
    }


def _described(partition: Partition) -> dict[str, Any]:
    return {
        "partition": partition.name,
        "from": partition.lower.isoformat(),
        "to": partition.upper.isoformat(),
        "bytes": partition.bytes,
    }
