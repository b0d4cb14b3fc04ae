"""SQL of a handler that would end the transaction which it shares: other tasks do not run twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

import late
from late.control import Control
from late.testing import drain
from tests.integration.shared_kit import (
    business,
    business_file,
    check,
    effect,
    effect_async,
    effects,
    enqueue,
)

ONCE = late.Retry(max_attempts=1)
ENDS = ("commit", "/* vacuum comes next */ COMMIT; begin", "rollback", "end", "abort")
"""SQLite knows no `abort`."""


@pytest.fixture(params=["postgresql", "sqlite"])
def url(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    with business() if request.param == "postgresql" else business_file(tmp_path) as made:
        yield made


def test_only_the_task_that_says_so_fails(url: str) -> None:
    app = late.App(url)

    @app.task(transaction=True)
    def good(ctx: late.Context, n: int) -> None:
        effect(ctx, n)

    @app.task(transaction=True, retry=ONCE)
    def ending(ctx: late.Context, n: int, statement: str) -> None:
        effect(ctx, n)
        ctx.tx.execute(statement)

    @app.task(transaction=True, retry=ONCE)
    def in_session(ctx: late.Context, n: int, statement: str) -> None:
        effect(ctx, n)
        ctx.session.execute(sa.text(statement))

    @app.task(transaction=True, retry=ONCE)
    async def awaited(ctx: late.AsyncContext, n: int, statement: str) -> None:
        await effect_async(ctx, n)
        await ctx.tx.execute(statement)

    calls = [good.call(n) for n in range(60)]
    for place, statement in enumerate(ENDS):
        kinds: tuple[late.Task[[int, str], None], ...] = (ending, in_session, awaited)  # type: ignore[assignment]
        for kind, task in enumerate(kinds):
            calls.insert(7 * place + kind, task.call(1_000 + 10 * place + kind, statement))
    enqueue(app, calls)
    assert drain(app) == {"done": 60, "dead": 3 * len(ENDS)}
    assert effects(url) == Counter(range(60))
    check(url)
    with Control(url) as control:
        letters = control.dead_letters.page().letters
    errors = [each.errors[-1].error for each in letters]
    assert all("shared with other tasks" in e or "syntax error" in e for e in errors), errors
    assert sum("syntax error" in e for e in errors) == (3 if url.startswith("sqlite") else 0)
