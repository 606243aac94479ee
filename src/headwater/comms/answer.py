"""What a client is told, as JSON: of a message, or of what was wrong with a request. Pure."""

from collections.abc import Sequence
from typing import Any, Final

from headwater.comms.faults import Fault
from headwater.comms.statements import Known, Tried

# What a message is shown with: whom it is from and for, and not what it says.
_ENVELOPE: Final = ("from", "to", "cc", "bcc", "subject")
# Of a request with many wrong messages the first are enough to see what it is.
_MOST_FAULTS: Final = 100


def email_answer(known: Known, attempts: Sequence[Tried]) -> dict[str, Any]:
    """The state of a message in the words of the queue, its envelope as it was given, and all attempts."""
    payload = known.payload if isinstance(known.payload, dict) else {}
    return {
        "id": known.id,
        "state": known.state,
        "queue": known.queue,
        "created_at": known.created_at.isoformat(),
        "due_at": known.run_at.isoformat() if known.state == "scheduled" else None,
        "finished_at": None if known.finished_at is None else known.finished_at.isoformat(),
        "error": known.error,
        "message": {key: payload[key] for key in _ENVELOPE if key in payload},
        "attempts": [_attempt_answer(one) for one in attempts],
    }


def faults_answer(faults: Sequence[Fault], count: int) -> dict[str, Any]:
    """All that is wrong, by message and key."""
    wrong = len({one.message for one in faults})
    listed = [{"message": one.message, "field": one.field, "fault": one.fault} for one in faults[:_MOST_FAULTS]]
    said = f"{wrong} of {count} messages cannot be sent as they are, so none was accepted; correct what `faults` names"
    return {"error": said, "faults": listed, "more": len(faults) - len(listed)}


def _attempt_answer(tried: Tried) -> dict[str, Any]:
    return {
        "attempt": tried.attempt,
        "at": tried.at.isoformat(),
        "took_seconds": round(tried.took_seconds, 3),
        "sender": tried.sender,
        "outcome": tried.outcome,
        "code": tried.code,
        "response": tried.response,
        "message_id": tried.message_id,
        "accepted": list(tried.accepted),
        "refused": tried.refused,
    }
