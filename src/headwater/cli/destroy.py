"""`headwater destroy`: removes all that a pipeline has made, except what it has delivered."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.config import File
from headwater.cli.pipeline import load_pipeline
from headwater.errors import ConnectionLost, HeadwaterError, SettingsError

if TYPE_CHECKING:
    from headwater.spark.lease import Lease
    from headwater.spark.removal import Remains

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def destroy(file: File = None, yes: Yes = False) -> None:
    """Remove what a pipeline has made: its slot, its publication, its state and positions, its checkpoint directory.

    It must not run. What it has delivered stays: tables of targets, and files. A publication that it has not made itself
    stays too. What the slot holds and was not delivered is gone for good.

    Examples:

        headwater destroy
        headwater destroy --file pipelines/shop.toml --yes
    """
    settings = load_pipeline(file)
    from headwater.spark.lease import Lease
    from headwater.spark.removal import find_remains

    lease = Lease(settings.state_url, settings.name)
    try:
        _require_rest(lease, settings.name)
        remains = find_remains(settings)
        if not remains.found:
            typer.echo(f"pipeline {settings.name}: there is nothing to remove")
        else:
            _show(settings.name, remains)
            _confirm(settings.name, yes=yes)
            for remnant in remains.found:
                remnant.remove()
                typer.echo(f"removed {remnant.said}")
    finally:
        lease.release()
    for said in remains.kept:
        typer.echo(f"left {said}")
    if remains.unreached:
        raise HeadwaterError(
            f"not all of pipeline {settings.name!r} could be reached; left are {'; and '.join(remains.unreached)}"
        )


def _require_rest(lease: "Lease", pipeline: str) -> None:
    """Keep others from running the pipeline meanwhile. A state database that is gone cannot tell, and need not."""
    try:
        is_taken = lease.take()
    except ConnectionLost:
        return
    if not is_taken:
        holder = lease.holder() or "a session that cannot be seen"
        raise HeadwaterError(f"pipeline {pipeline!r} runs ({holder}); stop it first")


def _show(pipeline: str, remains: "Remains") -> None:
    typer.echo(f"of pipeline {pipeline} this will be removed:", err=True)
    for remnant in remains.found:
        typer.echo(f"  {remnant.said}", err=True)


def _confirm(pipeline: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise SettingsError("there is no terminal to ask at, and nothing was removed; say --yes if that is what you want")
    typer.confirm(f"Remove all of pipeline {pipeline}?", abort=True, err=True)
