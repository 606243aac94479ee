"""Tasks that are started again, and when that is given up."""

import asyncio
from datetime import timedelta

import pytest

from headwater.errors import RelayFailed
from headwater.outbox.relay.counts import Counts
from headwater.outbox.relay.supervisor import Intensity, Supervisor

MINUTE = timedelta(minutes=1)


def test_only_what_lies_within_the_time_counts():
    intensity = Intensity(2, MINUTE)
    assert [intensity.note(at) for at in (0.0, 10.0, 70.1)] == [1, 2, 1]
    assert not intensity.is_exceeded
    intensity.note(71.0)
    assert not intensity.is_exceeded
    intensity.note(72.0)
    assert intensity.is_exceeded


async def test_a_task_that_fails_is_started_again_and_counted(caplog):
    counts = Counts()
    supervisor, tries, went_on = Supervisor(5, MINUTE, counts), [], asyncio.Event()

    async def work() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise ZeroDivisionError("no reason")
        went_on.set()
        await asyncio.Event().wait()

    supervisor.start("saver", work)
    async with asyncio.timeout(10):
        await went_on.wait()
    assert counts.restarts == 2
    assert "the task saver of the relay failed and is started again: no reason" in caplog.text
    await supervisor.stop()
    await supervisor.wait()


async def test_a_task_that_fails_too_often_is_given_up_and_said(caplog):
    counts = Counts()
    supervisor = Supervisor(2, MINUTE, counts)

    async def work() -> None:
        raise ZeroDivisionError

    supervisor.start("reviver", work)
    with pytest.raises(RelayFailed, match="task 'reviver' of the outbox relay failed 3 times within 60 s") as failed:
        await supervisor.wait()
    assert isinstance(failed.value.__cause__, ZeroDivisionError)
    assert counts.restarts == 2
    assert "correct that and start the relay again" in caplog.text
    await supervisor.stop()
