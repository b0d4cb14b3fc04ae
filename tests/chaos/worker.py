"""A worker process of a storm: `python -m tests.chaos.worker`.

It is `late worker` with two things added from outside: what its store is asked to write goes into
the history, and a hook may stop or kill the process exactly there.

| what | from | |
|---|---|---|
| a hook at its next settlement | a file `armed-PID` in the storm's folder | `stop`: SIGSTOP itself when about to write it; `die`: SIGKILL itself when it is written and before hearing of it |
| a wrong clock | `LATE_CHAOS_SKEW_S` | how far it is ahead |
| a defect | `LATE_CHAOS_DEFECT` | `unfenced`: a refused settlement is written all the same; `late_record`: each is written `LATE_RECORD_S` later, as long as there are faults |
"""  # noqa: E501

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

import late.worker.worker
from late import events
from late.errors import StoreError
from late.observability import logs as log
from late.store import open_store
from late.store.base import Lease, Settlement, SettleResult
from late.store.sqlite.store import SqliteStore
from tests.chaos import workload
from tests.chaos.workload import recorder

LATE_RECORD_S = 8.0


class RecordingStore:
    """The worker's store; everything else of it is as it was."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._armed = Path(workload.FOLDER, f"armed-{os.getpid()}")
        self._over = Path(workload.FOLDER, "over")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def acquire(self, worker_id: str, shards: Sequence[Any]) -> list[Lease]:
        leases: list[Lease] = await self._inner.acquire(worker_id, shards)
        for lease in leases:
            recorder.write(
                "lease", group=lease.group, shard=lease.shard_id, epoch=lease.epoch, word="acquire"
            )
        return leases

    async def settle(self, settlements: Sequence[Settlement]) -> list[SettleResult]:
        for one in settlements:
            _wrote(one, "invoke")
        await self._stopped()
        if workload.DEFECT == "late_record" and not self._over.exists():
            await asyncio.sleep(LATE_RECORD_S)
        try:
            results: list[SettleResult] = await self._inner.settle(settlements)
        except StoreError:
            for one in settlements:
                _wrote(one, "info")
            raise
        self._hooked("die", signal.SIGKILL)
        if workload.DEFECT == "unfenced":
            results = [
                await self._insist(one) if result is SettleResult.FENCED else result
                for one, result in zip(settlements, results, strict=True)
            ]
        for one, result in zip(settlements, results, strict=True):
            _wrote(one, "ok" if result is SettleResult.SETTLED else "fail")
        return results

    async def _insist(self, settlement: Settlement) -> SettleResult:
        """As if there were no fence: after whatever the new owner has written."""
        for seq in range(settlement.seq + 1, settlement.seq + 1000):
            again = msgspec.structs.replace(settlement, seq=seq)
            if await self._inner.settle([again]) == [SettleResult.SETTLED]:
                return SettleResult.SETTLED
        return SettleResult.FENCED

    async def _stopped(self) -> None:
        """Stop where a test has asked for it. On SQLite between two transactions of the store's
        thread: within one it would keep the file's lock, and nobody could take over."""
        if isinstance(self._inner, SqliteStore):
            await self._inner._on_connection(lambda _: self._hooked("stop", signal.SIGSTOP))
        else:
            self._hooked("stop", signal.SIGSTOP)

    def _hooked(self, hook: str, number: signal.Signals) -> None:
        if not self._armed.exists() or self._armed.read_text() != hook:
            return
        self._armed.unlink()
        word = "kill" if number is signal.SIGKILL else "stop"
        recorder.write("fault", word=word, target=str(os.getpid()))
        os.kill(os.getpid(), number)


def _wrote(settlement: Settlement, type: Any) -> None:
    recorder.write(
        "settle", type, group=settlement.group, shard=settlement.shard_id, epoch=settlement.epoch
    )


def _skew(seconds: float) -> None:
    """Set the clock of this process wrong, as far as Python code can see."""
    right, right_ns = time.time, time.time_ns
    time.time = lambda: right() + seconds
    time.time_ns = lambda: right_ns() + round(seconds * 1e9)


def main() -> int:
    faulthandler.register(signal.SIGUSR1)  # where a worker that does nothing stands
    _skew(float(os.environ.get("LATE_CHAOS_SKEW_S", "0")))
    log.configure("INFO")
    log.log_events(events.default)
    late.worker.worker.open_store = lambda url: RecordingStore(open_store(url))  # type: ignore[assignment]
    up = Path(workload.FOLDER, f"up-{os.getpid()}")
    events.default.subscribe(lambda *_: up.touch(), [events.WORKER_STARTED])
    return late.worker.worker.run(workload.app)


if __name__ == "__main__":
    sys.exit(main())
