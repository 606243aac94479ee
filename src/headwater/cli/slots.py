"""`headwater slots`: which slots there are, what they keep, and which of ours nobody reads any more."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated

import typer

from headwater.cli.config import Json, Url
from headwater.cli.output import human_bytes, print_json, print_table
from headwater.cli.session import session
from headwater.errors import SettingsError, SlotActive, SlotMissing, SourceError
from headwater.postgres.replication.slot import Slot, drop_slot, find_slot, list_slots

# Every slot that Headwater makes, unless it is told a name, begins like this.
OUR_PREFIX = "headwater"

slots = typer.Typer(invoke_without_command=True)


@slots.callback()
def default(context: typer.Context, url: Url = "", json: Json = False) -> None:
    """Show the server's logical replication slots, or drop one.

    A slot makes the server keep WAL until its reader confirms it, whether or not there is a reader: one that was left behind
    fills the disk. Slots of ours that nobody reads are marked as orphans; they are, unless their pipeline is only stopped.

    Examples:

        headwater slots
        headwater slots list --json
        headwater slots drop headwater_shop
    """
    if context.invoked_subcommand is None:
        show(url, json)
    elif any(_is_given(context, option) for option in ("url", "json")):
        name = context.invoked_subcommand
        raise SettingsError(f"options of `slots {name}` stand after it; write headwater slots {name} --url ...")


@slots.command("list")
def show(url: Url = "", json: Json = False) -> None:
    """Show all logical slots of the server, and which of ours nobody reads.

    `kept` is the WAL that the server keeps for a slot; `behind` is what its reader has not confirmed.
    """
    with session(url) as connection:
        found = [slot for slot in list_slots(connection) if slot.plugin is not None or is_ours(slot)]
    if json:
        print_json([{**_plain(slot), "ours": is_ours(slot), "orphan": is_orphan(slot)} for slot in found])
    else:
        _print(found)


@slots.command("drop")
def drop(
    name: Annotated[str, typer.Argument(help="The slot, as `headwater slots` shows it.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = "",
) -> None:
    """Drop a slot that nobody reads; what it kept is gone for its reader, for good.

    Examples:

        headwater slots drop headwater_shop
        headwater slots drop headwater_shop --yes
    """
    with session(url) as connection:
        slot = find_slot(connection, name)
        if slot is None:
            raise SlotMissing(name)
        if slot.plugin is None:
            raise SourceError(f"slot {name!r} is a physical one, which a standby may need; drop it in SQL if it is yours")
        if slot.active:
            raise SlotActive(name, f"process {slot.active_pid} reads it")
        if not yes:
            typer.confirm(f"Drop slot {name}, which keeps {_size(slot.retained_bytes)} of WAL?", abort=True, err=True)
        drop_slot(connection, name)
    typer.echo(f"dropped slot {name}, which kept {_size(slot.retained_bytes)} of WAL")


def is_ours(slot: Slot) -> bool:
    return slot.name.startswith(OUR_PREFIX)


def is_orphan(slot: Slot) -> bool:
    """A slot of ours that outlives its reader, and that nobody reads at the moment."""
    return is_ours(slot) and not slot.active and not slot.temporary


def _is_given(context: typer.Context, option: str) -> bool:
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def _print(found: Sequence[Slot]) -> None:
    if not found:
        typer.echo("no logical replication slots")
        return
    columns = ("slot", "plugin", "database", "active", "WAL", "kept", "behind", "note")
    print_table(columns, [_row(slot) for slot in found], ["yellow" if is_orphan(slot) else "" for slot in found])
    orphans = [slot for slot in found if is_orphan(slot)]
    if orphans:
        kept = human_bytes(max(slot.retained_bytes or 0 for slot in orphans))
        hint = "drop those that no pipeline will come back for: headwater slots drop NAME"
        typer.echo(f"\n{len(orphans)} of our slots without a reader, keeping up to {kept} of WAL; {hint}")


def _row(slot: Slot) -> tuple[str, ...]:
    note = f"invalidated: {slot.invalidation_reason}" if slot.invalidation_reason else "orphan?" if is_orphan(slot) else ""
    active = f"process {slot.active_pid}" if slot.active else "no"
    sizes = (_size(slot.retained_bytes), _size(slot.lag_bytes))
    return (slot.name, slot.plugin or "", slot.database or "", active, slot.wal_status or "", *sizes, note)


def _size(size: int | None) -> str:
    return "nothing" if size is None else human_bytes(size)


def _plain(slot: Slot) -> dict[str, object]:
    positions = {"restart_lsn": slot.restart_lsn, "confirmed_flush_lsn": slot.confirmed_flush_lsn}
    return {**dataclasses.asdict(slot), **{key: None if lsn is None else str(lsn) for key, lsn in positions.items()}}
