"""What is in memory."""

import asyncio

from headwater.outbox.relay.ledger import Ledger
from tests.support.outbox.relay_entries import entry


def test_a_row_that_is_claimed_although_it_is_here_gets_the_time_of_its_new_lease():
    ledger, known = Ledger(), entry("a", deadline=10.0)
    ledger.add(known)
    assert ledger.renew(entry("a", deadline=40.0))
    assert known.deadline == 40.0
    assert not ledger.renew(entry("b"))
    assert len(ledger) == 1


async def test_one_who_waits_for_it_to_be_empty_is_told():
    ledger = Ledger()
    await ledger.empty()
    ledger.add(entry("a"))
    ledger.add(entry("b"))
    waiting = asyncio.create_task(ledger.empty())
    await asyncio.sleep(0)
    ledger.remove([entry("a")])
    await asyncio.sleep(0)
    assert not waiting.done()
    ledger.remove([entry("b")])
    await waiting
