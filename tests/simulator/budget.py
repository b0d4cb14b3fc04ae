"""Worlds whose queue has a retry budget: S10."""

from __future__ import annotations

import random

import msgspec

from late.model.queue_settings import QueueSettings

SHARE = 0.3
"""Of all worlds."""
BURST_S = 10.0
"""What a worker may have saved up of its steady retries."""
QUEUE = "default"


def draw(rng: random.Random) -> QueueSettings:
    """The knobs of the only queue. The budget is what binds; a limit beside it now and then."""
    if rng.random() >= SHARE:
        return QueueSettings()
    return QueueSettings(
        retry_min=rng.choice((1.0, 3.0)),
        retry_budget=rng.choice((0.05, 0.3)),
        concurrency=rng.choice((None, 4)),
    )


class Spent(msgspec.Struct):
    """What one process has started."""

    since_us: int
    fresh: int = 0
    retries: int = 0


class Budgets:
    """Judges each start by plain arithmetic over the whole life of its process."""

    def __init__(self, settings: QueueSettings) -> None:
        self.settings = settings
        self._spent: dict[str, Spent] = {}

    def born(self, worker_id: str, now_us: int) -> None:
        """From now on it earns."""
        self._spent[worker_id] = Spent(now_us)

    def handed(self, worker_id: str, fresh: int) -> None:
        """So many first attempts are in its slots. Each earns a part of a retry, also if it is
        given back from there before its handler is called."""
        self._spent[worker_id].fresh += fresh

    def objection(self, worker_id: str, now_us: int) -> str | None:
        """Count a retry that starts; why it should not have been, if so."""
        if self.settings.retry_min is None:
            return None
        spent = self._spent[worker_id]
        spent.retries += 1
        # A second more than has passed: a process's clock is not the database's.
        lived_s = (now_us - spent.since_us) / 1e6 + 1.0
        most = self.settings.retry_min * (BURST_S + lived_s)
        most += (self.settings.retry_budget or 0.0) * spent.fresh
        if spent.retries <= most:
            return None
        return f"S10: {worker_id} has started {spent.retries} retries, of {most:.1f}"
