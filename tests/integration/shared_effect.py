"""What each task of a shared transaction writes. Workers import this, and nothing of pytest."""

from __future__ import annotations

from typing import Any

import psycopg

import late


def _writes(ctx: late.Context | late.AsyncContext, number: int) -> list[tuple[str, Any]]:
    mark = "%s" if isinstance(ctx.tx, psycopg.Connection | psycopg.AsyncConnection) else "?"
    return [
        (f"insert into effect values ({mark}, {mark})", (ctx.task_id, number)),
        (f"update account set balance = balance + 1 where id = {mark}", (number % 1000,)),
    ]


def effect(ctx: late.Context, number: int) -> None:
    """Both kinds of effect: a row, and a change of one."""
    for statement, values in _writes(ctx, number):
        ctx.tx.execute(statement, values)


async def effect_async(ctx: late.AsyncContext, number: int) -> None:
    """The same as `effect`."""
    for statement, values in _writes(ctx, number):
        await ctx.tx.execute(statement, values)
