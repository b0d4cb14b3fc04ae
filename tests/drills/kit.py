"""A deployment for drills: worker processes, a service that can fail, and all who answer."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from urllib.request import urlopen

from late.app.task import Call
from late.cli.main import main
from late.control import Control
from late.observability.alerts import prometheus, rules
from late.web.models.overview import overview
from tests.drills.app import app
from tests.integration.kill_kit import commit
from tests.integration.stall_kit import free_port

ROOT = Path(__file__).resolve().parents[2]
SCRAPE_S = 5
SERIES = re.compile(r"(late_\w+)(\{.*\})? (\S+)$")
SPEAKERS = ("overview", "top", "doctor", "alert")


class Bank(ThreadingHTTPServer):
    """A service that takes payments, of which a part fails."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Counter)
        self.failing = 0.0
        self.calls = 0
        self._lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def fails(self) -> bool:
        """Return whether the next call fails: evenly, and not by chance."""
        with self._lock:
            self.calls += 1
            return int(self.calls * self.failing) > int((self.calls - 1) * self.failing)


class _Counter(BaseHTTPRequestHandler):
    server: Bank

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self._answer(500 if self.server.fails() else 200)

    def do_GET(self) -> None:
        self._answer(503 if self.server.failing else 200)

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


class Deployment:
    """Workers on one database, started as a supervisor would."""

    def __init__(self, url: str, folder: Path, bank: Bank) -> None:
        self.url = url
        self.folder = folder
        self.bank = bank
        self.control = Control(url)
        self.apart = True
        """Commands run in processes of their own, as an operator's do; else in this one, which
        takes a tenth of the time."""
        self.first_id = ""
        """The first task that was committed."""
        self.processes: list[subprocess.Popen[bytes]] = []
        self._ports: list[int] = []
        self._scraped: list[list[str]] = []
        self.environment = os.environ | {
            "LATE_URL": url,
            "LATE_DRILL_BANK": bank.url,
            "LATE_STALL_S": "6",
            "LATE_CONCURRENCY": "4",
            "LATE_LOOK_EVERY_S": "2",
            "LATE_LEASE_TTL_S": "3",
        }

    def start(self, workers: int = 2, *, group: str = "default") -> None:
        """Start workers of a group, and wait until they have its shards."""
        for _ in range(workers):
            self.start_one(group)
        self.until(lambda: self._is_owned(workers, group))

    def start_one(self, group: str = "default") -> subprocess.Popen[bytes]:
        """Start one worker, and wait for nothing."""
        return self.run("worker", "tests.drills.app:app", "--group", group, health="--health-port")

    def run(self, *words: str, health: str) -> subprocess.Popen[bytes]:
        """Start a command of `late` whose metrics are at the port that the option `health` sets."""
        self._ports.append(free_port())
        command = (sys.executable, "-m", "late.cli", *words, health, str(self._ports[-1]))
        with (self.folder / f"process-{len(self.processes)}.log").open("wb") as log:
            started = subprocess.Popen(
                command, cwd=ROOT, env=self.environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
        self.processes.append(started)
        return started

    def _is_owned(self, workers: int, group: str) -> bool:
        status = self.control.status.read(limit=1)
        shards = [shard for shard in status.shards if shard.group == group]
        owners = {shard.owner for shard in shards if shard.owner_live}
        return bool(shards) and all(s.owner_live for s in shards) and len(owners) == workers

    @contextmanager
    def supervised(self) -> Iterator[None]:
        """Start a worker in place of each that ends, as an orchestrator does."""
        over = threading.Event()

        def watch() -> None:
            seen = set[int]()
            while not over.wait(0.5):
                for process in list(self.processes):
                    if process.poll() is not None and process.pid not in seen:
                        seen.add(process.pid)
                        self.start_one()

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            yield
        finally:
            over.set()
            watching.join()

    def until(self, condition: Callable[[], bool], limit_s: float = 300.0) -> float:
        """Wait for a condition, and return how long that took."""
        began = time.monotonic()
        while not condition():
            assert time.monotonic() < began + limit_s, self.logs()
            time.sleep(0.2)
        return time.monotonic() - began

    def logs(self) -> str:
        return "\n".join(p.read_text()[-3_000:] for p in sorted(self.folder.glob("*.log")))

    def commit(self, calls: Sequence[Call]) -> list[str]:
        ids = [str(task_id) for task_id in commit(self.url, app, calls)]
        self.first_id = self.first_id or ids[0]
        return ids

    # ------------------------------------------------------------------ who answers

    def answer(self, who: str) -> str:
        """Return what somebody says now, in one text."""
        if who == "overview":
            found = overview(self.control.look()).attention
            return "\n".join(f"{each.what}. {each.detail} {each.command}" for each in found)
        command = {"top": ("top", "--once"), "doctor": ("doctor",)}[who]
        said = self.late(*command).stdout if self.apart else _said_here(*command, self.url)
        # A terminal breaks lines where a name is long.
        return " ".join(said.split())

    def late(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run one command of `late`."""
        return subprocess.run(
            (sys.executable, "-m", "late.cli", *words), cwd=ROOT, env=self.environment,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    # ------------------------------------------------------------------ alerts

    def scrape(self) -> None:
        """Keep one sample of every metric of every worker that answers."""
        lines = []
        for number, port in enumerate(self._ports):
            try:
                with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=2) as reply:
                    page = reply.read().decode()
            except OSError:
                continue
            for line in page.splitlines():
                if found := SERIES.match(line):
                    name, labels, value = found.groups()
                    inner = f"{labels[1:-1]}," if labels else ""
                    lines.append(f'{name}{{{inner}instance="worker-{number}"}} {value}')
        self._scraped.append(lines)

    def fires(self, alert: str) -> float | None:
        """Return the seconds from the first sample until `promtool` says that the alert fires by
        the recorded ones; None: it does not."""
        samples = len(self._scraped)
        series: dict[str, list[str]] = {}
        for number, lines in enumerate(self._scraped):
            for line in lines:
                key, _, value = line.rpartition(" ")
                series.setdefault(key, ["_"] * samples)[number] = value
        (self.folder / "late.rules.yml").write_text(prometheus.render(rules({})))
        times = range(0, samples * SCRAPE_S, SCRAPE_S)
        # None is expected: promtool prints each that it got.
        test = {
            "rule_files": ["late.rules.yml"],
            "evaluation_interval": f"{SCRAPE_S}s",
            "tests": [
                {
                    "interval": f"{SCRAPE_S}s",
                    "input_series": [
                        {"series": key, "values": " ".join(_plain(v) for v in values)}
                        for key, values in series.items()
                    ],
                    "alert_rule_test": [
                        {"eval_time": f"{at}s", "alertname": alert, "exp_alerts": []}
                        for at in times
                    ],
                }
            ],
        }
        (self.folder / "test.yml").write_text(json.dumps(test))
        promtool = shutil.which("promtool")
        assert promtool, "promtool (Debian: prometheus) is not installed"
        ended = subprocess.run(
            (promtool, "test", "rules", "test.yml"), cwd=self.folder, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        said = ended.stdout + ended.stderr
        found = re.findall(rf"alertname: {alert}, time: (\w+)", said)
        assert found or ended.returncode == 0, said[-3_000:]
        return min((_seconds(text) for text in found), default=None)

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        self.control.close()


def _said_here(*words: str) -> str:
    """Run one command of `late` in this process; return what it prints."""
    with redirect_stdout(StringIO()) as said, suppress(SystemExit):
        main(words)
    return said.getvalue()


def _plain(value: str) -> str:
    return {"+Inf": "inf", "-Inf": "-inf", "NaN": "_"}.get(value, value)


def _seconds(text: str) -> float:
    parts = re.findall(r"(\d+)([hms])", text)
    return float(sum(int(n) * {"h": 3_600, "m": 60, "s": 1}[unit] for n, unit in parts))


@contextmanager
def deployment(url: str, folder: Path) -> Iterator[Deployment]:
    """A deployment without workers yet; all of it is ended at the end."""
    with ExitStack() as stack:
        bank = Bank()
        stack.callback(bank.server_close)
        stack.callback(bank.shutdown)
        made = Deployment(url, folder, bank)
        stack.callback(made.close)
        yield made


def runbook_commands(name: str) -> list[str]:
    """Return the commands of a runbook's block."""
    text = (ROOT / "docs" / "runbooks" / f"{name}.md").read_text()
    [block] = re.findall("^```sh\n(.*?)^```", text, re.M | re.S)
    return [line for line in block.splitlines() if line.strip()]
