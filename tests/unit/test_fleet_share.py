"""The part of a worker in the limits of a queue, where some groups do not read the queue."""

from __future__ import annotations

import pytest

from late.model.queue_settings import QueueSettings
from late.scheduler.limits.limits import Limits

QUEUES = {"mail": QueueSettings(rate=20, concurrency=8), "zzz": QueueSettings(concurrency=8)}


def limits_of(reads: dict[str, set[str]], mine: dict[str, int], total: dict[str, int]) -> Limits:
    limits = Limits()
    limits.set_groups({}, reads)
    limits.set(QUEUES, {"local": QueueSettings(concurrency=8)}, 0)
    limits.begin(mine, total, 0)
    return limits


def concurrency(limits: Limits) -> dict[str, int | None]:
    return {name: limiter.limit(0) for _, name, limiter in limits.limiters()}


def test_a_group_that_does_not_read_a_queue_takes_no_part_of_its_limits() -> None:
    fleet = {"default": 8, "other": 8}
    limits = limits_of({"other": {"zzz"}}, {"default": 8}, fleet)
    assert concurrency(limits) == {"mail": 8, "zzz": 4, "local": 4}
    mail = next(limiter for _, name, limiter in limits.limiters() if name == "mail")
    assert mail.bucket is not None
    assert mail.bucket.rate == 20


@pytest.mark.parametrize("reads", [{}, {"other": {"mail"}}, {"gone": {"zzz"}}])
def test_groups_that_read_the_queue_share_its_limits(reads: dict[str, set[str]]) -> None:
    limits = limits_of(reads, {"default": 8}, {"default": 8, "other": 8})
    assert concurrency(limits)["mail"] == 4


def test_workers_that_serve_unlike_groups_stay_at_the_limit_together() -> None:
    fleet = {"default": 8, "other": 8}
    both = limits_of({"other": {"zzz"}}, {"default": 4, "other": 8}, fleet)
    one = limits_of({"other": {"zzz"}}, {"default": 4}, fleet)
    assert concurrency(both)["mail"] == concurrency(one)["mail"] == 4


def test_what_a_group_reads_may_become_known_later() -> None:
    limits = limits_of({}, {"default": 8}, {"default": 8, "other": 8})
    assert concurrency(limits)["mail"] == 4
    limits.set_groups({}, {"other": {"zzz"}})
    limits.begin({"default": 8}, {"default": 8, "other": 8}, 0)
    assert concurrency(limits)["mail"] == 8
