"""A group of commands that imports the module of a command only when it is run.

The help of the group shows one line for each command, from the group's own list, and imports none of them.
"""

from collections import UserDict
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import MarkupMode, TyperCommand, TyperGroup

from headwater.cli.help import keep_lines


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """A command or a group: its name, which is also its name in the module, and the first line of its help."""

    name: str
    module: str
    line: str

    def load(self, markup: MarkupMode) -> TyperCommand | TyperGroup:
        """Import the module, and build the command as typer does for one that is registered with its group."""
        loaded = getattr(import_module(self.module), self.name)
        parent = typer.Typer(rich_markup_mode=markup)
        if isinstance(loaded, typer.Typer):
            parent.add_typer(loaded, name=self.name)
        else:
            parent.command(self.name)(loaded)
        keep_lines(parent)
        command = typer.main.get_group(parent).commands[self.name]
        assert isinstance(command, TyperCommand | TyperGroup)
        return command


class LazyGroup(TyperGroup):
    """For `typer.Typer(cls=...)`; a subclass lists the commands, in the order of the help."""

    listed: ClassVar[Sequence[LazyCommand]] = ()

    # Typer keeps its classes for contexts and formatters to itself, so that they cannot be named here.
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands(self.listed, self.rich_markup_mode)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        outline = copy(self)
        outline.commands = {one.name: TyperCommand(one.name, help=one.line) for one in self.listed}
        super(LazyGroup, outline).format_help(ctx, formatter)


class _Commands(UserDict[str, Any]):
    """Commands by name: names are known, and a command is loaded when it is looked up."""

    def __init__(self, listed: Sequence[LazyCommand], markup: MarkupMode) -> None:
        super().__init__({one.name: one for one in listed})
        self._markup = markup

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        if isinstance(found, LazyCommand):
            found = self.data[name] = found.load(self._markup)
        return found
