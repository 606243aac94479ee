"""Input that no server sends, and values of every type: mutated messages and batches of pgoutput, and Avro vectors.

Committed is how many inputs were tried, and lost how many raised anything but DecodeError or were decoded differently by two
decoders. Each of these is in the file `lost` of the round's directory.
"""

import traceback
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from headwater.creek.names import Generation
from tests.soak.story import Counts, Round
from tests.support.capture.change_streams import streams
from tests.support.capture.mutations import (
    mutated_batches,
    mutated_messages,
    require_decode_error,
    require_same_outcome,
    require_values_or_decode_error,
)
from tests.support.creek.avro_vectors import WIDE_ROWS, require_same_as_fastavro, require_told_in_order

Requirement = Callable[[Any], None]

# How many inputs of each kind are tried in a round, and what is required of them: 40 seconds together.
_KINDS: dict[str, tuple[int, st.SearchStrategy[Any], Requirement]] = {
    "messages": (
        5_000,
        st.tuples(mutated_messages(), st.booleans()),
        lambda one: require_decode_error(one[0], streamed=one[1]),
    ),
    "batches": (400, mutated_batches(), require_same_outcome),
    "values": (400, mutated_batches(), require_values_or_decode_error),
    "vectors": (100, st.lists(WIDE_ROWS, max_size=6), require_same_as_fastavro),
    "streams": (
        200,
        st.tuples(streams(), st.sampled_from(Generation)),
        lambda one: require_told_in_order(one[0], one[1]),
    ),
}


def run(round: Round) -> Counts:
    tried = lost = 0
    for kind, (most, inputs, require) in _KINDS.items():
        found = _try(round, most, inputs, require)
        tried, lost = tried + found[0], lost + found[1]
        if found[1]:
            print(f"{kind}: {found[1]} of {found[0]} inputs failed; see {round.directory / 'lost'}")
    return Counts(tried, lost, variant=tuple(f"{most} {kind}" for kind, (most, *_) in _KINDS.items()))


def _try(round: Round, most: int, inputs: st.SearchStrategy[Any], require: Requirement) -> tuple[int, int]:
    """How many inputs were tried, and how many of them failed."""
    tried = lost = 0

    def look(one: Any) -> None:
        nonlocal tried, lost
        tried += 1
        try:
            require(one)
        except Exception:  # noqa: BLE001 - whatever it raises, the input is lost
            lost += 1
            with (round.directory / "lost").open("a") as file:
                file.write(f"{one!r}\n{traceback.format_exc()}\n")

    chosen = settings(
        max_examples=most,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    seed(round.random.getrandbits(64))(chosen(given(inputs)(look)))()
    return tried, lost
