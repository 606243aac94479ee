"""How many rows the table that all parts read has, and how many turns they take."""

from dataclasses import dataclass
from typing import Final

TABLE: Final = "account"


@dataclass(frozen=True, slots=True)
class Sizes:
    rows: int = 5_000_000
    rounds: int = 3


QUICK: Final = Sizes(rows=300_000, rounds=1)
