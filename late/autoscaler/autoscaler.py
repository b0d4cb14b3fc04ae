"""The loop: look, decide, record, resize.

    hold the term ─▶ check the resize under way ─▶ size, metrics ─▶ decide ─▶ journal ─▶ resize

A change is first recorded as `started`, by an update that only the holder of the current epoch can
make, and then asked for. A controller that was paused in between learns from that update that
another has the term. Right before the call it also checks that its own trust in the term has not
ended (the monotonic time before the term was asked for, plus its length, minus a margin). A pause
between that check and the call remains possible: the service refuses a resize while another is
under way, and otherwise it sets a size that was right a moment ago, which the next look corrects.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from late import events
from late.autoscaler.decide import Decision, Observation, State, after_step, decide
from late.autoscaler.forecast import SLOT_US, WEEK_US, forecast
from late.autoscaler.metrics.source import Metrics, MetricsError, Source
from late.autoscaler.policy import Policy
from late.autoscaler.targets.sizer import PendingResize, ResizeError, Sizer
from late.errors import LateError, StoreError

BACKOFF_S = 30.0
BACKOFF_MAX_S = 900.0
MARGIN_S = 2.0
HELD, DRY_RUN, STARTED, APPLIED = "held", "dry run", "started", "applied"


class Term(msgspec.Struct, frozen=True):
    """The right to act, under one epoch."""

    controller: str
    owner: str
    epoch: int
    now_us: int
    """The database's clock."""
    up_us: int | None = None
    down_us: int | None = None


class TermLost(LateError):
    """The term has gone to another controller."""


class Journal(Protocol):
    """The record of the term and of every decision. Raises `StoreError` when the database fails."""

    def hold(self, controller: str, owner: str, ttl_s: float) -> Term | None:
        """Take or renew the term for `ttl_s`; None while another has it."""

    def looked(self, term: Term, text: str) -> None:
        """Store the result of the last look. Raises `TermLost`."""

    def record(self, term: Term, decision: Decision, result: str) -> int:
        """Append a decision and return its number. A `started` one counts as a step from now on.
        Raises `TermLost`."""

    def finish(self, term: Term, seq: int, result: str) -> None:
        """Record how a started decision ended. A failed one was no step: the cool-downs become
        those of `term` again. Raises `TermLost`."""

    def give_back(self, term: Term) -> None:
        """End the term, so that the next controller need not wait."""


class _Resize(msgspec.Struct, frozen=True):
    seq: int
    decision: Decision
    pending: PendingResize
    before: Term


