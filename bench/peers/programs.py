"""Runs a peer's adapter: one command to its end, or its worker for the time of a block."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers.environments import Environment

COMMAND_TIMEOUT_S = 900.0
STOP_TIMEOUT_S = 30.0


class Failed(Exception):
    """An adapter ended with an error, or stood still; the message holds the end of its output."""


@dataclass(slots=True)
class Running:
    """A peer's worker."""

    process: subprocess.Popen[bytes]
    marks: Path
    output: Path

    def check(self) -> None:
        """Raises:
        Failed: it has ended.
        """
        if self.process.poll() is not None:
            said = self.output.read_text(errors="replace")[-2_000:]
            raise Failed(f"the worker ended with {self.process.returncode}:\n{said}")


@dataclass(frozen=True, slots=True)
class Program:
    """One peer's adapter against one database."""

    environment: Environment
    url: str
    redis: str
    folder: Path
    """The folder for marks and output."""

    def _variables(self) -> dict[str, str]:
        return {
            **os.environ,
            **self.environment.variables,
            "BENCH_URL": self.url,
            "BENCH_REDIS": self.redis,
        }

    def run(self, *command: object) -> dict[str, Any]:
        """Run one command; what its last line of output says.

        Raises:
            Failed: it ended with an error, or not at all.
        """
        words = [*self.environment.command, *map(str, command)]
        try:
            done = subprocess.run(
                words,
                cwd=self.environment.folder,
                env=self._variables(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=COMMAND_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            raise Failed(f"{command[0]} took more than {COMMAND_TIMEOUT_S:g} s") from late
        if done.returncode:
            raise Failed(f"{command[0]} ended with {done.returncode}:\n{done.stderr[-2_000:]}")
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return answer

    @contextmanager
    def worker(self, number: int = 0) -> Iterator[Running]:
        """One of the peer's workers: stopped with SIGTERM as by a deploy, killed if it stays.

        It leads a group of processes, so that nothing of it is left behind.
        """
        marks, output = self.folder / f"marks-{number}", self.folder / f"worker-{number}.log"
        marks.write_bytes(b"")
        with output.open("wb") as log:
            process = subprocess.Popen(
                [*self.environment.command, "work"],
                cwd=self.environment.folder,
                env=self._variables() | {"BENCH_MARKS": str(marks)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield Running(process, marks, output)
        finally:
            _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End it, and whatever is left of its group."""
    with suppress(subprocess.TimeoutExpired):
        process.terminate()
        process.wait(STOP_TIMEOUT_S)
    _signal_group(process.pid, signal.SIGKILL)
    process.wait()


def _signal_group(pid: int, number: signal.Signals) -> None:
    """To what is left of a worker's group; its leader may be gone already."""
    with suppress(ProcessLookupError):
        os.killpg(pid, number)
