"""The rows of offers, on every store."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from sqlalchemy import delete, insert, select, update

from late.control import Control
from late.control import offers as table
from late.model.ids import new_id
from late.model.offers import Answer, Offer, Offered, OfferKey
from late.model.task import Policy, ShardId
from late.schema.engine import make_engine, writing
from late.schema.tables import lease, offer

DONE = Answer("done", Policy(max_attempts=1), "local", 5, 7, result=b"\x00{}")


@pytest.fixture
def control(url: str) -> Iterator[Control]:
    with Control(url) as made:
        yield made


def hold(url: str, owner: str, epoch: int, shard_id: int = 3) -> None:
    engine = make_engine(url)
    with writing(engine) as connection:
        connection.execute(delete(lease).where(lease.c.shard_id == shard_id))
        row = {"consumer_group": "default", "shard_id": shard_id, "owner": owner, "epoch": epoch}
        connection.execute(insert(lease).values(row))
    engine.dispose()


def an_offer(owner: str = "w1", epoch: int = 1, shard_id: int = 3, name: str = "pay") -> Offer:
    key = OfferKey("default", ShardId(shard_id), new_id(shard_id))
    return Offer(key, owner, epoch, Offered("mail", name, 77, 2, 0, 5, timeout_us=9))


def test_an_offer_goes_to_one_worker_and_its_answer_to_the_owner(
    url: str, control: Control
) -> None:
    hold(url, "w1", 1)
    offers, mine = control.offers, an_offer()
    offers.put([mine])
    assert offers.find("w1", ["default"]) == []
    assert offers.find("w2", ["other"]) == []
    assert offers.find("w2", ["default"]) == offers.find("w3", ["default"]) == [mine]
    assert offers.take("w2", [mine]) == [mine]
    assert offers.take("w3", [mine]) == []
    assert offers.take("w2", [mine]) == [mine], "the reply to the first call may be lost"
    assert (offers.find("w2", ["default"]), offers.find("w3", ["default"])) == ([mine], [])
    assert offers.withdraw([mine], untaken=True) == []
    assert offers.answer("w3", [(mine, DONE)]) == []
    assert offers.answer("w2", [(mine, DONE)]) == [mine]
    assert offers.find("w2", ["default"]) == []
    [state] = offers.states("w1")
    assert (state.key, state.epoch, state.runner, state.answer) == (mine.key, 1, "w2", DONE)
    assert offers.withdraw([mine]) == [mine]
    assert (offers.states("w1"), offers.withdraw([mine])) == ([], [])


def test_who_refused_does_not_get_it_again(url: str, control: Control) -> None:
    hold(url, "w1", 1)
    offers, mine = control.offers, an_offer()
    offers.put([mine])
    offers.take("w2", [mine])
    assert offers.give_back("w3", [mine], refused=True) == []
    assert offers.give_back("w2", [mine], refused=True) == [mine]
    assert (offers.find("w2", ["default"]), offers.find("w3", ["default"])) == ([], [mine])
    offers.take("w3", [mine])
    assert offers.give_back("w3", [mine], refused=False) == [mine]
    assert offers.find("w3", ["default"]) == [mine]
    [state] = offers.states("w1")
    assert (state.refused_by, state.runner) == ({"w2"}, None)


def test_a_second_put_leaves_the_row_as_it_is(url: str, control: Control) -> None:
    hold(url, "w1", 1)
    offers, mine = control.offers, an_offer()
    offers.put([mine])
    offers.take("w2", [mine])
    offers.put([mine])
    [state] = offers.states("w1")
    assert state.runner == "w2"
    # And one of an earlier lease is another row, which nobody takes any more
    hold(url, "w3", 2)
    later = msgspec.structs.replace(mine, owner="w3", epoch=2)
    offers.put([later])
    assert offers.find("w2", ["default"]) == [later]
    assert [state.epoch for state in offers.states("w3")] == [2]
    # Each has its own answer
    offers.take("w2", [later])
    dead = Answer("dead", Policy(), "local", 5, 7)
    assert offers.answer("w2", [(mine, DONE), (later, dead)]) == [mine, later]
    assert [offers.states(owner)[0].answer for owner in ("w1", "w3")] == [DONE, dead]


@pytest.mark.parametrize(("owner", "epoch"), [("w9", 2), ("w1", 2)], ids=["another", "the same"])
def test_what_a_former_owner_left_behind_starts_nothing(
    url: str, control: Control, owner: str, epoch: int
) -> None:
    hold(url, "w1", 1)
    offers, mine, other = control.offers, an_offer(), an_offer("w4", 1, 4)
    hold(url, "w4", 1, 4)
    offers.put([mine, other])
    seen = offers.find("w2", ["default"])
    assert set(seen) == {mine, other}
    hold(url, owner, epoch)
    assert offers.find("w2", ["default"]) == [other]
    assert offers.take("w2", seen) == [other]
    # And the sweep removes it, and no other
    control.sweep()
    assert (offers.states("w1"), len(offers.states("w4"))) == ([], 1)
    assert offers.answer("w2", [(mine, DONE), (other, DONE)]) == [other]


def test_the_oldest_come_first(url: str, control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "FOUND_MAX", 2)
    hold(url, "w1", 1)
    offers = [an_offer(name=name) for name in ("one", "two", "three")]
    control.offers.put(offers)
    engine = make_engine(url)
    with writing(engine) as connection:
        for n, each in enumerate(offers):
            mine = offer.c.task_id == each.key.task_id
            connection.execute(update(offer).where(mine).values(offered_at_us=100 - n))
        assert len(connection.execute(select(offer.c.task_id)).all()) == 3
    engine.dispose()
    names = [each.attempt.name for each in control.offers.find("w2", ["default"])]
    assert names == ["three", "two"]
