"""The program `headwater`: its commands, and what becomes of an error, a signal or a closed pipe.

A command is a function with typer's annotations and one line below.
"""

import errno
import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import psycopg
import typer

from headwater import __version__
from headwater.cli.check import check
from headwater.cli.comms import comms
from headwater.cli.config import Format, Level, LogLevel
from headwater.cli.creek import creek
from headwater.cli.demo import demo
from headwater.cli.destroy import destroy
from headwater.cli.help import keep_lines
from headwater.cli.init import init
from headwater.cli.letters import letters
from headwater.cli.logs import configure
from headwater.cli.outbox import outbox
from headwater.cli.outbox_dead import dead, release, revive
from headwater.cli.outbox_relay import relay
from headwater.cli.outbox_state import checkpoint, replay
from headwater.cli.outbox_state import status as outbox_status
from headwater.cli.pause import pause, resume
from headwater.cli.queue import queue
from headwater.cli.run import run as run_command
from headwater.cli.signals import Stopped
from headwater.cli.slots import slots
from headwater.cli.status import status
from headwater.cli.tables import snapshot, tables
from headwater.cli.tail import tail
from headwater.cli.topics import topics
from headwater.cli.verify import verify
from headwater.cli.version import version
from headwater.errors import HeadwaterError, SettingsError

# The exit code of a process that SIGINT ended, as shells count it.
_INTERRUPTED = 130

# What a write to a file, a device or a terminal fails with; a reader that went away is a matter of its own.
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

_log = logging.getLogger(__name__)

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")
app.command()(check)
app.add_typer(comms, name="comms")
app.add_typer(creek, name="creek")
app.command()(demo)
app.command()(destroy)
app.command()(init)
app.add_typer(letters, name="letters")
outbox.add_typer(checkpoint, name="checkpoint")
outbox.command("dead")(dead)
outbox.command("relay")(relay)
outbox.command("release")(release)
outbox.command("replay")(replay)
outbox.command("revive")(revive)
outbox.command("status")(outbox_status)
app.add_typer(outbox, name="outbox")
app.command()(pause)
app.add_typer(queue, name="queue")
app.command()(resume)
app.command("run")(run_command)
app.add_typer(slots, name="slots")
app.command()(snapshot)
app.command()(status)
app.add_typer(tables, name="tables")
app.command()(tail)
app.add_typer(topics, name="topics")
app.command()(verify)
app.command()(version)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
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
    except psycopg.Error as exc:
        # What a server refuses in the midst of something: its own words, in one line.
        said = exc.diag.message_primary or (str(exc).splitlines() or [type(exc).__name__])[0]
        return _fail(f"PostgreSQL refused: {said}; grant the role what it lacks, or correct it there", exc, 1)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Stopped:
        return 0
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
