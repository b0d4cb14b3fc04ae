"""The share of a task from a provider of OpenFeature, and the knob where it has none or fails."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from openfeature import api
from openfeature.client import OpenFeatureClient
from openfeature.exception import GeneralError
from openfeature.provider.in_memory_provider import InMemoryFlag, InMemoryProvider

import late
from late.celery.router import Router
from late.celery.router.flags import FlagShares
from late.celery.router.shares import EVERY_S, Shares
from late.control import Control
from late.testing import drain
from tests.unit.test_celery_router import Broker

NAME = "shop.send"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Provider(InMemoryProvider):
    """The flags of one task; can fail."""

    def __init__(self) -> None:
        super().__init__({})
        self.asked = 0
        self.fails = False

    def put(self, value: object) -> None:
        self._flags = {f"celery.{NAME}": InMemoryFlag("on", {"on": value})}

    def resolve_float_details(self, *args: Any, **kwargs: Any) -> Any:
        self.asked += 1
        if self.fails:
            raise GeneralError("the flags are away")
        return super().resolve_float_details(*args, **kwargs)


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
def client(provider: Provider) -> Iterator[OpenFeatureClient]:
    api.set_provider(provider, "late-tests")
    yield api.get_client("late-tests")
    api.clear_providers()


def turn(url: str, **knobs: Any) -> None:
    with Control(url) as control:
        control.queues.change("queue", f"celery:{NAME}", knobs)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def shares(late_db: str, client: OpenFeatureClient, clock: Clock) -> FlagShares:
    turn(late_db, late_share=0.25)
    return FlagShares(client, Shares(lambda: late_db, clock), clock)


def test_a_number_is_the_share_and_is_read_anew_after_two_seconds(
    shares: FlagShares, provider: Provider, clock: Clock
) -> None:
    provider.put(0.5)
    assert [shares.of(NAME) for _ in range(3)] == [0.5] * 3
    assert provider.asked == 1
    provider.put(1.0)
    clock.now = EVERY_S - 0.01
    assert shares.of(NAME) == 0.5
    clock.now = EVERY_S
    assert shares.of(NAME) == 1.0


@pytest.mark.parametrize(("value", "share"), [(True, 0.25), (False, 0.0), (0.0, 0.0), (1, 1.0)])
def test_a_boolean_switches_the_knob_and_a_number_is_the_share(
    shares: FlagShares, provider: Provider, value: object, share: float
) -> None:
    provider.put(value)
    assert shares.of(NAME) == share


@pytest.mark.parametrize("value", ["half", 1.5, -0.1, float("nan")])
def test_the_knob_applies_while_the_flag_cannot_be_read(
    shares: FlagShares,
    provider: Provider,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    value: object,
) -> None:
    provider.put(value)
    for _ in range(3):
        assert shares.of(NAME) == 0.25
        clock.now += EVERY_S
    assert [record.name for record in caplog.records].count("late.celery") == 1


def test_the_knob_applies_without_a_flag_and_while_the_provider_fails(
    shares: FlagShares, provider: Provider, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    assert shares.of(NAME) == 0.25
    assert not [record for record in caplog.records if record.name == "late.celery"]
    provider.put(1.0)
    provider.fails, clock.now = True, EVERY_S
    assert shares.of(NAME) == 0.25
    provider.fails, clock.now = False, 2 * EVERY_S
    assert shares.of(NAME) == 1.0


def test_a_task_that_is_off_by_the_knob_is_off(
    late_db: str, shares: FlagShares, provider: Provider, clock: Clock
) -> None:
    provider.put(1.0)
    assert shares.of(NAME) == 1.0
    turn(late_db, closed=True)
    clock.now = EVERY_S
    assert shares.of(NAME) == 0.0


def test_the_router_sends_by_the_flag(
    late_db: str, client: OpenFeatureClient, provider: Provider
) -> None:
    provider.put(1.0)
    broker, ran = Broker(), []
    router = Router(late.App(late_db), broker, flags=client)
    router.task(name=NAME)(ran.append).delay(7)
    assert drain(router.late_app) == {"done": 1}
    assert (ran, broker.sent) == ([7], [])
