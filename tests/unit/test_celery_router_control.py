"""Revocations through the router, and what the ramp says of a task that stays on Celery."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import late
from late.celery.router import Router
from late.cli import ramp
from late.testing import drain
from tests.unit.cli_kit import Cli
from tests.unit.test_celery_router import NAME, Broker

CELERYS = "0b3f4a52-3c2f-4b5e-9d7b-6a1f0c9d8e7f"


class Remote:
    """The control of Celery's app."""

    def __init__(self) -> None:
        self.told: list[tuple[list[str], dict[str, Any]]] = []

    def revoke(self, ids: list[str], **options: Any) -> None:
        self.told.append((ids, options))

    def ping(self) -> str:
        return "pong"


@pytest.fixture
def remote() -> Remote:
    return Remote()


@pytest.fixture
def router(late_db: str, remote: Remote) -> Router:
    broker = Broker()
    broker.control = remote  # type: ignore[attr-defined]
    router = Router(late.App(late_db), broker)
    router.shares = SimpleNamespace(of=lambda task: 1.0)  # type: ignore[assignment]
    return router


def test_a_call_is_revoked_on_the_side_that_has_it(router: Router, remote: Remote) -> None:
    send = router.task(name=NAME)(lambda n: n)
    one, chosen, kept = send.delay(1), send.apply_async((2,), task_id="mine"), send.delay(3)
    router.control.revoke([one, "mine", CELERYS], terminate=True, signal="SIGKILL")
    assert remote.told == [([CELERYS], {"terminate": True, "signal": "SIGKILL"})]
    assert drain(router.late_app) == {"cancelled": 2, "done": 1}
    assert [each.state for each in (one, chosen, kept)] == ["REVOKED", "REVOKED", "SUCCESS"]
    router.control.revoke(str(kept.id))
    router.control.revoke(kept)
    router.control.revoke(CELERYS)
    assert remote.told[1:] == [([CELERYS], {"terminate": False})]
    assert router.control.ping() == "pong"


@pytest.mark.parametrize("reason", ["base", None])
def test_the_ramp_says_why_a_task_stays_on_celery(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, reason: str | None
) -> None:
    shown = SimpleNamespace(task=NAME, unsupported={reason: 3} if reason else {})
    monkeypatch.setattr("late.control.status.celery_shares.read", lambda *_, **__: [shown])
    monkeypatch.setattr(ramp, "_known", lambda *_: ({"celery:shop.send"}, {NAME}))
    told = cli.fine("celery", "ramp", NAME, "other", "50").err
    why = reason or "it has something that late does not support"
    assert f"{NAME} stays on Celery, whatever its share is: {why}" in told
    assert "no live worker of late runs other" in told
    assert f"runs {NAME}" not in told
    assert "stays" not in cli.fine("celery", "ramp", NAME, "off").err
