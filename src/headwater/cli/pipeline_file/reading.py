"""A file of settings as it is read: TOML, filled from the environment; and what is wrong with it, all at once."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from headwater.cli.pipeline_file.complaint import Shape, complaints, shown
from headwater.cli.pipeline_file.values import Path, Toml, interpolate
from headwater.errors import SettingsError

Model = TypeVar("Model", bound=BaseModel)


def read(path: FilePath, environ: Mapping[str, str], model: type[Model], shape: Shape, *, missing: str) -> Model:
    """The file as its model; `environ` is what `${VARIABLE}` is taken from, `missing` what to do where there is no file.

    Raises SettingsError with all that is wrong with it.
    """
    faults: dict[Path, str] = {}
    content = interpolate(_parsed(path, missing), environ, faults)
    if faults:
        raise refused(path, list(faults.items()))
    try:
        return model.model_validate(content)
    except ValidationError as exc:
        raise refused(path, complaints(exc, shape)) from exc


def survey(
    path: FilePath, environ: Mapping[str, str], model: type[Model], shape: Shape, *, missing: str
) -> tuple[Model, "Faults"]:
    """As much of the file as is right, and what is wrong with the rest; for a model whose keys may all be left out.

    A table that lacks a key is left out as a whole.
    """
    faults: dict[Path, str] = {}
    content = interpolate(_parsed(path, missing), environ, faults)
    while True:
        try:
            return model.model_validate(content), Faults(list(faults.items()))
        except ValidationError as exc:
            for where, fault in complaints(exc, shape):
                faults.setdefault(where, fault)
                _leave_out(content, where)


def refused(path: FilePath, faults: Sequence[tuple[Path, str]]) -> SettingsError:
    lines = [f"{shown(where)}: {fault}" if where else fault for where, fault in faults]
    if len(lines) == 1:
        return SettingsError(f"{path}: {lines[0]}")
    return SettingsError("\n  ".join([f"{path} has {len(lines)} errors:", *lines]))


@dataclass(slots=True)
class Faults:
    """What the settings themselves refuse, gathered, so that all of it can be said at once."""

    found: list[tuple[Path, str]] = field(default_factory=list)

    @contextmanager
    def at(self, *where: str | int) -> Iterator[None]:
        """Within it, a refusal is noted for this place, with all that it says, and the block ends.

        What it says of a key that is known to be wrong may be only due to that, and is not noted.
        """
        try:
            yield
        except SettingsError as exc:
            known = {str(path[-1]) for path, _ in self.found if path and path[:-1] == where}
            if all(path != where for path, _ in self.found):
                self.found += [(where, fault) for fault in exc.faults if known.isdisjoint(_names(fault))]

    @property
    def tops(self) -> set[str | int]:
        """The keys at the top of the file with which, or within which, something is wrong."""
        return {path[0] for path, _ in self.found if path}


def _names(fault: str) -> list[str]:
    """The words of a fault, among which are the keys that it is about; behind the semicolon is what to do."""
    return re.findall(r"\w+", fault.partition(";")[0])


def _leave_out(content: Toml, where: Path) -> None:
    """A key that is wrong; or, if it is missing, the table that lacks it."""
    *tables, key = where
    table: Toml | None = content
    for name in tables:
        table = table.get(str(name)) if isinstance(table, dict) else None
    if isinstance(table, dict) and key in table:
        del table[str(key)]
    elif table is not None:
        _leave_out(content, tuple(tables))


def _parsed(path: FilePath, missing: str) -> dict[str, Toml]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        raise SettingsError(f"{path} does not exist; {missing}") from exc
    except IsADirectoryError as exc:
        raise SettingsError(f"{path} is a directory; name the file in it") from exc
    except OSError as exc:
        raise SettingsError(f"{path} cannot be read: {exc.strerror}; check its rights") from exc
    except UnicodeDecodeError as exc:
        raise SettingsError(f"{path} is no text in UTF-8; save it as such") from exc
    except tomllib.TOMLDecodeError as exc:
        raise SettingsError(f"{path} is not valid TOML: {str(exc)[:1].lower()}{str(exc)[1:]}; correct it there") from exc
