"""The commands of `headwater creek`, one line each."""

import typer

from headwater.cli.creek.apply import apply
from headwater.cli.creek.produce import produce

creek = typer.Typer(no_args_is_help=True, help="Produce and consume the Creek wire on NATS JetStream.")
creek.add_typer(apply, name="apply")
creek.command()(produce)