class Autoscaler:
    """Sizes one database. `look` is one round and is not called concurrently."""

    def __init__(
        self,
        policy: Policy,
        source: Source,
        sizer: Sizer,
        journal: Journal,
        *,
        owner: str,
        controller: str | None = None,
        every_s: float = 30.0,
        ttl_s: float = 90.0,
        monotonic: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        emit: events.Emitter = events.default,
    ) -> None:
        self._policy, self._source, self._sizer, self._journal = policy, source, sizer, journal
        self._owner, self._name = owner, controller or sizer.name
        self._every_s, self._ttl_s = every_s, ttl_s
        self._monotonic, self._rng, self._emit = monotonic, rng or random.Random(), emit
        self._state = State()
        self._epoch: int | None = None
        self._looked = False
        self._resize: _Resize | None = None
        self._failures, self._not_before, self._failure = 0, 0.0, ""
        self._last_note: tuple[object, ...] | None = None
        self._slot_forecast: tuple[int, float | None] = (-1, None)
        self.result: str | None = None
        """The recorded result of the last decision; None: nothing was decided yet."""

    def run(self, stop: threading.Event) -> None:
        """Look until `stop` is set, then give the term back. Errors of the database, the metrics
        and the service do not end the loop; each is logged in one line."""
        while not stop.is_set():
            try:
                self.look()
            except (StoreError, TermLost) as error:
                self._report_error(error, self._every_s)
            stop.wait(self._every_s * self._rng.uniform(0.9, 1.1))
        if self._epoch is not None:
            term = Term(self._name, self._owner, self._epoch, 0)
            try:
                self._journal.give_back(term)
            except (StoreError, TermLost) as error:
                self._report_error(error, 0.0)

    def look(self) -> Decision | None:
        """Do one round. Return None when nothing was decided: another has the term, a resize is
        under way, or the size is not known.

        Raises:
            StoreError: from the journal.
            TermLost: the term went to another. Nothing was changed.
        """
        sent = self._monotonic()
        term = self._journal.hold(self._name, self._owner, self._ttl_s)
        self._follow_epoch(term)
        if term is None:
            return None
        if self._resize is not None:
            if not self._has_ended(term, self._resize):
                return None
            # The end of the resize may have changed the time of the last step.
            term = self._journal.hold(self._name, self._owner, self._ttl_s)
            self._follow_epoch(term)
            if term is None:
                return None
        try:
            size = self._sizer.size()
        except ResizeError as error:
            self._journal.looked(term, f"the size is not known: {error}")
            self._report_error(error, self._every_s)
            return None
        decision, why = self._decide(term, size)
        if why:
            decision = msgspec.structs.replace(decision, why=why)
        wait_s = self._not_before - self._monotonic()
        if decision.changes and self._policy.dry_run:
            self._note(term, decision, DRY_RUN)
        elif decision.changes and wait_s <= 0:
            self._change(term, decision, sent + self._ttl_s - MARGIN_S)
        elif decision.changes:
            text = f"to {decision.to_size}: again in {wait_s:.0f} s, the last try failed"
            self._journal.looked(term, f"{text}: {self._failure}")
        else:
            self._note(term, decision, HELD)
        return decision

    def await_resize(self, timeout_s: float, pause_s: float = 1.0) -> bool:
        """Wait for the resize under way, after a single `look`. False if it takes longer.

        Raises:
            StoreError, TermLost: as `look`.
        """
        until = self._monotonic() + timeout_s
        while self._resize is not None:
            term = self._journal.hold(self._name, self._owner, self._ttl_s)
            self._follow_epoch(term)
            if term is None or self._resize is None or self._has_ended(term, self._resize):
                break
            if self._monotonic() >= until:
                return False
            time.sleep(pause_s)
        return True

    # --- looking

    def _follow_epoch(self, term: Term | None) -> None:
        epoch = None if term is None else term.epoch
        # The first look is reported in any case, so that a waiting controller is not silent.
        if epoch == self._epoch and self._looked:
            return
        self._looked = True
        # The present owner follows a resize that began under another epoch.
        self._epoch, self._resize = epoch, None
        self._emit.emit(
            events.CONTROLLER, controller=self._name, epoch=epoch, acts=term is not None
        )

    def _decide(self, term: Term, size: int) -> tuple[Decision, str]:
        """Decide, and say why there are no metrics if there are none."""
        now_us, why = term.now_us, ""
        ahead: float | None = None
        try:
            metrics = self._source.read(now_us)
            ahead = self._forecast(now_us)
        except MetricsError as error:
            metrics, why = Metrics(), f"{error}: the size is held"
        seen = Observation(
            size,
            metrics.at_us,
            metrics.cpu,
            cpu_total=metrics.cpu_total,
            measured_size=metrics.measured_size,
            cpu_24h=metrics.cpu_24h,
            storage_bytes=metrics.storage_bytes,
            forecast=ahead,
        )
        state = msgspec.structs.replace(self._state, up_us=term.up_us, down_us=term.down_us)
        decision, self._state = decide(self._policy, seen, state, now_us)
        self._emit.emit(
            events.AUTOSCALER_LOOKED,
            size=decision.from_size,
            wanted=decision.wanted,
            controller=self._name,
            rule=decision.rule,
        )
        return decision, why

    def _forecast(self, now_us: int) -> float | None:
        weeks, slot = self._policy.predict_weeks, now_us // SLOT_US
        if not weeks or self._slot_forecast[0] == slot:
            return self._slot_forecast[1] if weeks else None
        lead_us = round(self._policy.predict_lead_s * 1e6)
        at, load = [], []
        for week in range(weeks, 0, -1):
            begin = now_us - week * WEEK_US
            for moment, value in self._source.past(begin, begin + lead_us + SLOT_US):
                at.append(moment)
                load.append(value)
        found = forecast(at, load, now_us, weeks=weeks, lead_us=lead_us)
        self._slot_forecast = (slot, found)
        return found

    # --- acting

    def _change(self, term: Term, decision: Decision, trusted_until: float) -> None:
        seq = self._journal.record(term, decision, STARTED)
        self.result = STARTED
        if self._monotonic() >= trusted_until:
            self._journal.finish(term, seq, "failed: too slow")
            raise TermLost(f"{self._name}: the term may be over, nothing was changed")
        try:
            pending = self._sizer.resize(decision.from_size, decision.to_size)
            self._resize = _Resize(seq, decision, pending, term)
            if not self._has_ended(term, self._resize):
                self._announce(decision, STARTED)
        except ResizeError as error:
            self._failed(term, seq, decision, error)

    def _has_ended(self, term: Term, resize: _Resize) -> bool:
        """Return True once the resize under way has ended, well or not."""
        try:
            if not resize.pending.done():
                self._journal.looked(term, f"to {resize.decision.to_size}: under way")
                return False
        except ResizeError as error:
            self._failed(resize.before, resize.seq, resize.decision, error)
            return True
        self._resize, self._failures, self._last_note = None, 0, None
        self.result = APPLIED
        self._journal.finish(term, resize.seq, APPLIED)
        self._state = after_step(resize.decision, self._state)
        self._announce(resize.decision, APPLIED)
        return True

    def _failed(self, before: Term, seq: int, decision: Decision, error: ResizeError) -> None:
        self._resize = None
        self._failures += 1
        most = min(BACKOFF_MAX_S, BACKOFF_S * 2 ** (self._failures - 1))
        wait_s = most * self._rng.uniform(0.8, 1.0)
        self._not_before = self._monotonic() + wait_s
        self._failure, self.result = str(error), f"failed: {error}"
        self._journal.finish(before, seq, self.result)
        self._report_error(f"{decision.from_size} to {decision.to_size}: {error}", wait_s)

    def _note(self, term: Term, decision: Decision, result: str) -> None:
        """Record a decision that changes nothing; a repeated one only updates the last look."""
        self.result = result
        key = (decision.rule, decision.from_size, decision.to_size, decision.wanted, result)
        if key == self._last_note:
            change = f"{decision.from_size} to {decision.to_size}, {result}"
            self._journal.looked(term, f"{decision.rule}: {change}. {decision.why}".strip(". "))
            return
        self._journal.record(term, decision, result)
        self._last_note = key
        if result == DRY_RUN or decision.rule == "hold":
            self._announce(decision, result)

    def _announce(self, decision: Decision, result: str) -> None:
        self._emit.emit(
            events.AUTOSCALED,
            from_size=decision.from_size,
            to_size=decision.to_size,
            wanted=decision.wanted,
            controller=self._name,
            rule=decision.rule,
            result=result,
            why=decision.why,
        )

    def _report_error(self, error: object, retry_in_s: float) -> None:
        self._emit.emit(
            events.AUTOSCALER_BLIND,
            retry_in_s=retry_in_s,
            controller=self._name,
            error=str(error),
        )
