"""Options as Spark hands them on, strings by names in lower case: recognised, and made into values or refused."""

from collections.abc import Mapping
from difflib import get_close_matches
from enum import StrEnum
from typing import TypeVar

from headwater.errors import SettingsError

Choice = TypeVar("Choice", bound=StrEnum)


def recognised(given: Mapping[str, str], known: Mapping[str, str], source: str) -> Mapping[str, str]:
    """The options by their own names; `known` has these by their form in lower case. One that is not there is refused."""
    found = {}
    for name, value in given.items():
        if name.lower() not in known:
            near = get_close_matches(name.lower(), known, 1)
            hint = f"did you mean {known[near[0]]!r}?" if near else f"there are {', '.join(known.values())}"
            raise SettingsError(f"`{source}` has no option {name!r}; {hint}")
        found[known[name.lower()]] = value
    return found


def read_choice(kind: type[Choice], name: str, text: str) -> Choice:
    try:
        return kind(text)
    except ValueError as exc:
        raise SettingsError(f"option `{name}` is {text!r}, and has to be one of {', '.join(kind)}") from exc


def read_switch(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise SettingsError(f"option `{name}` is {text!r}, and has to be true or false")
    return text.lower() == "true"


def read_number(name: str, text: str, least: int, most: int | None = None) -> int:
    limits = f"at least {least}" if most is None else f"between {least} and {most}"
    if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
        raise SettingsError(f"option `{name}` is {text!r}, and has to be a whole number, {limits}")
    return int(text)
