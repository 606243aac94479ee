"""`headwater pause` and `headwater resume`: have a pipeline rest, wherever it runs, and go on."""

from typing import TYPE_CHECKING

import typer

from headwater.cli.config import File
from headwater.cli.pipeline import load_pipeline
from headwater.cli.session import session

if TYPE_CHECKING:
    from datetime import datetime


def pause(file: File = None) -> None:
    """Have a pipeline rest: it finishes the batch that it is at, and delivers no more until `headwater resume`.

    The process stays, and so does the slot: meanwhile the server keeps all WAL for it, which `headwater status` shows. A
    paused pipeline that is started again stays paused.

    Examples:

        headwater pause
        headwater pause --file pipelines/shop.toml
    """
    settings = load_pipeline(file)
    from headwater.spark.settings import TopicSettings
    from headwater.spark.state import pause as set_pause

    with session(settings.state_url) as connection:
        since = set_pause(connection, settings.name)
    kept = "" if isinstance(settings.source, TopicSettings) else f"; the server keeps WAL for slot {settings.source.slot}"
    typer.echo(f"pipeline {settings.name}: paused since {_clock(since)}{kept} until `headwater resume`")


def resume(file: File = None) -> None:
    """Let a paused pipeline go on, where it was; its process notices within a second.

    Examples:

        headwater resume
    """
    settings = load_pipeline(file)
    from headwater.spark.state import resume as clear_pause

    with session(settings.state_url) as connection:
        since = clear_pause(connection, settings.name)
    typer.echo(
        f"pipeline {settings.name}: was not paused"
        if since is None
        else f"pipeline {settings.name}: goes on, paused since {_clock(since)}"
    )


def _clock(at: "datetime") -> str:
    return f"{at:%Y-%m-%d %H:%M:%S%z}"
