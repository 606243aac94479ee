"""Customers who order at the shop, some of whom get nothing or change their minds, while its broker is stopped for a time.

Starts a private PostgreSQL and a private NATS, serves the shop on 127.0.0.1, and compares in the end what was written with
what arrived. Run it with `python -m examples.shop`; `--requests` and `--clients` say how much is going on.
"""

import argparse
import http.client
import json
import logging
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import psycopg
import sqlalchemy as sa
import uvicorn

from examples.shop.app import Article, Base, build_app
from headwater.brokers.nats import NatsAccess
from headwater.brokers.nats.broker import NatsBrokerSettings
from headwater.brokers.nats.reader import StreamReader
from headwater.brokers.registry import NatsMessages
from headwater.embedded import EmbeddedNats, EmbeddedPostgres
from headwater.outbox.checkpoint import prepare_outbox

STREAM = "shop"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--requests", type=int, default=600)
    options.add_argument("--clients", type=int, default=8)
    given = options.parse_args()
    # What the relay has to say, such as that the broker is away.
    logging.basicConfig(level="WARNING", stream=sys.stdout, format="  (%(message)s)")
    with EmbeddedPostgres() as postgres, EmbeddedNats() as nats:
        open_shop(postgres.url)
        broker = NatsMessages(
            access=NatsAccess(url=nats.url), settings=NatsBrokerSettings(stream=STREAM, subject=f"{STREAM}.{{topic}}")
        )
        with serving(postgres.url, broker) as port:
            answers = shop(port, given.requests, given.clients, nats)
            wait_until_published(postgres.url)
        print(f"answers: {answers[201]} orders placed, {answers[409]} out of stock, {answers[200]} cancelled")
        compare(postgres.url, nats.url)


def open_shop(url: str) -> None:
    prepare_outbox(url)
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(sa.insert(Article), [{"name": "lamp", "stock": 1_000_000}, {"name": "unicorn", "stock": 0}])
    engine.dispose()


@contextmanager
def serving(url: str, broker: NatsMessages) -> Iterator[int]:
    """The application as uvicorn serves it, in a thread; the port it listens on."""
    with closing(socket.create_server(("127.0.0.1", 0))) as place:
        server = uvicorn.Server(uvicorn.Config(build_app(url, broker), log_config=None, access_log=False))
        thread = threading.Thread(target=server.run, args=[[place]])
        thread.start()
        try:
            yield place.getsockname()[1]
        finally:
            server.should_exit = True
            # The relay finishes what it has.
            thread.join()


def shop(port: int, requests: int, clients: int, nats: EmbeddedNats) -> Counter[int]:
    """So many requests, some at a time; the broker is away for the middle third of them."""
    third = max(requests // 3, 1)
    answers: Counter[int] = Counter()
    with ThreadPoolExecutor(clients) as pool:
        for part in range(3):
            if part == 1:
                nats.kill()
                print("the broker is stopped")
            found = Counter(pool.map(lambda number: request(port, number), range(part * third, (part + 1) * third)))
            print(f"  {found.total()} requests are answered, whatever the broker does")
            answers += found
            if part == 1:
                nats.start()
                print("the broker is started again")
    return answers


def request(port: int, number: int) -> int:
    """One customer: every tenth wants what there is not, and every seventh thinks twice."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        article = "unicorn" if number % 10 == 0 else "lamp"
        connection.request("POST", "/orders", json.dumps({"article": article, "pieces": 1 + number % 3}))
        answer = connection.getresponse()
        body = json.load(answer)
        if answer.status == 201 and number % 7 == 0:
            connection.request("POST", f"/orders/{body['id']}/cancel")
            answer = connection.getresponse()
    return answer.status


def wait_until_published(url: str) -> None:
    """What came while the broker was away is in the table; the relay takes it from there when it can."""
    waiting, patience = "select count(*) from headwater.outbox_message where status = 'pending'", threading.Event()
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        while connection.execute(waiting).fetchone() != (0,):
            patience.wait(0.1)


def compare(url: str, nats_url: str) -> None:
    with closing(psycopg.connect(url)) as connection:
        written = {str(id_) for (id_,) in connection.execute("select id from headwater.outbox_message")}
        expected = connection.execute(EXPECTED).fetchone()
    arrived = Counter(arrivals(nats_url))
    print(f"events: {len(written)} written, {arrived.total()} arrived")
    print(f"lost: {len(written - arrived.keys())}, repeated: {arrived.total() - len(arrived)}")
    print(f"one for each order and each cancellation: {expected == (len(arrived),)}")


def arrivals(nats_url: str) -> Iterator[str]:
    """The ids of all messages that the broker has stored."""
    with closing(StreamReader(NatsAccess(url=nats_url), STREAM, [], 0)) as reader:
        while read := reader.read(1000, 1):
            for message in read:
                yield (message.headers or b"").partition(b"Nats-Msg-Id: ")[2].partition(b"\r\n")[0].decode()


EXPECTED = "select count(*) + count(*) filter (where state = 'cancelled') from customer_order"

if __name__ == "__main__":
    main()
