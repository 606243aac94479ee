"""Members of groups of every promise that are killed and cut off while writers roll back and the server crashes.

Committed are messages that were appended, lost those that are not in the log or that a group never got, repeated those that
the log has twice or that a group got again although it promises otherwise. Any other violation ends the round.
"""

from tests.soak.story import Counts, Round
from tests.support.stories.topic_faults import draw_faults, run_with_faults

_FAULTS = 10


def run(round: Round) -> Counts:
    faults, seed = draw_faults(round.random, _FAULTS), round.random.getrandbits(31)
    history = run_with_faults(round.directory, seed, faults)
    kinds = [one.kind for one in history.violations()]
    others = [one for one in history.violations() if one.kind not in ("lost", "order", "repeated", "repeated append")]
    assert not others, others
    return Counts(
        committed=sum(one.is_committed is True for one in history.appends),
        lost=kinds.count("lost"),
        repeated=kinds.count("repeated") + kinds.count("repeated append"),
        out_of_order=kinds.count("order"),
        faults=tuple(map(str, faults)),
    )
