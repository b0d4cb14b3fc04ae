"""Shares from a provider of OpenFeature: a flag per task in place of the knob."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

from late.celery.router.shares import EVERY_S, Shares

logger = logging.getLogger("late.celery")

KEY = "celery."
"""The beginning of a flag's key, before the name of its task."""


class Client(Protocol):
    """The part of OpenFeature's client that is used. It raises nothing: see the details."""

    def get_float_details(self, key: str, default: float, /) -> Any: ...
    def get_boolean_details(self, key: str, default: bool, /) -> Any: ...
    def get_integer_details(self, key: str, default: int, /) -> Any: ...


class FlagShares:
    """The shares by flags `celery.TASK`, each at most two seconds old. Thread-safe.

    A number is the share, 0..1. A boolean is a switch of the knob's share. Without a flag, and
    while the provider fails, the knob applies. A task that is off by the knob is off.
    """

    def __init__(
        self, client: Client, knobs: Shares, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._knobs = knobs
        self._clock = clock
        self._seen: dict[str, tuple[float, float | bool]] = {}
        """Task -> when it was asked for, and the flag; True for the knob's share."""
        self._failing: set[str] = set()

    def of(self, task: str) -> float:
        """Return the share of a task, 0..1."""
        knob = self._knobs.of(task)
        if self._knobs.is_off(task):
            return 0.0
        asked_at, flag = self._seen.get(task, (None, True))
        now = self._clock()
        if asked_at is None or now - asked_at >= EVERY_S:
            flag = self._ask(task)
            self._seen[task] = now, flag
        return knob if flag is True else float(flag)

    def _ask(self, task: str) -> float | bool:
        client, key = self._client, KEY + task
        found = client.get_float_details(key, 0.0)
        if found.error_code == "TYPE_MISMATCH":
            found = client.get_boolean_details(key, True)
        if found.error_code == "TYPE_MISMATCH":  # 1 is no float to some providers.
            found = client.get_integer_details(key, 0)
        value: float | bool = found.value
        problem = found.error_code
        if problem is None and not 0 <= value <= 1:
            problem = f"the value {value} is not within 0..1"
        self._tell(task, problem)
        return value if problem is None else True

    def _tell(self, task: str, problem: object) -> None:
        """Log a failure once until the flag is there again. No flag is no failure."""
        if problem is None or problem == "FLAG_NOT_FOUND":
            self._failing.discard(task)
        elif task not in self._failing:
            self._failing.add(task)
            text = "the flag %s%s cannot be read (%s): the knob's share applies"
            logger.warning(text, KEY, task, getattr(problem, "value", problem))
