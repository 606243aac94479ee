"""`headwater letters`: the changes that a sink could not take, and what is to become of them."""

import dataclasses
import json as json_text
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.config import File, Json, Url
from headwater.cli.output import print_json, print_table
from headwater.cli.pipeline import DEFAULT_FILE, load_pipeline, require_spark
from headwater.cli.session import session
from headwater.errors import HeadwaterError, SettingsError
from headwater.postgres.connect import Connection

if TYPE_CHECKING:
    from headwater.spark.letters import Letter, LetterSummary, StoredLetter
    from headwater.spark.settings import PipelineSettings
    from headwater.spark.sinks import Sink

letters = typer.Typer(no_args_is_help=True)

Ids = Annotated[list[int] | None, typer.Argument(metavar="ID...", help="Letters, as `headwater letters list` shows them.")]
State = Annotated[str | None, typer.Option("--state", help="Only those that are open, superseded or replayed.")]
_STATES = ("open", "superseded", "replayed")


@letters.callback()
def default() -> None:
    """Show, replay or drop dead letters: changes that a sink could not take, kept with the reason and never lost.

    A letter is open until it is replayed, or superseded: a later change of the same row has made it pointless.

    Examples:

        headwater letters list
        headwater letters show 17
        headwater letters replay --all
    """


@letters.command("list")
def show_all(
    context: typer.Context,
    pipeline: Annotated[str | None, typer.Option("--pipeline", help="Only those of a pipeline.")] = None,
    sink: Annotated[str | None, typer.Option("--sink", help="Only those of a sink.")] = None,
    table: Annotated[str | None, typer.Option("--table", help="Only those of a table, with or without its schema.")] = None,
    state: State = None,
    file: File = None,
    url: Url = "",
    json: Json = False,
) -> None:
    """List letters in the order of their changes.

    The state database is that of the pipeline file, and then only its pipeline's letters are listed, or of --url.

    Examples:

        headwater letters list --state open --table public.orders
        headwater letters list --url postgresql://capture@db.example.com/shop --json
    """
    if state is not None and state not in _STATES:
        raise SettingsError(f"{state!r} is no state of a letter; name one of {', '.join(_STATES)}")
    with _state(context, file, url) as (connection, settings):
        from headwater.spark.letters import State as LetterState
        from headwater.spark.letters import list_letters

        pipeline = pipeline or (settings.name if settings else None)
        wanted = None if state is None else LetterState(state)
        found = list_letters(connection, pipeline=pipeline, sink=sink, table=table, state=wanted)
    if json:
        print_json([_plain(letter) for letter in found])
    elif found:
        columns = ("id", "state", "sink", "table", "op", "position", "committed at", "key", "reason")
        styles = ["yellow" if letter.state == "open" else "" for letter in found]
        print_table(columns, [_row(letter) for letter in found], styles)
    else:
        typer.echo("no dead letters")


@letters.command("show")
def show(
    context: typer.Context,
    id: Annotated[int, typer.Argument(metavar="ID")],
    file: File = None,
    url: Url = "",
    json: Json = False,
) -> None:
    """Show all that is known of a letter: the row, where it comes from, and why the sink did not take it.

    Examples:

        headwater letters show 17
    """
    with _state(context, file, url) as (connection, _):
        facts = _facts(_found(connection, id))
    if json:
        print_json(facts)
    else:
        print_table(("letter", str(id)), [(name, _shown(value)) for name, value in facts.items() if name != "id"])


@letters.command("replay")
def replay(
    ids: Ids = None,
    every: Annotated[bool, typer.Option("--all", help="All open letters of the pipeline.")] = False,
    file: File = None,
) -> None:
    """Hand letters to their sink once more, the oldest first, when what stood in the way is gone.

    A letter never goes back in time: one that a later change of its row has superseded is refused.

    Examples:

        headwater letters replay 17 18
        headwater letters replay --all --file pipelines/shop.toml
    """
    if bool(ids) == every:
        raise SettingsError("name the letters to replay, or all of them with --all")
    settings = load_pipeline(file)
    with session(settings.state_url) as connection:
        failures = _replay_each(connection, settings, _chosen(connection, settings, ids))
    if failures:
        raise HeadwaterError(f"{failures} of the letters stay as they are, for the reasons above")


