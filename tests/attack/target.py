"""The server under attack: a real `late serve` process with every port, and what is seen of it."""

from __future__ import annotations

import json
import os
import re
import resource
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from late.control import Control
from late.schema import migrate
from tests.attack.table import Row

MIB = 1024 * 1024
GROWTH = 100 * MIB
"""The memory that a server may take beyond what it has after its start."""
FILES = 8_192
EVERY_S = 0.25
QUEUES = ("honest", "other", "odd")
SCOPES = ("enqueue", "consume", "view", "operate")
MIGRATING = threading.Lock()
"""Alembic keeps the migration under way in its module, so there is one at a time in a process."""
BAD_LINES = re.compile(r"Traceback|\bERROR\b|heartbeat overdue|does not get on")


class Target:
    """A running server.

    Args:
        tokens: the secrets, by name. Each scope has one of its name; `all` has all of them,
            `narrow` has all for the queue `other` alone.
    """

    def __init__(
        self, store: str, url: str, process: subprocess.Popen[bytes], ports: Sequence[int],
        log: Path, tokens: dict[str, str],
    ) -> None:  # fmt: skip
        self.store, self.url, self.tokens = store, url, tokens
        self.http, self.rpc, self.health = ports
        self._process, self._log, self._read = process, log, 0
        self.start_bytes = 0

    @property
    def memory(self) -> int:
        """The resident bytes of the process now."""
        text = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+)", text)
        return int(found[1]) * 1024 if found else 0

    def row(self, attack: str) -> Row:
        return Row(attack, self.store)

    def as_json(self) -> str:
        """What another process needs to know to attack it."""
        return json.dumps([self.http, self.rpc, self.health, self.tokens])

    def status(self, port: int, path: str) -> int | None:
        """The status of a GET; None without any within 5 s."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as reply:
                return int(reply.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code
        except OSError:
            return None

    def metric(self, name: str) -> float:
        """The sum of a metric's series."""
        address = f"http://127.0.0.1:{self.health}/metrics"
        with urllib.request.urlopen(address, timeout=30) as reply:
            text = reply.read().decode()
        found = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, found))

    def new_lines(self) -> list[str]:
        """The lines of the log since the last call."""
        data = self._log.read_bytes()
        text, self._read = data[self._read :].decode(errors="replace"), len(data)
        return text.splitlines()

    @contextmanager
    def watched(self, row: Row) -> Iterator[None]:
        """Attack within this block. Its end looks at memory, log, life and heartbeat."""
        self.new_lines()
        before, lost = self.memory, self.metric("late_trust_lost_total")
        peak, silent, polls = before, 0, 0
        done = threading.Event()

        def poll() -> None:
            nonlocal peak, silent, polls
            while not done.wait(EVERY_S):
                peak = max(peak, self.memory)
                polls += 1
                silent += self.status(self.health, "/readyz") != 200

        thread = threading.Thread(target=poll)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
        row.notes.append(
            f"memory {self.start_bytes // MIB} MiB at its start, {peak // MIB} at most"
        )
        if peak > self.start_bytes + GROWTH:
            row.wrong.append(f"the server took {peak // MIB} MiB, from {self.start_bytes // MIB}")
        if silent:
            row.wrong.append(f"{silent} of {polls} probes of the health port were not 200")
        if self.metric("late_trust_lost_total") > lost:
            row.wrong.append("the heartbeat was overdue")
        if self.status(self.http, "/livez") != 200:
            row.wrong.append("the HTTP port does not answer afterwards")
        lines = [line for line in self.new_lines() if BAD_LINES.search(line)]
        row.wrong += [f"in the log: {line[:300]}" for line in lines[:5]]


@contextmanager
def running(store: str, url: str, folder: Path) -> Iterator[Target]:
    """Run `late serve` on an empty database, for the time of the block."""
    with MIGRATING:
        migrate.upgrade(url)
    with Control(url) as control:
        made = {scope: ([scope], ["*"]) for scope in SCOPES}
        made |= {"all": ([*SCOPES], ["*"]), "narrow": ([*SCOPES], ["other"])}
        tokens = {
            name: control.tokens.create(name, scopes=scopes, queues=queues)[0] or ""
            for name, (scopes, queues) in made.items()
        }
    ports = [_free_port() for _ in range(3)]
    log = folder / f"{store}.log"
    words = ["serve", "--url", url, "--auth", "--web-changes", "--rate", "5000"]
    words += ["--api-changes", "--signed-urls"]
    words += [word for queue in QUEUES for word in ("--pull", queue)]
    words += ["--http-port", f"{ports[0]}", "--grpc-port", f"{ports[1]}"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "late", *words, "--health-port", f"{ports[2]}"],
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES)),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    target = Target(store, url, process, ports, log, tokens)
    try:
        ends = time.monotonic() + 60
        while not all(target.status(port, "/readyz") == 200 for port in (ports[0], ports[2])):
            if process.poll() is not None or time.monotonic() > ends:
                raise SystemExit(f"the server does not start:\n{log.read_text()[-2_000:]}")
            time.sleep(0.1)
        target.start_bytes = target.memory
        yield target
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise SystemExit(
                f"the server did not stop within a minute:\n{log.read_text()[-2_000:]}"
            ) from None


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])
