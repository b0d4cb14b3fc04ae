"""One shared transaction: the handlers of several tasks, one after the other, in one thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import copy_context
from time import monotonic
from typing import TYPE_CHECKING, Any

from late.handler.classify import INTERRUPTED, RetryRule, Scrub, Verdict, raised, returned
from late.handler.context import AsyncContext, AttemptOver
from late.handler.shared_context import SharedContext
from late.model.task import Attempt
from late.outbox.shared import SharedTransaction

if TYPE_CHECKING:
    import asyncio

HOLD_S = 0.020
"""No handler begins in a transaction that is older: it holds locks, and others wait for the end of
their tasks."""
TRIES = 3
"""The most repeats of an attempt where the database, and not its handler, was the cause."""


class Turn:
    """One attempt that runs in a shared transaction, from its arrival to its outcome."""

    __slots__ = (
        "again", "alone", "attempt", "begun", "busy_s", "committing", "context", "done", "ended",
        "fn", "recorded", "rule", "run", "tries", "variables", "verdict", "withdrawn", "withheld",
    )  # fmt: skip

    def __init__(
        self,
        attempt: Attempt,
        context: AsyncContext,
        fn: Callable[[SharedContext], object],
        rule: RetryRule | None,
        ended: asyncio.Future[None],
    ) -> None:
        self.attempt = attempt
        self.context = context
        self.fn = fn
        self.rule = rule
        self.ended = ended
        """Done when `verdict` is final."""
        self.variables = copy_context()
        self.verdict: Verdict = INTERRUPTED
        self.done = False
        """Its handler has returned, and what it did is in the transaction."""
        self.recorded = False
        """The journal has its end, and what it did is committed."""
        self.again = False
        """It is to run once more, without another transaction's tasks, at no cost of an attempt."""
        self.alone = False
        self.tries = 0
        self.begun = 0.0
        self.busy_s = 0.0
        self.run: Run | None = None
        self.committing = False
        """Its end is with the database: nothing else may be said of it before that is known."""
        self.withdrawn = False
        """Its slot has given it up: it must not run again here."""
        self.withheld: Any = None
        """The outcome that its slot has reported while it was `committing`."""


class Run:
    """A transaction and its turns. `work` is called in a thread, all else on the loop."""

    def __init__(
        self,
        turns: Iterable[Turn],
        begin: Callable[[], SharedTransaction],
        may_start: Callable[[Turn], bool],
        scrub: Scrub | None = None,
    ) -> None:
        self._begin = begin
        self._may_start = may_start
        self._scrub = scrub
        self._lock = threading.Lock()
        """Held by whoever changes what the turns are."""
        self.unstarted = deque(turns)
        self.ended: list[Turn] = []
        """Turns whose handler has returned or raised, and those that were not begun."""
        self.current: Turn | None = None
        self.tx: SharedTransaction | None = None
        self.lost = False
        """The transaction has failed as a whole; `error` says why."""
        self.error: BaseException | None = None
        self.over = False
        """It was given up: it must not commit."""
        for turn in self.unstarted:
            turn.run = self

    def work(self) -> None:
        """Run the handlers. Raises nothing: `tx` is open, unless `lost`."""
        try:
            self.tx = tx = self._begin()
            self._take_turns(tx)
            if not self.lost and any(turn.done for turn in self.ended):
                tx.last()
            elif not self.lost:
                tx.roll_back()
        except BaseException as error:
            self.lost, self.error = True, error

    def _take_turns(self, tx: SharedTransaction) -> None:
        began, first = monotonic(), True
        while not self.lost and (turn := self._next(began)) is not None:
            if not first:
                try:
                    tx.next()
                except BaseException:  # The one before has spoilt it: this one has not begun.
                    with self._lock:
                        self.unstarted.appendleft(turn)
                        self.current = None
                    raise
            self._take_turn(tx, turn, first=first)
            first = False
            with self._lock:
                self.current = None
                self.ended.append(turn)

    @property
    def queued(self) -> list[Attempt]:
        """The attempts that have not begun."""
        with self._lock:
            return [turn.attempt for turn in self.unstarted]

    @property
    def is_transient(self) -> bool:
        """True if a repeat may do better than this one, which has failed as a whole."""
        return self.error is None or self.tx is None or self.tx.is_transient(self.error)

    def is_held(self, for_s: float) -> bool:
        """Return whether its present turn has taken longer than that."""
        with self._lock:
            return self.current is not None and monotonic() - self.current.begun > for_s

    def take_back(self) -> list[Turn]:
        """Take out what has not begun."""
        with self._lock:
            found = list(self.unstarted)
            self.unstarted.clear()
        return found

    def leave(self, turn: Turn) -> bool:
        """Take `turn` out, if it has not begun; return whether it had not."""
        with self._lock:
            if turn not in self.unstarted:
                return False
            self.unstarted.remove(turn)
        return True

    def give_up(self) -> list[Turn]:
        """Let it never commit; take out all turns but the present one, which may not end."""
        with self._lock:
            self.over = True
            found = [*self.ended, *self.unstarted]
            self.ended.clear()
            self.unstarted.clear()
        return found

    def _next(self, began: float) -> Turn | None:
        with self._lock:
            if self.over or not self.unstarted:
                return None
            now = monotonic()
            if self.ended and now - began > HOLD_S:
                return None
            if not self._may_start(self.unstarted[0]):
                return None
            self.current = turn = self.unstarted.popleft()
            turn.begun = now
            return turn

    def _take_turn(self, tx: SharedTransaction, turn: Turn, *, first: bool) -> None:
        """Run one handler, and take back what it did unless it is done."""
        error: BaseException | None = None
        try:
            turn.context.heartbeat()  # Its time-out counts from here.
            context = SharedContext(turn.context, tx.connection)
            turn.verdict = returned(turn.variables.run(turn.fn, context))
            turn.done = turn.verdict.kind == "done"
            if turn.done and (error := tx.error) is not None:
                raise error
        except AttemptOver:
            turn.verdict = INTERRUPTED
        except BaseException as failure:  # SystemExit in a handler fails it, no more.
            error = failure
            turn.verdict = raised(failure, turn.rule, self._scrub)
            turn.done = turn.verdict.kind == "done"  # `AlreadyDone`: it ends, without effects.
        else:
            if turn.done:
                turn.busy_s = monotonic() - turn.begun
                return
        turn.busy_s = monotonic() - turn.begun
        self.lost = not tx.undo()
        if turn.verdict.kind == "failed" and error is not None:
            self.error = error
            # What others left in the transaction may be the cause: a table, a lock.
            shared = not first and tx.is_of_database(error)
            turn.again = shared or self.lost or tx.is_transient(error)
