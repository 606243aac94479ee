"""What is wrong with the values of settings, in sentences: of another kind, or too small. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final

from headwater.errors import SettingsError

# How the kinds of settings are called in Python. Those of other kinds are looked after by whoever has them.
_KINDS: Final[Mapping[object, str]] = {
    int: "a whole number",
    bool: "True or False",
    timedelta: "a timedelta, such as timedelta(seconds=30)",
    timedelta | None: "a timedelta, such as timedelta(days=7), or None",
}


def require_settings(settings: object, kind: type) -> None:
    """Raise SettingsError for what is no value of settings of a kind."""
    if not isinstance(settings, kind):
        raise SettingsError(f"the settings are a {type(settings).__name__}; give a {kind.__name__}")


def said(value: int | timedelta) -> str:
    return f"{value.total_seconds():g} s" if isinstance(value, timedelta) else str(value)


def find_strangers(settings: Any, owner: str) -> Iterator[str]:
    """What of a dataclass of settings, which are `owner`'s, is of another kind than it should be."""
    for one in fields(settings):
        kind: Any = one.type
        value = getattr(settings, one.name)
        # A bool is an int for Python, and for nobody else.
        if kind in _KINDS and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
            yield f"{one.name} of {owner} is {value!r}; give {_KINDS[kind]}"


def find_too_small(settings: Any, owner: str, least: Mapping[str, Any] = MappingProxyType({})) -> Iterator[str]:
    """Numbers below 1 and times of nothing, or what is below that which `least` has for it; all are of their kind."""
    for one in fields(settings):
        value = getattr(settings, one.name)
        if one.type is int or one.name in least:
            bound = least.get(one.name, 1)
            if value < bound:
                yield f"{one.name} of {owner} is {said(value)}; give {said(bound)} or more"
        elif isinstance(value, timedelta) and value <= timedelta(0):
            yield f"{one.name} of {owner} is {said(value)}; give a time that is more than 0 s"
