"""Whether a run is healthy, and whether it is ready: for whoever restarts it, and for whoever relies on it. Pure."""

from headwater.spark.reporter import Pulse
from headwater.spark.state import Phase

# A run looks around several times a second, unless a call into Spark does not return.
_SILENT_SECONDS = 60.0
# Far more than any batch takes: batches are bounded in bytes, and a target that is away is given up after half a minute.
_STUCK_SECONDS = 900.0
# Longer than a large batch takes, and short enough to be told in time.
_STILL_SECONDS = 30.0


def why_unhealthy(phase: Phase, pulse: Pulse, now: float) -> str | None:
    """Why the process cannot make progress any more, so that only another one can; None if it can."""
    if phase is Phase.FAILED:
        return "the run has failed"
    if phase in (Phase.RUNNING, Phase.PAUSED) and now - pulse.looked_at > _SILENT_SECONDS:
        return f"the run has given no sign of life for {now - pulse.looked_at:.0f} s"
    if pulse.batch_at is not None and now - pulse.batch_at > _STUCK_SECONDS:
        where = f" in sink {pulse.sink}" if pulse.sink is not None else ""
        return f"a batch has been under way for {now - pulse.batch_at:.0f} s{where}"
    return None


def why_unready(phase: Phase, pulse: Pulse, still_seconds: float, now: float) -> str | None:
    """Why what is committed at the source does not arrive at the sinks at this moment; None if it does."""
    if phase is not Phase.RUNNING:
        return f"the run is {phase}"
    unhealthy = why_unhealthy(phase, pulse, now)
    if unhealthy is not None:
        return unhealthy
    if still_seconds >= _STILL_SECONDS and now - pulse.ended_at >= _STILL_SECONDS:
        return f"the slot's position stands still for {still_seconds:.0f} s, while the server moves on or does not answer"
    return None
