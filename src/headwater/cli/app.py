"""The program `headwater`: its commands, and what becomes of an error, a signal or a closed pipe.

A command is a function with typer's annotations, or a group of them, and has its place in the list below. Its module is
imported when it is run: all of them together take more than a second.
"""

import errno
import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

import headwater
from headwater.cli.config import Format, Level, LogLevel
from headwater.cli.help import keep_lines
from headwater.cli.lazy_group import LazyCommand, LazyGroup
from headwater.cli.logs import configure
from headwater.cli.signals import Stopped
from headwater.errors import HeadwaterError, SettingsError

# The exit code of a process that SIGINT ended, as shells count it.
_INTERRUPTED = 130

# What a write to a file, a device or a terminal fails with; a reader that went away is a matter of its own.
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

_log = logging.getLogger(__name__)


class Program(LazyGroup):
    """The commands, in the order of the help, each with the first line of its own help."""

    listed = (
        LazyCommand(
            "check",
            "headwater.cli.check",
            "Look for whatever would stop the capture of a database, or a pipeline, and say what to do about it.",
        ),
        LazyCommand(
            "demo",
            "headwater.cli.demo",
            "Watch changes go from PostgreSQL to NATS to a second database, and a comparison row by row at the end.",
        ),
        LazyCommand(
            "destroy",
            "headwater.cli.destroy",
            "Remove what a pipeline has made: its slot, its publication, its state and positions, its checkpoint directory.",
        ),
        LazyCommand("init", "headwater.cli.init", "Write a pipeline file with a comment on every key, to be edited."),
        LazyCommand(
            "pause",
            "headwater.cli.pause",
            "Have a pipeline rest: it finishes the batch that it is at, and delivers no more until `headwater resume`.",
        ),
        LazyCommand(
            "resume",
            "headwater.cli.pause",
            "Let a paused pipeline go on, where it was; its process notices within a second.",
        ),
        LazyCommand(
            "run",
            "headwater.cli.run",
            "Run a pipeline until SIGTERM: it finishes the batch that it is at, and exits with 0; a second SIGTERM ends it "
            "at once.",
        ),
        LazyCommand(
            "snapshot",
            "headwater.cli.tables",
            "Have a pipeline read tables as a whole again, while it runs or when it runs next.",
        ),
        LazyCommand(
            "status",
            "headwater.cli.status",
            "Show how far a pipeline is: phase, position, lag and rate, by table and by sink.",
        ),
        LazyCommand(
            "tail",
            "headwater.cli.tail",
            "Print row changes as they are committed: readable lines on a terminal, JSON lines into a pipe or with --json.",
        ),
        LazyCommand(
            "verify",
            "headwater.cli.verify",
            "Compare tables of a pipeline's source with those of its PostgreSQL sinks, row by row.",
        ),
        LazyCommand("version", "headwater.cli.version", "Print the version of Headwater, and of what it runs on."),
        LazyCommand(
            "comms",
            "headwater.cli.comms",
            "Send e-mails that were handed over in a transaction or by HTTP: each is kept until a mail server has taken it.",
        ),
        LazyCommand("creek", "headwater.cli.creek", "Produce and consume the Creek wire on NATS JetStream."),
        LazyCommand(
            "letters",
            "headwater.cli.letters",
            "Show, replay or drop dead letters: changes that a sink could not take, kept with the reason and never lost.",
        ),
        LazyCommand(
            "outbox",
            "headwater.cli.outbox",
            "Look after the outbox: the table `headwater.outbox_message`, to which applications write events in their "
            "transactions.",
        ),
        LazyCommand(
            "queue",
            "headwater.cli.queue",
            "Look after jobs in PostgreSQL, which applications enqueue in their transactions and workers do.",
        ),
        LazyCommand("slots", "headwater.cli.slots", "Show the server's logical replication slots, or drop one."),
        LazyCommand(
            "tables",
            "headwater.cli.tables",
            "Show the tables of a pipeline, add some to it while it runs, or take some out.",
        ),
        LazyCommand(
            "topics",
            "headwater.cli.topics",
            "Look after topics: logs in PostgreSQL with gapless offsets, which groups read at their own pace.",
        ),
    )


app = typer.Typer(
    cls=Program, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown"
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(headwater.__version__)
        raise typer.Exit


@app.callback()
def options(
    log_level: Level = LogLevel.INFO,
    log_format: Format = None,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Headwater moves what happens in PostgreSQL to wherever it is needed, and loses none of it.

    Results go to standard output, logs to standard error. Exit codes: 0 done, 1 failed, 2 wrong usage or configuration,
    130 interrupted by Ctrl-C.

    Examples:

        headwater check 'public.*' --url postgresql://capture@db.example.com/shop
        headwater --log-level debug slots
    """
    configure(log_level, log_format)


keep_lines(app)


def run(arguments: Sequence[str]) -> int:
    """Run the program and return its exit code."""
    if sys.stdout is None:
        typer.echo("error: standard output is closed, so there is nowhere to write to", err=True)
        return 1
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has enough.
        _discard_output()
        return 1
    except OSError as exc:
        # A file that we opened ourselves is named; only the output has no name.
        if exc.errno not in _UNWRITABLE or exc.filename is not None:
            raise
        _discard_output()
        return _fail(f"cannot write the output: {exc.strerror}", exc, 1)
    return code


def _run(arguments: Sequence[str]) -> int:
    try:
        app(arguments, prog_name="headwater")
    except SystemExit as exc:
        if _is_interrupted_prompt(exc):
            return _INTERRUPTED
        return exc.code if isinstance(exc.code, int) else 0
    except SettingsError as exc:
        return _fail(str(exc), exc, 2)
    except HeadwaterError as exc:
        return _fail(str(exc), exc, 1)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Stopped:
        return 0
    except Exception as exc:
        # Commands that connect have loaded it; `--help` and `--version` have no need of it, and would take twice as long.
        from psycopg import Error

        if not isinstance(exc, Error):
            raise
        # What a server refuses in the midst of something: its own words, in one line.
        said = exc.diag.message_primary or (str(exc).splitlines() or [type(exc).__name__])[0]
        return _fail(f"PostgreSQL refused: {said}; grant the role what it lacks, or correct it there", exc, 1)
    return 0


def _is_interrupted_prompt(error: SystemExit) -> bool:
    """Whether a question was answered with Ctrl-C, of which typer makes the same as of a no: it aborts."""
    aborted = error.__context__
    return isinstance(aborted, typer.Abort) and isinstance(aborted.__context__, KeyboardInterrupt)


def _discard_output() -> None:
    """What is still buffered must not fail once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(said: str, error: Exception, code: int) -> int:
    _log.debug("the command failed", exc_info=error)
    typer.echo(f"error: {said}", err=True)
    return code
