"""The latest dead letters of all shards, in pages that miss none."""

from __future__ import annotations

import random

import msgspec
import pytest

from late.control import Control
from late.control.dead_letters import page as latest
from late.control.dead_letters.filter import Filter
from late.control.dead_letters.page import DeadLetterPage
from late.control.views import DeadView
from late.model.ids import new_id
from late.schema.tables import dead
from tests.integration.control_kit import transaction


def letters(count: int, rng: random.Random) -> list[dict[str, object]]:
    """Of three shards in two groups; some died in the same moment."""
    return [
        {
            "consumer_group": rng.choice(("audit", "default")), "shard_id": shard,
            "dead_at_us": rng.randrange(1, count), "task_id": new_id(shard), "reason": "failed",
            "position": 1, "sequence": 1, "queue": rng.choice(("mail", "pay")), "name": "work",
            "payload": b"{}", "created_at_us": 1, "attempts": 1, "deaths": 0,
            "errors": f'[[1, 1, "w", "{rng.choice(("TimeoutError", "KeyError"))}"]]',
        }
        for shard in (rng.randrange(3) for _ in range(count))
    ]  # fmt: skip


def pages(control: Control, which: Filter, limit: int) -> list[DeadLetterPage]:
    found = [control.dead_letters.page(which, limit=limit)]
    while (before := found[-1].before_us) is not None:
        assert len(found) < 1_000, "there must be an end"
        which = msgspec.structs.replace(which, until_us=before)
        found.append(control.dead_letters.page(which, limit=limit))
    return found


@pytest.mark.parametrize(
    "which",
    [Filter(), Filter(queue="mail", error="KeyError"), Filter(group="audit", until_us=20)],
    ids=["all", "some", "before"],
)
def test_pages_follow_one_another_and_miss_none(
    url: str, monkeypatch: pytest.MonkeyPatch, which: Filter
) -> None:
    monkeypatch.setattr(latest, "LOOKED", 20)
    monkeypatch.setattr(latest, "LOOKED_MIN", 5)
    with transaction(url) as connection:
        for row in letters(40, random.Random(7)):
            connection.execute(dead.insert().values(**row))
    with Control(url) as control:
        expected = [key(view) for view in control.dead_letters.find(which, limit=1_000)]
        assert len(expected) > 5
        found = pages(control, which, 7)
        # A moment in which several died is on both sides of a page's end.
        told = list(dict.fromkeys(key(view) for page in found for view in page.letters))
        assert told == expected
        assert len(found) > 1
        assert all(len(page.letters) <= 7 for page in found)
        first = control.dead_letters.page(Filter(), limit=3).letters[0]
        assert (first.payload, first.payload_bytes) == (None, 2)
        assert control.dead_letters.page(Filter(task_id=first.task_id)).letters == (first,)


def test_many_that_died_in_one_moment_are_passed_over_and_not_shown_for_ever(url: str) -> None:
    with transaction(url) as connection:
        for n, row in enumerate(letters(30, random.Random(1))):
            connection.execute(dead.insert().values(**(row | {"dead_at_us": 5 if n < 25 else 3})))
    with Control(url) as control:
        found = pages(control, Filter(), 10)
    times = [[view.dead_at_us for view in page.letters] for page in found]
    assert times == [[5] * 10, [5] * 10, [3] * 5]


def key(view: DeadView) -> tuple[str, str]:
    return view.group, view.task_id
