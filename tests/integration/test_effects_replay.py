"""Effects of tasks that an operator runs again: `docs/effects.md` says which happen twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

import late
from late.control import Control
from late.testing import drain
from tests.integration.shared_kit import business, effect, effects, enqueue


@pytest.fixture
def url() -> Iterator[str]:
    with business() as made:
        yield made


def reset(control: Control) -> None:
    control.groups.reset("default", "beginning")


def replay(control: Control) -> None:
    until = control.now() + 2_000
    while control.now() <= until:
        pass
    while not control.groups.replay_window("default", 0, until, rate=1000).finished:
        pass


@pytest.mark.parametrize("again", [reset, replay])
def test_a_replay_repeats_the_effects_of_a_shared_transaction_and_not_those_of_once(
    url: str, again: Callable[[Control], None]
) -> None:
    app = late.App(url)

    @app.task(transaction=True)
    def shared(ctx: late.Context, n: int) -> None:
        effect(ctx, n)

    @app.task
    def noted(ctx: late.Context, n: int) -> None:
        with ctx.once() as tx:
            tx.execute("insert into effect values (%s, %s)", (ctx.task_id, n))

    with Control(url) as control:
        control.groups.set_retention(7 * 86_400)
        enqueue(app, [shared.call(1), noted.call(2)])
        drain(app)
        assert effects(url) == Counter({1: 1, 2: 1})
        again(control)
        drain(app, wait_s=5.0)
    assert effects(url) == Counter({1: 2, 2: 1})
