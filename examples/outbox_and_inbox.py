"""An order and its event in one transaction, and a consumer that takes each event once.

Starts a private PostgreSQL. A pipeline, `headwater run`, would take the events to a broker. Run it with
`python examples/outbox_and_inbox.py`.
"""

import psycopg

from headwater import outbox
from headwater.embedded import EmbeddedPostgres
from headwater.outbox import inbox
from headwater.outbox.checkpoint import prepare_outbox


def place_order(connection: psycopg.Connection[tuple[object, ...]], order: int) -> str:
    """Either both rows are there afterwards, or none."""
    with connection.transaction():
        connection.execute("insert into orders values (%s)", [order])
        return str(outbox.publish_sync(connection, "orders", "OrderCreated", {"id": order}, key=str(order)))


def take(connection: psycopg.Connection[tuple[object, ...]], message_id: str) -> bool:
    """What a consumer does with a message that may come more than once."""
    with connection.transaction():
        is_new = inbox.once_sync(connection, message_id, "invoices")
        if is_new:
            connection.execute("insert into invoices values (%s)", [message_id])
    return is_new


def main() -> None:
    with EmbeddedPostgres() as server:
        prepare_outbox(server.url)
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("create table orders (id int primary key)")
            connection.execute("create table invoices (message uuid primary key)")
            message_id = place_order(connection, 17)
            print("taken:", take(connection, message_id))
            print("and when it comes once more:", take(connection, message_id))
            try:
                place_order(connection, 17)
            except psycopg.errors.UniqueViolation:
                print("an order that fails leaves no event:", connection.execute(COUNT).fetchone())


COUNT = "select count(*) from headwater.outbox_message"

if __name__ == "__main__":
    main()
