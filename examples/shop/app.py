"""A small shop: orders come over HTTP, and each has its events in the transaction that it is written in.

Nothing here talks to a broker. The entities record what happens to them, the session writes that with their rows, and the
relay, which runs as long as the application does, takes it out after the commit.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import CONTENT_TYPE_LATEST
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headwater.brokers.registry import BrokerAccess
from headwater.outbox import Event, OutboxRelay
from headwater.outbox.relay.metrics import RelayMetrics
from headwater.outbox.sqlalchemy import HasEvents, install


class Base(DeclarativeBase):
    pass


class Article(Base):
    """What is sold, while there is some."""

    __tablename__ = "article"
    name: Mapped[str] = mapped_column(primary_key=True)
    stock: Mapped[int]


class Order(HasEvents, Base):
    """An order; what happens to it is recorded on it."""

    __tablename__ = "customer_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    article: Mapped[str]
    pieces: Mapped[int]
    state: Mapped[str]

    @classmethod
    def place(cls, article: str, pieces: int) -> "Order":
        order = cls(article=article, pieces=pieces, state="placed")
        # As a function: the id comes from the database, with the insert.
        order.record(lambda: order.event("OrderPlaced", article=article, pieces=pieces))
        return order

    def cancel(self) -> None:
        self.state = "cancelled"
        self.record(self.event("OrderCancelled"))

    def event(self, type_: str, **more: object) -> Event:
        return Event("orders", type_, {"id": self.id, **more}, key=str(self.id))


def build_app(url: str, broker: str | BrokerAccess) -> Starlette:
    """The application, on a database that has an outbox, and with a broker that may be away."""
    relay = OutboxRelay(url, broker)
    engine = create_async_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    install(sessions, relay)
    metrics = RelayMetrics(relay)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with relay:
            yield
        await engine.dispose()

    async def place(request: Request) -> Response:
        wanted = await request.json()
        async with sessions.begin() as session:
            order = Order.place(wanted["article"], wanted["pieces"])
            session.add(order)
            await session.flush()
            article = await session.get(Article, order.article, with_for_update=True)
            if article is None or article.stock < order.pieces:
                # The order and its event, which are both written by now, are gone together.
                await session.rollback()
                return JSONResponse({"error": "out of stock"}, status_code=409)
            article.stock -= order.pieces
        return JSONResponse({"id": order.id}, status_code=201)

    async def cancel(request: Request) -> Response:
        async with sessions.begin() as session:
            order = await session.get_one(Order, request.path_params["id"])
            order.cancel()
        return JSONResponse({"id": order.id})

    async def show_metrics(_request: Request) -> Response:
        return Response(metrics.render(), media_type=CONTENT_TYPE_LATEST)

    routes = [
        Route("/orders", place, methods=["POST"]),
        Route("/orders/{id:int}/cancel", cancel, methods=["POST"]),
        Route("/metrics", show_metrics),
    ]
    return Starlette(routes=routes, lifespan=lifespan)
