"""`headwater queue enqueue`: a job from the command line."""

import json as json_format
import sys
from typing import Annotated

import typer

from headwater.cli.config import Json, Url
from headwater.cli.output import print_json
from headwater.cli.queue.options import parse_when
from headwater.cli.session import session
from headwater.cli.tracing import tracing
from headwater.errors import JobError, SettingsError
from headwater.queue import enqueue_sync, require_queue


def enqueue(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="What is to be done; a worker has a handler for it.")],
    payload: Annotated[
        str, typer.Argument(metavar="JSON|-", help="What the handler gets; - reads it from standard input.")
    ] = "null",
    queue: Annotated[str, typer.Option("--queue", metavar="NAME")] = "default",
    priority: Annotated[int, typer.Option("--priority", min=0, max=9, help="9 goes first.")] = 0,
    run_at: Annotated[
        str | None,
        typer.Option("--run-at", metavar="TIME|DURATION", help="When, or in how long from now.", show_default="now"),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="What limits and order of the queue are about.", show_default="none")
    ] = None,
    unique: Annotated[
        str | None, typer.Option("--unique", help="Of one there is one unfinished job of a kind.", show_default="none")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option("--idempotency-key", help="Of one there is one job of a kind ever.", show_default="none")
    ] = None,
    url: Url = "",
    json: Json = False,
) -> None:
    """Enqueue a job, and print its id when it is durable.

    With --unique or --idempotency-key that may be the id of a job which is there already.

    Examples:

        headwater queue enqueue send-invoice '{"id": 7}' --key customer-3
        headwater queue enqueue clean-up --run-at 10m --unique nightly
        headwater queue enqueue import - < order.json
    """
    due = None if run_at is None else parse_when("--run-at", run_at)
    value = _value(sys.stdin.buffer.read() if payload == "-" else payload)
    with session(url) as connection:
        require_queue(connection)
        with tracing(), connection.transaction():
            try:
                id = enqueue_sync(
                    connection,
                    kind,
                    value,
                    queue=queue,
                    run_at=due,
                    priority=priority,
                    key=key,
                    unique=unique,
                    idempotency_key=idempotency_key,
                )
            except JobError as exc:
                raise SettingsError(str(exc)) from exc
    if json:
        print_json({"id": id})
    else:
        typer.echo(f"job {id}: in queue {queue}")


def _value(text: str | bytes) -> object:
    try:
        return json_format.loads(text)
    except (ValueError, RecursionError) as exc:
        raise SettingsError(
            f"the payload is no JSON: {exc}; write a text in quotation marks within the shell's, as '\"hello\"'"
        ) from exc
