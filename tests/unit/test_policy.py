"""The outcomes a handler may raise or return, and the retry policy."""

from __future__ import annotations

import pickle
from datetime import timedelta

import pytest

from late import Discard, InvalidPolicy, Nack, Retry, Signal, Snooze
from late.errors import LateError
from late.model.task import Policy


def test_the_default_policy_is_the_scheduler_s_own() -> None:
    assert Retry().policy("default") == Policy()


def test_durations_are_seconds_or_timedelta() -> None:
    retry = Retry(5, base=timedelta(minutes=1), cap=3600, deadline=timedelta(days=2), jitter="none")
    assert retry.policy("q") == Policy(
        queue="q",
        max_attempts=5,
        base_us=60_000_000,
        cap_us=3_600_000_000,
        full_jitter=False,
        deadline_us=172_800_000_000,
    )
    assert Retry(base=timedelta(hours=1)).cap_s == 3600, "a long first wait needs no cap of its own"
    assert Retry(base=0.5).cap_s == 900


def test_the_bounds_are_within() -> None:
    Retry(1)
    Retry(1000, base=timedelta(days=7), cap=timedelta(days=7))
    for wrong in (0, 1001):
        with pytest.raises(InvalidPolicy, match=rf"max_attempts must be 1..1000, got {wrong}"):
            Retry(wrong)


def test_give_up_wins_over_retry() -> None:
    retry = Retry(retry_on=(OSError, ValueError), give_up_on=FileNotFoundError)
    assert retry.allows(ConnectionError())
    assert retry.allows(ValueError())
    assert not retry.allows(FileNotFoundError())
    assert not retry.allows(KeyError())
    assert Retry().allows(KeyError())
    assert not Retry().allows(KeyboardInterrupt())


@pytest.mark.parametrize(
    "signal",
    [
        Retry(3, after_s=timedelta(seconds=90), reason="busy"),
        Snooze(5, "closed"),
        Snooze(for_s=5),
        Discard("gone"),
        Discard(reason="gone"),
        Nack(reason="no GPU"),
        Nack("no GPU", not_capable=False),
    ],
)
def test_outcomes_cross_a_process_boundary(signal: Signal) -> None:
    copy = pickle.loads(pickle.dumps(signal))
    assert type(copy) is type(signal)
    assert vars(copy) == vars(signal)
    assert str(copy) == str(signal)


def test_outcomes_are_no_errors() -> None:
    for signal in (Retry(), Snooze(1), Discard(), Nack()):
        assert isinstance(signal, Signal)
        assert not isinstance(signal, LateError)


def test_outcomes_say_what_they_ask_for() -> None:
    assert str(Retry(after_s=90)) == "retry after 90 s"
    assert str(Snooze(1.5, "closed")) == "snooze for 1.5 s: closed"
    assert str(Discard("gone")) == "discard: gone"
    assert str(Nack(reason="no GPU")) == "nack: no GPU"
