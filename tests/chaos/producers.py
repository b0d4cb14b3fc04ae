"""A producer process of a storm: `python -m tests.chaos.producers SPEC`.

It commits, rolls back, dies within a transaction, and loses the answer to a COMMIT, and writes each
step down before and after. The process itself only forks: whoever dies is a child of it, and the
next one goes on with the following transaction.

Each transaction also inserts a row of business, by which the judge sees afterwards what was
committed, whatever the producer had heard of it.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from late.app.task import Call
from late.outbox import connect
from late.store import open_store
from tests.chaos import workload
from tests.chaos.plan import Deed, Size, Traits, Work, deeds
from tests.chaos.workload import recorder

TABLE = "chaos_tx"
CUT = "chaos-cut-"
"""In a COMMIT: the proxy cuts the link `before` or `after` it. In a tag, where there is no SQL."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STATE = struct.Struct("qq")


class Spec(msgspec.Struct, frozen=True):
    """What one producer is to do."""

    number: int
    seed: int
    traits: Traits
    size: Size
    quota: int
    """Tasks to commit."""
    pause_s: float
    """Between two transactions, about."""


class RolledBack(Exception):
    """The business has changed its mind."""


class Producer:
    """One life of a producer: from the transaction after the last to the end of its work, or its
    own."""

    def __init__(self, spec: Spec, state: mmap.mmap) -> None:
        self.spec = spec
        self._state = state
        self._over = Path(workload.FOLDER, "over")
        self._asked = False
        self._kept: Any = None

    def live(self) -> None:
        spec = self.spec
        begin, committed = _STATE.unpack(self._state[: _STATE.size])
        due = time.monotonic()
        for number, deed in enumerate(deeds(spec.seed, spec.number, spec.traits, spec.size)):
            if number < begin:
                continue
            if os.getppid() == 1:
                return  # the storm is gone
            self._state[: _STATE.size] = _STATE.pack(number + 1, committed)
            committed += self.transaction(f"p{spec.number}x{number}", deed)
            if committed >= spec.quota and self._over.exists():
                return
            # On time as long as the machine can; there is work until the faults are over.
            due += 2 * deed.rest * spec.pause_s * (5 if committed >= spec.quota else 1)
            if not self._over.exists():
                time.sleep(max(0.0, due - time.monotonic()))

    def transaction(self, tx: str, deed: Deed) -> int:
        """How many of its tasks are known to be committed."""
        self._asked = False
        try:
            with self._connected() as connection:
                self._fill(connection, tx, deed)
                if self.spec.traits.writers:
                    # Most are short, some are long: so positions become visible out of order.
                    time.sleep(0.3 if deed.rest > 0.97 else deed.rest * 0.01)
                self._end(connection, tx, deed)
        except RolledBack:
            recorder.write("commit", "fail", tx=tx)
            return 0
        except Exception as error:
            # Whatever a driver raises. Nothing that was not asked to commit is committed.
            recorder.write("commit", "info" if self._asked else "fail", tx=tx)
            print(tx, deed.fate, type(error).__name__, str(error)[:200], flush=True)
            time.sleep(random.uniform(0.02, 0.2))
            return 0
        recorder.write("commit", "ok", tx=tx)
        return len(deed.works)

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """A connection in a transaction; the same again as long as nothing went wrong with it,
        where a connection is dear."""
        if not self.spec.traits.writers:
            with connect(workload.URL) as connection:
                yield connection
            return
        if self._kept is None:
            self._context = connect(workload.URL)
            self._kept = self._context.__enter__()
        try:
            yield self._kept
            self._kept.autocommit = False
        except RolledBack:
            self._kept.rollback()
            self._kept.autocommit = False
            raise
        except BaseException:
            kept, self._kept = self._kept, None
            kept.close()
            raise

    def _fill(self, connection: Any, tx: str, deed: Deed) -> None:
        undone = deed.fate == "savepoint"
        self._write(connection, tx, deed, deed.works)
        if undone:
            inner = f"{tx}s"
            connection.execute("savepoint inner_one")
            self._write(connection, inner, deed, deed.works[:2])
            connection.execute("rollback to savepoint inner_one")
            recorder.write("commit", "fail", tx=inner)

    def _write(self, connection: Any, tx: str, deed: Deed, works: tuple[Work, ...]) -> None:
        if hasattr(connection, "execute"):
            connection.execute(f"insert into {TABLE} (tx) values ('{tx}')")
        else:
            connection.insert(TABLE, ["tx"], [[tx]])
        calls, dues = [], []
        for work, share in zip(works, deed.delays, strict=False):
            call, due_us = self._call(work, share)
            calls.append(call)
            dues.append(due_us)
        ids = workload.app.enqueue_many(connection, calls)
        for task, due_us in zip(ids, dues, strict=True):
            recorder.write("enqueue", task=task, tx=tx, at_us=due_us)

    def _call(self, work: Work, share: float) -> tuple[Call, int]:
        task = workload.app.tasks[work]
        if work != "timed":
            return task.call(), 0
        at = datetime.now(UTC) + timedelta(seconds=share * self.spec.size.timed_within_s)
        return task.options(at=at).call(), (at - _EPOCH) // timedelta(microseconds=1)

    def _end(self, connection: Any, tx: str, deed: Deed) -> None:
        if deed.fate == "rollback":
            raise RolledBack
        if deed.fate == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        self._asked = True
        recorder.write("commit", "invoke", tx=tx)
        if deed.fate == "prepare":
            self._in_two_phases(connection, tx, deed)
        elif deed.fate == "cut":
            self._cut(connection, CUT + ("after" if deed.kept else "before"))
        else:
            connection.commit()

    def _in_two_phases(self, connection: Any, tx: str, deed: Deed) -> None:
        connection.execute(f"prepare transaction '{tx}'")
        connection.autocommit = True
        if not self.spec.size.calm and deed.rest > 0.9:
            os.kill(os.getpid(), signal.SIGKILL)  # the storm ends what is left
        connection.execute(f"{'commit' if deed.kept else 'rollback'} prepared '{tx}'")
        if not deed.kept:
            raise RolledBack

    def _cut(self, connection: Any, mark: str) -> None:
        if hasattr(connection, "execute"):
            connection.execute(f"commit /* {mark} */")
        else:
            connection.transaction_tag = mark
            connection.commit()


def main(argument: str) -> int:
    """Fork one child after the other, until one ends by itself."""
    spec = msgspec.json.decode(argument, type=Spec)
    state = mmap.mmap(-1, mmap.PAGESIZE)  # shared with the children
    state[: _STATE.size] = _STATE.pack(0, 0)
    warm(workload.URL)
    current = Path(workload.FOLDER, f"producer-{spec.number}.pid")
    while True:
        child = os.fork()
        if child == 0:
            try:
                Producer(spec, state).live()
                os._exit(0)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
        current.write_text(str(child))
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            return os.WEXITSTATUS(status)
        recorder.write("fault", word="kill", target=str(child))


def warm(url: str) -> None:
    """Import what the children need, without a connection: those must not be inherited."""
    open_store(url)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
