"""`headwater init`: a pipeline file to begin with."""

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from headwater.errors import SettingsError


def init(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="Where to write it: a file, or a directory for headwater.toml.")
    ] = Path("headwater.toml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
) -> None:
    """Write a pipeline file with a comment on every key, to be edited.

    Examples:

        headwater init
        headwater init pipelines/shop.toml
    """
    target = path / "headwater.toml" if path.is_dir() else path
    text = files("headwater.cli").joinpath("headwater.toml").read_text(encoding="utf-8")
    try:
        with target.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as exc:
        raise SettingsError(f"{target} is there already; name another file, or overwrite it with --force") from exc
    except OSError as exc:
        raise SettingsError(f"cannot write {target}: {exc.strerror}; name another place") from exc
    typer.echo(f"wrote {target}; name your tables and sinks in it, then run `headwater check`")
