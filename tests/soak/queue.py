"""Workers of a queue that are killed, cut off and stalled while writers roll back, judged by the record.

Committed are jobs, lost those that never ended, repeated those done more than once, which only a worker that is gone may
cause. Any other violation in the record ends the round.
"""

from headwater.embedded import EmbeddedPostgres
from tests.soak.story import Counts, Round
from tests.support.servers.embedded import postgres_settings
from tests.support.stories.queue_faults import MOST_REPEATS, run_with_faults
from tests.support.stories.queue_story import prepare_story

_FAULTS = 12


def run(round: Round) -> Counts:
    with EmbeddedPostgres(postgres_settings(18)) as server:
        prepare_story(server.url)
        found = run_with_faults(server.url, round.directory, round.random, _FAULTS)
    history = found.history
    violations = history.violations()
    others = [one for one in violations if one.kind not in ("lost", "order")]
    assert not others, others
    return Counts(
        committed=len(history.committed),
        lost=len(history.never),
        repeated=sum(history.twice.values()),
        out_of_order=sum(one.kind == "order" for one in violations),
        allowed_repeats=MOST_REPEATS * len(history.gone),
        faults=found.faults,
    )
