"""Asking before what cannot be undone."""

import sys

import typer

from headwater.errors import SettingsError


def confirm(question: str, *, yes: bool) -> None:
    """Ask, unless told not to."""
    if not yes and not sys.stdin.isatty():
        raise SettingsError("there is no terminal to ask at; say --yes if it is meant")
    if not yes:
        typer.confirm(question, abort=True, err=True)
