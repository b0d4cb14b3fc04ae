"""The processes of a storm: workers and producers, as a supervisor would run them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from tests.chaos.network import Network
from tests.chaos.producers import Spec
from tests.support.history import Recorder

PATIENCE_S = 300.0
"""Only a broken worker reaches it, on whatever machine this is."""
HOOK_S = 2.0
"""How long a worker may have nothing to settle until another one is tried."""


class Place:
    """Where one worker after the other runs, behind one network."""

    def __init__(self, network: Network, extra: Mapping[str, str]) -> None:
        self.network = network
        self.extra = extra
        """What differs for the workers here."""
        self.process: subprocess.Popen[bytes] | None = None


class Fleet:
    """Workers, each behind a network of its own, and producers behind one."""

    def __init__(
        self, folder: Path, environment: Mapping[str, str], make: Callable[[], Network]
    ) -> None:
        self.folder = folder
        self.places: list[Place] = []
        self.producers: list[subprocess.Popen[bytes]] = []
        self.producers_network = make()
        self._make = make
        self._environment = {**os.environ, **environment, "LATE_CHAOS_DIR": str(folder)}
        self._recorder = Recorder(folder)
        self._logs = 0

    # ------------------------------------------------------------------ workers

    def add(self, **extra: str) -> Place:
        """One more worker, in a new place."""
        place = Place(self._make(), extra)
        self.places.append(place)
        self.start(place)
        return place

    def start(self, place: Place) -> None:
        place.process = self._spawn("worker", [], place.network, place.extra)

    def kill(self, place: Place) -> None:
        process = place.process
        assert process is not None
        if process.poll() is None:
            self.record("kill", process.pid)
            process.kill()
        process.wait()

    def pause(self, place: Place, ttl_s: float) -> None:
        """SIGSTOP, and SIGCONT once its shards have other owners."""
        process = place.process
        assert process is not None
        self.record("stop", process.pid)
        process.send_signal(signal.SIGSTOP)
        self._outsleep(process, ttl_s)

    def _outsleep(self, process: subprocess.Popen[bytes], ttl_s: float) -> None:
        """Let a stopped process go on when its lease has run out and nobody takes shards any more;
        after three leases it does in any case."""
        deadline = time.monotonic() + 3 * ttl_s
        time.sleep(0.6 * ttl_s)  # a heartbeat is at most a third old: they are its own until then
        before = seen = self._acquired(process)
        since = time.monotonic()
        while time.monotonic() < deadline:
            now = self._acquired(process)
            if now != seen:
                seen, since = now, time.monotonic()
            if seen != before and time.monotonic() - since > ttl_s / 2:
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGCONT)
        self.record("cont", process.pid)

    def _acquired(self, process: subprocess.Popen[bytes]) -> int:
        """How many shards others have acquired so far."""
        return sum(
            path.read_bytes().count(b'"lease"')
            for path in self.folder.glob("*.jsonl")
            if path.stem != str(process.pid)
        )

    def at_settle(self, place: Place, hook: str, ttl_s: float) -> bool:
        """Let it stop, or die, at its next settlement; it goes on as `pause` says, or as another
        process. False for a worker that has nothing to settle."""
        process = place.process
        assert process is not None
        armed = self.folder / f"armed-{process.pid}"
        armed.write_text(hook)
        deadline = time.monotonic() + HOOK_S
        while armed.exists():
            if time.monotonic() > deadline:
                armed.unlink(missing_ok=True)
                return False
            time.sleep(0.01)
        if hook == "die":
            process.wait(PATIENCE_S)
            self.start(place)
        else:
            self._outsleep(process, ttl_s)
        return True

    def up(self, place: Place) -> bool:
        """Whether its process lives and has begun to work."""
        process = place.process
        return process is not None and process.poll() is None and self._was_up(process)

    def _was_up(self, process: subprocess.Popen[bytes]) -> bool:
        return (self.folder / f"up-{process.pid}").exists()

    def all_up(self) -> bool:
        return all(self.up(place) for place in self.places)

    def supervise(self) -> None:
        """Start again what ended before it had begun to work: its database was down."""
        for place in self.places:
            process = place.process
            if process is None or process.poll() is None or self._was_up(process):
                continue
            self.start(place)

    def stop(self) -> list[int]:
        """SIGTERM to all workers; their exit codes."""
        living = [place.process for place in self.places if place.process is not None]
        for process in living:
            process.terminate()
        return [process.wait(PATIENCE_S) for process in living]

    # ------------------------------------------------------------------ producers

    def produce(self, spec: Spec) -> None:
        argument = msgspec.json.encode(spec).decode()
        self.producers.append(self._spawn("producers", [argument], self.producers_network, {}))

    def kill_producer(self, target: float) -> None:
        """The child that works at this moment; its parent makes another."""
        number = int(target * len(self.producers))
        with suppress(OSError, ValueError):
            pid = int((self.folder / f"producer-{number}.pid").read_text())
            os.kill(pid, signal.SIGKILL)

    def produced(self) -> bool:
        """Whether all producers are done."""
        codes = [process.poll() for process in self.producers]
        assert not any(codes), f"a producer failed\n{self.logs()}"
        return None not in codes

    # ------------------------------------------------------------------ all

    def record(self, word: str, pid: int | None = None) -> None:
        """A fault, in the history; without a process it hits all of them."""
        self._recorder.write("fault", word=word, target="" if pid is None else str(pid))

    def close(self) -> None:
        """End whatever still runs."""
        running = self.producers + [p.process for p in self.places if p.process is not None]
        for process in running:
            # A producer has children; all are of the group that it leads.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def logs(self) -> str:
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-1_500:]}"
            for path in sorted(self.folder.glob("*.log"))[-8:]
        )

    def _spawn(
        self, module: str, arguments: list[str], network: Network, extra: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        self._logs += 1
        with (self.folder / f"{self._logs:03d}-{module}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", f"tests.chaos.{module}", *arguments],
                env={**self._environment, **network.environment, **extra},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
