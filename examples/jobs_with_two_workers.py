"""Invoices as jobs: enqueued with their orders, done by two workers, tried again when the mail server stutters.

Starts a private PostgreSQL. Run it with `python examples/jobs_with_two_workers.py`.
"""

import asyncio
import logging
from collections import Counter
from typing import Any

import psycopg

from headwater import queue
from headwater.embedded import EmbeddedPostgres
from headwater.queue import Discard, Done, FullJitter, Job, Worker

ORDERS, BAD = 500, 13


def make_worker(sent: Counter[int], tried: Counter[int], done: asyncio.Event) -> Worker:
    worker = Worker("default")

    @worker.handler("send-invoice", timeout="5s", retry=FullJitter(base="10ms", most=3))
    async def send_invoice(job: Job) -> Done | Discard:
        order = job.payload["order"]
        tried[order] += 1
        if order == BAD:
            return Discard("there is no such address")
        if order % 50 == 0 and job.attempt == 1:
            raise ConnectionError("the mail server hung up")
        await asyncio.sleep(0.001)
        sent[order] += 1
        if len(sent) == ORDERS - 1:
            done.set()
        return Done()

    return worker


async def place_order(connection: psycopg.AsyncConnection[Any], order: int, *, fails: bool = False) -> None:
    """The order and the job are both there afterwards, or none of them is."""
    async with connection.transaction():
        await connection.execute("insert into orders (id) values (%s)", [order])
        await queue.enqueue(connection, "send-invoice", {"order": order}, idempotency_key=f"order {order}")
        if fails:
            raise psycopg.Rollback


async def main(url: str) -> None:
    sent, tried, done = Counter[int](), Counter[int](), asyncio.Event()
    workers = [make_worker(sent, tried, done) for _ in range(2)]
    running = [asyncio.create_task(worker.run(url)) for worker in workers]
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("create table orders (id int primary key)")
        for order in range(ORDERS):
            await place_order(connection, order)
        await place_order(connection, ORDERS, fails=True)
        # A client that is not sure whether it did may do it again.
        await queue.enqueue(connection, "send-invoice", {"order": 7}, idempotency_key="order 7")
        await done.wait()
        for worker in workers:
            worker.stop()
        await asyncio.gather(*running)
        given_up = await (await connection.execute(GIVEN_UP)).fetchall()
    print(f"invoices: {len(sent)}, sent more than once: {sum(count > 1 for count in sent.values())}")
    print("the order that was rolled back has none:", ORDERS not in sent)
    print("tried again:", sum(count > 1 for count in tried.values()))
    print("both workers did some:", all(worker.counts.done for worker in workers))
    print("given up:", given_up)


GIVEN_UP = "select payload ->> 'order', error from headwater.job_dead"

if __name__ == "__main__":
    # What fails here is meant to, and need not be told.
    logging.getLogger("headwater.queue").setLevel(logging.CRITICAL)
    with EmbeddedPostgres() as server:
        with psycopg.connect(server.url, autocommit=True) as setup:
            queue.prepare_queue(setup)
        asyncio.run(main(server.url))
