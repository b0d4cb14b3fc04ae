"""Workers that fork from a server which has imported everything: a start costs no second import.

The server is the one of `multiprocessing`. A worker runs the real command with an environment of
its own, can be killed like any process, and its exit code is the command's.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess

from tests.integration.kill_kit import Fleet

IMPORTS = [
    "late.cli.main", "late.worker.worker", "late.dispatcher.transactions.turn_queue",
    "late.store.postgres.store", "late.store.sqlite.store", "late.outbox.adapters.psycopg_shared",
    "late.outbox.adapters.sqlite_shared", "late.control.control", "pydantic.type_adapter", "uvloop",
]  # fmt: skip
"""Modules that nothing of a test changes. An app is imported in each worker."""
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(IMPORTS)


class ForkedFleet(Fleet):
    """A fleet whose workers start within a moment."""

    def start(self) -> None:
        log = self.folder / f"worker-{len(self.processes)}.log"
        log.touch()
        command = ["late", "worker", self._app, *self._groups]
        forked = _context.Process(target=_work, args=(command, dict(self._environment), str(log)))
        forked.start()
        self.processes.append(_Started(forked))


class _Started(subprocess.Popen[bytes]):
    """A forked worker with the methods that a fleet uses."""

    def __init__(self, process: ForkServerProcess) -> None:
        assert process.pid is not None
        self.pid = process.pid
        self._process = process

    def __del__(self) -> None:
        """Leave the process alone."""

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (code := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def send_signal(self, sig: int) -> None:
        os.kill(self.pid, sig)


def _work(command: Sequence[str], environment: Mapping[str, str], log: str) -> None:
    os.environ.clear()
    os.environ.update(environment)
    with open(log, "ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    sys.argv = [*command]
    from late.cli.main import main

    main()
