"""Who does what one worker must do for all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from late.worker.worker import Worker


def keeps(
    groups: tuple[str, ...],
    owned: set[tuple[str, int]],
    lowest: int | None = 0,
    *,
    shadow: bool = False,
) -> bool:
    worker: Any = SimpleNamespace(
        groups=groups,
        shadow=SimpleNamespace(on=shadow),
        keeper=SimpleNamespace(lowest_shard=lambda _: lowest),
        scheduler=SimpleNamespace(cores=dict.fromkeys(owned)),
    )
    return Worker.is_maintainer(worker)


@pytest.mark.parametrize(
    "fleet",
    [
        # Of the group that is paused nobody owns anything.
        [(("paused", "mail"), {("mail", 0)}), (("paused", "mail"), {("mail", 1)})],
        # Each owns the shard that the other asks for first.
        [(("a", "b"), {("b", 0), ("a", 1)}), (("b", "a"), {("a", 0), ("b", 1)})],
        [(("a",), {("a", 0)}), (("a",), {("a", 1)})],
    ],
)
def test_there_is_always_one_where_a_group_is_worked(fleet: list[Any]) -> None:
    assert any(keeps(*each) for each in fleet)


def test_not_a_worker_of_shadows() -> None:
    assert keeps(("a",), {("a", 0)})
    assert not keeps(("a",), {("a", 0)}, shadow=True)


def test_not_who_has_no_lowest_shard() -> None:
    assert not keeps(("a", "b"), {("a", 1), ("b", 2)})
    assert not keeps(("a",), {("other", 0)})
    assert not keeps(("a",), {("a", 0)}, lowest=None), "before the first view"
