"""Knobs as values: bounds, words as typed, defaults."""

from __future__ import annotations

from typing import Any

import pytest

from late.errors import InvalidPolicy
from late.model import queue_settings
from late.model.queue_settings import (
    LOCAL,
    NAMES,
    REMOTE,
    QueueSettings,
    changed,
    decode,
    effective,
    encode,
    parse,
)


def test_words_become_typed_values() -> None:
    words = ["rate=2.5", "burst=10", "paused=on", "smart-retry=off", "concurrency=auto",
             "fair_key=tenant", "spread_s=default"]  # fmt: skip
    assert parse(words) == {
        "rate": 2.5,
        "burst": 10,
        "paused": True,
        "smart_retry": False,
        "concurrency": "auto",
        "fair_key": "tenant",
        "spread_s": None,
    }


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("speed=3", "no such knob: 'speed'; there are paused"),
        ("rate", "expected name=value"),
        ("rate=fast", "rate is a number"),
        ("burst=1.5", "burst is a whole number"),
        ("paused=maybe", "paused is on or off"),
    ],
)
def test_words_that_say_nothing_are_named(word: str, says: str) -> None:
    with pytest.raises(InvalidPolicy, match=says):
        parse([word])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rate": 0}, "rate must be"),
        ({"rate": float("nan")}, "rate must be"),
        ({"concurrency": 0}, "paused=on starts nothing"),
        ({"concurrency": "many"}, "concurrency"),
        ({"breaker": 2.0}, "breaker must be 0.01..1.5"),
        ({"fair_key": "a b"}, "name of a header"),
        ({"retry_budget": -0.1}, "retry_budget must be 0..1"),
        ({"burst": "x"}, "not a value"),
        ({"speed": 1}, "no such knob"),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_name(change: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidPolicy, match=says):
        changed(QueueSettings(), change, "queue")


def test_a_target_has_no_tasks_of_its_own() -> None:
    with pytest.raises(InvalidPolicy, match="max_backlog is a knob of queues"):
        changed(QueueSettings(), {"max_backlog": 5}, "target")


def test_a_change_keeps_the_rest_and_none_goes_back_to_the_default() -> None:
    first = changed(QueueSettings(), {"rate": 5, "paused": True}, "queue")
    assert changed(first, {"paused": None}, "queue") == QueueSettings(rate=5.0)
    assert decode(encode(first)) == first
    assert encode(QueueSettings()) == "{}"


def test_what_a_newer_version_wrote_is_not_run_without() -> None:
    with pytest.raises(InvalidPolicy, match="cannot be read"):
        decode('{"rate": 5, "colour": "red"}')
    with pytest.raises(InvalidPolicy, match="rate must be"):
        decode('{"rate": -5}')


def test_what_is_set_wins_over_the_default() -> None:
    held = effective(QueueSettings(concurrency=3), REMOTE)
    assert (held.concurrency, held.retry_budget) == (3, 0.2)
    assert effective(QueueSettings(), LOCAL).concurrency is None


def test_every_knob_has_a_bound_or_is_checked_by_hand() -> None:
    by_hand = {"paused", "closed", "smart_retry", "concurrency", "fair_key", "owner", "severity"}
    assert set(queue_settings._NUMBERS) | by_hand == set(NAMES)
    for name, (_, least, most) in queue_settings._NUMBERS.items():
        for value in (least, most):
            kind = int if queue_settings._NUMBERS[name][0] is int else float
            assert getattr(changed(QueueSettings(), {name: kind(value)}, "queue"), name) == value


def test_an_owner_is_a_label_and_binds_nothing() -> None:
    labelled = changed(QueueSettings(), parse(["owner=team-payments"]), "queue")
    assert labelled.owner == "team-payments"
    assert not queue_settings.binds(labelled)
    assert queue_settings.binds(QueueSettings(owner="team-payments", rate=1.0))
    with pytest.raises(InvalidPolicy, match="owner is a knob of queues"):
        changed(QueueSettings(), {"owner": "a"}, "target")
    with pytest.raises(InvalidPolicy, match="owner must be a name"):
        changed(QueueSettings(), {"owner": "a b\n"}, "queue")
