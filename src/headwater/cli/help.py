"""Help texts: what is indented in the docstring of a command or a group, such as examples, is shown line by line."""

import inspect
import re
from textwrap import dedent
from typing import Final

import typer

_INDENTED: Final = re.compile(r"^(?: {4}.*(?:\n|\Z))+", re.MULTILINE)


def keep_lines(app: typer.Typer) -> None:
    """Have it so for all commands and groups.

    Where examples are all that follows the first paragraph, typer takes away their indentation, and makes them a paragraph.
    """
    for made in (app.registered_callback, *app.registered_commands):
        if made is not None and made.callback is not None:
            made.help = fenced(inspect.getdoc(made.callback) or "")
    for group in app.registered_groups:
        if group.typer_instance is not None:
            keep_lines(group.typer_instance)


def fenced(text: str) -> str:
    """With fences around what is indented, which mean the same in Markdown, wherever they stand."""
    return _INDENTED.sub(lambda found: f"```\n{dedent(found[0]).rstrip()}\n```\n", text)