@letters.command("drop")
def drop(
    context: typer.Context,
    ids: Annotated[list[int], typer.Argument(metavar="ID...")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    file: File = None,
    url: Url = "",
) -> None:
    """Forget letters for good, with the changes that are in them.

    Examples:

        headwater letters drop 17 18
        headwater letters drop 17 --yes
    """
    with _state(context, file, url) as (connection, _):
        from headwater.spark.letters import drop_letters

        found = [_found(connection, id) for id in ids]
        still_open = sum(letter.state == "open" for letter in found)
        if not yes:
            typer.confirm(f"Drop {len(found)} letters, {still_open} of them open?", abort=True, err=True)
        dropped = drop_letters(connection, ids)
    typer.echo(f"dropped {', '.join(map(str, dropped))}")


def _replay_each(connection: Connection, settings: "PipelineSettings", ids: Sequence[int]) -> int:
    """Replay what can be; returns how many could not."""
    failures = 0
    for id in ids:
        try:
            _replay(connection, settings, id)
        except HeadwaterError as exc:
            failures += 1
            typer.echo(f"letter {id}: {exc}", err=True)
        else:
            typer.echo(f"letter {id}: replayed", err=True)
    return failures


def _replay(connection: Connection, settings: "PipelineSettings", id: int) -> None:
    """Deliver one letter while it is held, so that no later change of its row passes it on the way."""
    from headwater.spark.letters import list_earlier, lock_letter, mark_replayed
    from headwater.spark.sinks.replay import keeps_versions, replay

    with connection.transaction():
        letter = _require_open(lock_letter(connection, id), id)
        with closing(_sink_of(settings, letter)) as sink:
            if keeps_versions(sink) and (earlier := list_earlier(connection, id)):
                raise HeadwaterError(
                    f"letter {earlier[0]} is older and of the same row; replay or drop it first, so that the row is not "
                    "brought back to what it was before"
                )
            replay(sink, letter)
        mark_replayed(connection, id)


def _require_open(stored: "StoredLetter | None", id: int) -> "Letter":
    match stored:
        case None:
            raise _missing(id)
        case _ if stored.state == "superseded":
            raise HeadwaterError(
                "a later change of the same row was delivered since, and replaying this one would bring back what was "
                f"before; drop it with `headwater letters drop {id}`"
            )
        case _ if stored.state == "replayed":
            raise HeadwaterError("it was replayed before")
        case _:
            return stored.letter


def _sink_of(settings: "PipelineSettings", letter: "Letter") -> "Sink":
    from headwater.spark.sinks.build import build_sink

    source = settings.source
    if letter.pipeline != settings.name:
        raise HeadwaterError(f"it is of pipeline {letter.pipeline!r}; name the file of that one with --file")
    for sink in settings.sinks:
        if sink.name == letter.sink:
            return build_sink(
                sink,
                pipeline=settings.name,
                source_url=source.url,
                state_url=settings.state_url,
                tables=source.tables,
                publication=source.publication,
            )
    raise HeadwaterError(
        f"pipeline {settings.name!r} has no sink {letter.sink!r} any more; drop the letter, or add the sink"
    )


def _chosen(connection: Connection, settings: "PipelineSettings", ids: Sequence[int] | None) -> list[int]:
    """Those that are named, or all open ones of the pipeline, in the order of the stream."""
    from headwater.spark.letters import State, list_letters

    if ids:
        order = {letter.id: place for place, letter in enumerate(list_letters(connection))}
        return sorted(dict.fromkeys(ids), key=lambda id: order.get(id, -1))
    return [letter.id for letter in list_letters(connection, pipeline=settings.name, state=State.OPEN)]


@contextmanager
def _state(context: typer.Context, file: Path | None, url: str) -> "Iterator[tuple[Connection, PipelineSettings | None]]":
    """A connection to the state database: that of the pipeline file, unless there is none or a URL is named."""
    require_spark()
    source = context.get_parameter_source("url")
    by_url = source is not None and source.name == "COMMANDLINE"
    if file is not None and by_url:
        raise SettingsError("name a pipeline file or a URL, not both")
    settings = load_pipeline(file) if not by_url and (file is not None or DEFAULT_FILE.exists()) else None
    with session(settings.state_url if settings else url) as connection:
        _require_tables(connection)
        yield connection, settings


def _require_tables(connection: Connection) -> None:
    from headwater.postgres.migrate import Component, pending_migrations

    if pending_migrations(connection, Component.of("headwater.spark")):
        raise SettingsError(
            f"database {connection.info.dbname!r} does not hold the state of a pipeline that has run; name the one that "
            "does with --url, or the pipeline's file with --file"
        )


def _found(connection: Connection, id: int) -> "StoredLetter":
    from headwater.spark.letters import find_letter

    stored = find_letter(connection, id)
    if stored is None:
        raise _missing(id)
    return stored


def _missing(id: int) -> HeadwaterError:
    return HeadwaterError(f"there is no letter {id}; `headwater letters list` shows which there are")


def _facts(stored: "StoredLetter") -> dict[str, object]:
    from headwater.spark.letters import row_of

    letter = stored.letter
    return {
        "id": stored.id,
        "state": str(stored.state),
        "pipeline": letter.pipeline,
        "sink": letter.sink,
        "reason": letter.reason,
        "table": f"{letter.schema}.{letter.table}",
        "op": letter.op,
        **row_of(letter),
        "event_id": letter.event_id,
        "position": str(letter.position),
        "xid": letter.xid,
        "committed_at": letter.committed_at.isoformat(),
        "kept_since": stored.created_at.isoformat(),
    }


def _row(letter: "LetterSummary") -> tuple[str, ...]:
    table = f"{letter.schema}.{letter.table}"
    at = letter.committed_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return (
        str(letter.id),
        letter.state,
        letter.sink,
        table,
        letter.op,
        str(letter.position),
        at,
        _shown(letter.key),
        letter.reason,
    )


def _plain(letter: "LetterSummary") -> dict[str, object]:
    facts = {**dataclasses.asdict(letter), "commit_lsn": str(letter.commit_lsn)}
    return {**facts, **{name: facts[name].isoformat() for name in ("created_at", "committed_at")}}


def _shown(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else json_text.dumps(value, ensure_ascii=False)
