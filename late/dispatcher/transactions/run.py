"""One shared transaction: the handlers of several tasks, one after the other, in one thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import copy_context
from typing import Any

from late.clock import Monotonic
from late.dispatcher.local.threads import Threads
from late.errors import TransactionAborted
from late.handler.classify import INTERRUPTED, RetryRule, Scrub, Verdict, raised, returned
from late.handler.context import AsyncContext, AttemptOver, tag_of
from late.handler.shared_context import SharedContext
from late.model.task import Attempt
from late.observability import conflicts
from late.outbox.conflict_errors import note
from late.outbox.shared import SharedTransaction

HOLD_S = 0.020
"""No handler begins in a transaction that is older: it holds locks, and others wait for the end of
their tasks."""
TRIES = 3
"""The most repeats of an attempt where the database, and not its handler, was the cause."""


class Turn:
    """One attempt that runs in a shared transaction, from its arrival to its outcome."""

    __slots__ = (
        "again", "alone", "attempt", "begun", "busy_s", "committing", "context", "done", "ended",
        "fn", "is_async", "over", "recorded", "rule", "run", "tries", "variables", "verdict",
        "withdrawn", "withheld",
    )  # fmt: skip

    def __init__(
        self,
        attempt: Attempt,
        context: AsyncContext,
        fn: Callable[[Any], object],
        rule: RetryRule | None,
        ended: asyncio.Future[None],
        *,
        is_async: bool = False,
    ) -> None:
        self.attempt = attempt
        self.context = context
        self.fn = fn
        self.rule = rule
        self.ended = ended
        """Done when `verdict` is final, or when its slot is told to end."""
        self.over = False
        """`verdict` is final."""
        self.is_async = is_async
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


def unbegun(turns: Iterable[Turn]) -> list[Attempt]:
    """Return the attempts whose handler was not called, or is to be called again: of these a death
    of the worker is no end. One that was taken out of its queue stays so until its outcome is told.
    """
    return [turn.attempt for turn in turns if not turn.begun]


class Run:
    """A transaction and its turns, `def` handlers that run in one thread. All else is called on the
    loop."""

    def __init__(
        self,
        turns: Iterable[Turn],
        begin: Callable[[bool], SharedTransaction],
        may_start: Callable[[Turn], bool],
        scrub: Scrub | None = None,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self._begin = begin
        self._may_start = may_start
        self._scrub = scrub
        self._monotonic = monotonic
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
        self.given_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.cancelling: asyncio.Task[None] | None = None
        """Takes the locks of `tx` from a handler that was given up, in another thread."""
        for turn in self.unstarted:
            turn.run = self

    async def serve(self, threads: Threads) -> None:
        """Run the handlers. Afterwards `tx` is open, unless it is `lost`.

        Raises:
            RuntimeError: there is no thread, and no handler has begun.
        """
        await threads.run(self.work)

    def interrupt(self) -> None:
        """Tell the present handler to end. Nothing does that in a thread but its connection."""

    def work(self) -> None:
        """Run the handlers in this thread. Raises nothing."""
        try:
            self.tx = tx = self._begin(False)
            self._take_turns(tx)
            self._last(tx)
        except BaseException as error:
            self.lost, self.error = True, error

    def _last(self, tx: SharedTransaction) -> None:
        if not self.lost and any(turn.done for turn in self.ended):
            tx.last()
        elif not self.lost:
            tx.roll_back()

    def _take_turns(self, tx: SharedTransaction) -> None:
        began, first = self._monotonic(), True
        while self._goes_on(began):
            if not first:
                tx.next()  # Before the turn is taken: the worker may not be trusted any more then.
            if (turn := self._next(began)) is None:
                return
            self._take_turn(tx, turn, first=first)
            first = False
            self._over(turn)

    def _over(self, turn: Turn) -> None:
        with self._lock:
            self.current = None
            self.ended.append(turn)

    @property
    def is_transient(self) -> bool:
        """True if a repeat may do better than this one, which has failed as a whole."""
        return self.error is None or self.tx is None or self.tx.is_transient(self.error)

    def is_held(self, for_s: float) -> bool:
        """Return whether its present turn has taken longer than that."""
        with self._lock:
            return self.current is not None and self._monotonic() - self.current.begun > for_s

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
            if not self.given_up.done():
                self.given_up.set_result(None)
            found = [*self.ended, *self.unstarted]
            self.ended.clear()
            self.unstarted.clear()
        return found

    def _goes_on(self, began: float) -> bool:
        """Return whether one more handler may begin, in a transaction that began then."""
        if self.over or self.lost or not self.unstarted:
            return False
        return not self.ended or self._monotonic() - began <= HOLD_S

    def _next(self, began: float) -> Turn | None:
        with self._lock:
            if not (self._goes_on(began) and self._may_start(self.unstarted[0])):
                return None
            self.current = turn = self.unstarted.popleft()
            turn.begun = self._monotonic()
            return turn

    def _take_turn(self, tx: SharedTransaction, turn: Turn, *, first: bool) -> None:
        """Run one handler, and take back what it did unless it is done."""
        kept, error = False, None
        try:
            turn.context.heartbeat()  # Its time-out counts from here.
            kept = turn.variables.run(self._call, tx, turn)
        except BaseException as failure:  # SystemExit in a handler fails it, no more.
            error = self._raised(turn, failure)
        turn.busy_s = self._monotonic() - turn.begun
        tx.end_session()
        if not kept:
            self._undone(tx, turn, error, tx.undo(), first=first)

    def _call(self, tx: SharedTransaction, turn: Turn) -> bool:
        """Run the handler, and return whether what it did is kept."""
        conflicts.use(tag_of(turn.attempt))
        context = SharedContext(turn.context, tx)
        if is_done := self._is_done(turn, context.counted(turn.fn(context))):
            tx.flush()
            self._check(tx)
        return is_done

    @staticmethod
    def _is_done(turn: Turn, value: object) -> bool:
        turn.verdict = returned(value)
        turn.done = turn.verdict.kind == "done"
        return turn.done

    @staticmethod
    def _check(tx: SharedTransaction) -> None:
        if (error := tx.error) is not None:
            raise error

    def _raised(self, turn: Turn, failure: BaseException) -> BaseException | None:
        """Take in what a handler has raised, and return it if it is an error."""
        if isinstance(failure, AttemptOver):
            turn.verdict, turn.done = INTERRUPTED, False
            return None
        turn.verdict = raised(failure, turn.rule, self._scrub)
        turn.done = turn.verdict.kind == "done"  # `AlreadyDone`: it ends, without effects.
        return failure

    def _undone(
        self,
        tx: SharedTransaction,
        turn: Turn,
        error: BaseException | None,
        undone: bool,
        *,
        first: bool,
    ) -> None:
        """Take in whether what a handler did could be taken back."""
        self.lost = not undone
        if turn.verdict.kind == "failed" and error is not None:
            self.error = error
            # What others left in the transaction may be the cause: a table, a lock.
            shared = not first and tx.is_of_database(error)
            aborted = isinstance(error, TransactionAborted)
            turn.again = shared or self.lost or aborted or tx.is_transient(error)
            note(error, tag_of(turn.attempt), turn.begun)
