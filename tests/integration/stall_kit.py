"""Workers of `stall_app`, and what the database and their health ports say of them."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import msgspec
from sqlalchemy import select

from late.control import Control
from late.model.task import Usage
from late.schema.engine import make_engine, reading
from late.schema.tables import settlement
from tests.integration.kill_kit import Fleet, until

APP = ("tests.integration.stall_app:app",)


class StallFleet(Fleet):
    """Workers of `stall_app`, each with a health port of its own."""

    def __init__(
        self, url: str, folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(url, folder, environment)
        self.url = url
        self.ports: list[int] = []

    def start(self) -> None:
        port = free_port()
        self.ports.append(port)
        with (self.folder / f"worker-{len(self.processes)}.log").open("wb") as log:
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "late.cli", "worker", *APP, "--health-port", str(port)],
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )

    def pause(self, number: int) -> None:
        self.processes[number].send_signal(signal.SIGSTOP)
        self.wait_paused(number)

    def wait_paused(self, number: int) -> None:
        until(lambda: self.state(number) == "T", self)

    def resume(self, number: int) -> None:
        self.processes[number].send_signal(signal.SIGCONT)

    def state(self, number: int) -> str:
        """What the system says of the process: `T` is stopped."""
        text = Path(f"/proc/{self.processes[number].pid}/stat").read_text()
        return text.rpartition(")")[2].split()[0]

    def witnessed(self, number: int) -> list[int]:
        """What this process has written, in order."""
        path = self.folder / f"{self.processes[number].pid}.txt"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def log(self, number: int) -> str:
        return (self.folder / f"worker-{number}.log").read_text()

    def health(self, number: int, path: str = "/livez") -> tuple[int, dict[str, object]]:
        """Status and body; (0, {}) while nobody listens."""
        try:
            with urlopen(f"http://127.0.0.1:{self.ports[number]}{path}", timeout=120) as reply:
                return reply.status, json.load(reply)
        except HTTPError as refused:
            with refused:
                return refused.code, json.load(refused)
        except OSError:
            return 0, {}

    def owned_by(self, number: int) -> set[int]:
        """The shards that it holds, from the database."""
        pid = self.processes[number].pid
        with Control(self.url) as control:
            found = control.status.read(limit=1)
        ids = {w.worker_id for w in found.workers if w.address.endswith(f":{pid}")}
        return {shard.shard_id for shard in found.shards if shard.owner in ids}


def done(url: str) -> int:
    """How many tasks the journal says have ended well."""
    engine = make_engine(url)
    with reading(engine) as connection:
        texts = [text for (text,) in connection.execute(select(settlement.c.usage)) if text]
    engine.dispose()
    usages = [usage for text in texts for usage in msgspec.json.decode(text, type=list[Usage])]
    return sum(usage.count for usage in usages if usage.outcome == "done")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def zombies(url: str) -> list[tuple[int, int]]:
    """(shard, seq) of settlements under an epoch that was over: the journal, in order of `seq`,
    must never fall back to an older one."""
    engine = make_engine(url)
    with reading(engine) as connection:
        rows = connection.execute(
            select(settlement.c.shard_id, settlement.c.seq, settlement.c.epoch).order_by(
                settlement.c.consumer_group, settlement.c.shard_id, settlement.c.seq
            )
        ).all()
    engine.dispose()
    highest: dict[int, int] = {}
    found = []
    for row in rows:
        if row.epoch < highest.get(row.shard_id, 0):
            found.append((row.shard_id, row.seq))
        highest[row.shard_id] = max(row.epoch, highest.get(row.shard_id, 0))
    return found
