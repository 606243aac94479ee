"""Times as people write them on the command line."""

from datetime import datetime

from headwater.errors import SettingsError


def parse_time(option: str, text: str) -> datetime:
    """A time that says in which zone it is, or SettingsError."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as exc:
        raise SettingsError(f"{option} must be a time such as 2026-11-16T10:00:00Z, not {text!r}") from exc
    if found.tzinfo is None:
        whole = text if len(text) > len("2026-11-16") else f"{text}T00:00:00"
        raise SettingsError(f"{option} {text} does not say in which time zone; write it as {whole}Z for UTC")
    return found
