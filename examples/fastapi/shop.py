"""A small shop: an order and its task commit together. `SHOP_URL` names the database."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import telemetry
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import late
from late.contrib.fastapi import running, transaction

URL = os.environ.get("SHOP_URL", "sqlite:///shop.db")
queue = late.App(URL)
engine = create_async_engine(URL.replace("sqlite:", "sqlite+aiosqlite:"))
sessions = async_sessionmaker(engine, expire_on_commit=False)


class Base(DeclarativeBase):
    """The tables of the shop."""


class Order(Base):
    """One order. A task pays it."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str]
    cents: Mapped[int]
    paid: Mapped[int] = mapped_column(default=0)


class NewOrder(BaseModel):
    email: str
    cents: int


@queue.task(queue="payments")
async def pay(ctx: late.AsyncContext, order_id: int) -> None:
    """Pay an order. Its effect happens once, whatever is repeated."""
    async with sessions.begin() as tx:
        if await ctx.claim(tx):
            order = await tx.get_one(Order, order_id)
            order.paid += 1


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    telemetry.start()
    async with engine.begin() as tx:
        await tx.run_sync(Base.metadata.create_all)
    async with running(queue, worker=os.environ.get("SHOP_WORKER") == "1"):
        yield
    await engine.dispose()


# It commits before the answer is sent, and wakes the workers then.
Transaction = Annotated[AsyncSession, transaction(sessions.begin)]
app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def place(new: NewOrder, tx: Transaction) -> dict[str, object]:
    tx.add(order := Order(**new.model_dump()))
    await tx.flush()
    return {"order": order.id, "task": await pay.enqueue(tx, order.id)}


@app.get("/orders/{order_id}")
async def show(order_id: int, tx: Transaction) -> dict[str, object]:
    order = await tx.get(Order, order_id)
    if order is None:
        raise HTTPException(404)
    return {"order": order.id, "cents": order.cents, "paid": order.paid}
