"""What an owner does not offer, as other workers have declared what they handle."""

from __future__ import annotations

import pytest

from late.dispatcher.offers import declared
from late.dispatcher.offers import pool as pools
from late.model.task import Outcome
from tests.unit.dispatcher_kit import NOW_US, attempt
from tests.unit.offers_kit import owning


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "LOOK_S", 0.002)


async def test_what_nobody_handles_is_not_offered_and_ends_at_once() -> None:
    async with owning() as owner:
        owner.others = frozenset({"w2", "w3"})
        owner.table.names = {"w2": frozenset({"other"}), "w3": frozenset()}
        owner.pool.submit([attempt(), attempt("other")])
        await owner.until(lambda: owner.outcomes and owner.table.rows)
        assert [o.attempt.record.name for o in owner.outcomes] == ["work"]
        assert (owner.outcomes[0].kind, owner.outcomes[0].reason) == (
            *("not_capable", "unknown_task"),
        )
        [offer] = owner.table.offers.values()
        assert offer.attempt.name == "other"
        # The next one asks nobody
        owner.pool.submit([attempt(), attempt()])
        await owner.until(lambda: len(owner.outcomes) == 3)
        await owner.looks()
        assert (len(owner.table.offers), owner.table.calls.count("handlers")) == (1, 1)


async def test_a_route_handles_every_name_of_its_queue() -> None:
    async with owning() as owner:
        owner.table.names = {"w2": frozenset({"@" + attempt().record.queue})}
        owner.pool.submit([attempt()])
        await owner.until(lambda: owner.table.rows)


@pytest.mark.parametrize("says", [{"w2": frozenset[str](), "w3": None}, {"w2": frozenset[str]()}])
async def test_a_worker_of_which_nothing_is_known_may_run_anything(
    says: dict[str, frozenset[str] | None],
) -> None:
    async with owning() as owner:
        owner.others = frozenset({"w2", "w3"})
        owner.table.names = says
        owner.pool.submit([attempt()])
        await owner.until(lambda: owner.table.rows)
        await owner.looks()
        # It is asked again after a while, not with every look
        owner.pool.submit([attempt()])
        await owner.until(lambda: len(owner.table.rows) == 2)
        assert owner.table.calls.count("handlers") == 1
        owner.now += declared.READ_S
        owner.table.names["w3"] = frozenset()
        owner.pool.submit([attempt()])
        await owner.ended(*["not_capable"] * 3)
        assert len(owner.table.offers) == 2


async def test_a_worker_that_joins_is_asked_as_well() -> None:
    async with owning() as owner:
        owner.table.names = {"w2": frozenset(), "w3": frozenset({"work"})}
        owner.pool.submit([attempt()])
        await owner.ended("not_capable")
        owner.others = frozenset({"w2", "w3"})
        owner.pool.submit([attempt()])
        await owner.until(lambda: owner.table.rows)


async def test_a_refusal_by_a_handler_is_offered_whatever_others_have_declared() -> None:
    async with owning() as owner:
        owner.table.names = {"w2": frozenset()}
        owner.pool.submit([attempt()])
        await owner.ended("not_capable")
        nack = Outcome(attempt(), "not_capable", NOW_US, 1, error="no printer", reason="nacked")
        assert owner.pool.offer(nack)
        await owner.until(lambda: owner.table.rows)


async def test_nobody_handles_only_what_all_are_known_not_to_handle() -> None:
    said = {"w2": frozenset({"work"}), "w3": frozenset[str](), "w4": None}
    view = declared.DeclaredHandlers(lambda ids: {each: said[each] for each in ids})
    await view.learn(frozenset(said))
    assert view.nobody(frozenset({"w3"}), "mail", "work")
    assert view.nobody(frozenset({"w2", "w3"}), "mail", "other")
    assert not view.nobody(frozenset({"w2", "w3"}), "mail", "work")
    assert not view.nobody(frozenset({"w3", "w4"}), "mail", "work"), "w4 may be of an older version"
    assert not view.nobody(frozenset({"w3", "w9"}), "mail", "work"), "w9 was not read yet"
