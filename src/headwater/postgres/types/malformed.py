"""The one error of this package, worded once."""

from headwater.errors import DecodeError


def malformed(what: str, text: str) -> DecodeError:
    """Text that is no value of its type; long text is cut, so that a log does not carry a whole document."""
    return DecodeError(f"{text[:80]!r} is no valid {what}")
