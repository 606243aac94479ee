"""Orders through a topic: two ways to append, and a group of two members that writes an invoice for each order, once.

Starts a private PostgreSQL. Run it with `python examples/topic_with_two_members.py`.
"""

import asyncio
from collections import Counter
from typing import Any

import psycopg

from headwater import topics
from headwater.embedded import EmbeddedPostgres
from headwater.topics import Message

ORDERS, CUSTOMERS = 1000, 20


async def place_order(connection: psycopg.AsyncConnection[Any], order: int, customer: str, *, fails: bool = False) -> None:
    """The row and the message are both there afterwards, or none of them is."""
    async with connection.transaction():
        await connection.execute("insert into orders (id, customer) values (%s, %s)", [order, customer])
        await topics.append(connection, "orders", [Message({"id": order, "customer": customer}, key=customer)])
        if fails:
            raise psycopg.Rollback


async def write_invoices(url: str, billed: Counter[str], name: str, done: asyncio.Event) -> None:
    """A member of the group: invoices and the place in the topic are in one transaction, so that each order counts once."""
    async with (
        await psycopg.AsyncConnection.connect(url, autocommit=True) as connection,
        topics.Subscriber(url, "orders", group="billing") as subscriber,
    ):
        async for batch in subscriber:
            orders: list[Any] = [message.json() for message in batch.messages]
            async with connection.transaction():
                for order in orders:
                    await connection.execute(
                        "insert into invoices (order_id, customer) values (%(id)s, %(customer)s)", order
                    )
                await batch.commit(connection)
            billed[name] += len(orders)
            if billed.total() >= ORDERS:
                done.set()


async def main(url: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("create table orders (id int primary key, customer text)")
        await connection.execute("create table invoices (number bigserial primary key, order_id int, customer text)")
        await topics.create(connection, "orders", partitions=4, retention="7 days")
        billed, done = Counter[str](), asyncio.Event()
        members = [asyncio.create_task(write_invoices(url, billed, name, done)) for name in ("first", "second")]

        async with topics.Producer(url, "orders") as producer:
            for order in range(2, ORDERS):
                customer = f"customer {order % CUSTOMERS}"
                await producer.send(Message({"id": order, "customer": customer}, key=customer))
        await place_order(connection, 0, "customer 0")
        await place_order(connection, 1, "customer 1")
        await place_order(connection, ORDERS, "customer 0", fails=True)

        await done.wait()
        for member in members:
            member.cancel()
        await asyncio.gather(*members, return_exceptions=True)
        found = await (await connection.execute(INVOICES)).fetchall()
    print(f"invoices: {len(found)}, for different orders: {len({order for order, _ in found})}")
    print("both members have written some:", min(billed["first"], billed["second"]) > 0)
    print("the order that was rolled back has none:", ORDERS not in {order for order, _ in found})
    print("in the order of each customer:", all(is_in_order(found, customer) for customer in {who for _, who in found}))


def is_in_order(found: list[tuple[int, str]], customer: str) -> bool:
    """By number, but for the two that were placed last."""
    own = [order for order, who in found if who == customer and order > 1]
    return own == sorted(own)


INVOICES = "select order_id, customer from invoices order by number"

if __name__ == "__main__":
    with EmbeddedPostgres() as server:
        with psycopg.connect(server.url, autocommit=True) as setup:
            topics.prepare_topics(setup)
        asyncio.run(main(server.url))
