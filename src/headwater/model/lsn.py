"""A WAL position: an integer that reads and prints as PostgreSQL's `pg_lsn` does."""

import re
from typing import Self

_TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


class Lsn(int):
    """A byte position in the WAL; compares and subtracts as an integer, prints as `16/B374D848`."""

    @classmethod
    def parse(cls, text: str) -> Self:
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"not a WAL position: {text!r} (expected something like 16/B374D848)")
        return cls(int(match[1], 16) << 32 | int(match[2], 16))

    def __str__(self) -> str:
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn({str(self)!r})"
