"""What a story of `make soak` gets and gives: a round with its own seed, and counts of what became of what was committed."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random


@dataclass(frozen=True, slots=True)
class Counts:
    """The outcome of a round.

    `allowed_repeats` is the bound that the guarantee gives; it is 0 for exactly once. `variant` is what was drawn beside the
    faults, such as how lanes are made. `observed` is what depended on the machine, and may differ when the seed is replayed.
    """

    committed: int
    lost: int = 0
    repeated: int = 0
    out_of_order: int = 0
    allowed_repeats: int = 0
    faults: tuple[str, ...] = ()
    variant: tuple[str, ...] = ()
    observed: tuple[str, ...] = ()

    @property
    def is_violation(self) -> bool:
        """Whether the guarantee was broken; a round that has committed nothing cannot show that it was kept."""
        return self.committed == 0 or self.lost > 0 or self.out_of_order > 0 or self.repeated > self.allowed_repeats

    def __str__(self) -> str:
        """What was drawn, in the order of the faults, and in parentheses what was observed."""
        observed = f"({', '.join(self.observed)})" if self.observed else ""
        return " ".join(filter(None, (*self.variant, *self.faults, observed)))


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a story. All that is chosen in it comes from `random`; `directory` is empty and removed afterwards."""

    story: str
    seed: int
    directory: Path
    random: Random = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "random", Random(f"{self.story} {self.seed}"))


Story = Callable[[Round], Counts]
