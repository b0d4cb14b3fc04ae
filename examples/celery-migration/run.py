"""Move tasks and a canvas from Celery to late and back under load, and count where each call ran.

    ./run            # or: pip install -r requirements.txt && python run.py

The share goes 0, 1, 50, 100, 50, 0 percent. At each 50 a worker is killed with SIGKILL while it
runs a call: one of late, then a process of Celery's pool. Every tenth call is rolled back. It ends
with 1 if a call ran on both sides, was lost, or ran though it was rolled back, and if no worker was
killed. `--watch` shows `late celery ramp` all the while; `--page` serves the page for operators.
"""

import argparse
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
PHASES = ((0, None), (1, None), (50, "late"), (100, None), (50, "celery"), (0, None))
TASKS = ("shop.send", "shop.price", "shop.total", "shop.bill")
CALLS = int(os.environ.get("CALLS", "200"))
"""Calls of each phase."""
FOLLOW_S = 2.5
"""The time in which every producer knows a new share."""
PATIENCE_S = 600
"""The most that the last calls may take, on a machine that is busy with other things."""


def start(side: str, *command: str) -> subprocess.Popen[bytes]:
    with Path(os.environ["SHOP"], f"{side}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", *command], cwd=HERE, stdout=log, stderr=log,
            env={**os.environ, "SIDE": side}, start_new_session=True,
        )  # fmt: skip


def late(*command: str) -> None:
    subprocess.run([sys.executable, "-m", "late", *command], check=True, cwd=HERE)


def declare() -> None:
    """Make the queue before several processes do: its table is one file, written in two steps."""
    from tasks import celery_app

    with celery_app.connection() as connection:
        for queue in celery_app.amqp.queues.values():
            queue(connection.default_channel).declare()


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a worker with all of its processes. Nothing is left to do, so it need not be gentle."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def ran(shop: Path) -> dict[int, list[str]]:
    """Return call -> the sides that ran it, a side once for each run."""
    found: dict[int, list[str]] = {}
    for line in (shop / "ran").read_text().splitlines() if (shop / "ran").exists() else ():
        n, side = line.split()
        found.setdefault(int(n), []).append(side)
    return found


def produce(numbers: range, url: str, dies: str | None) -> set[int]:
    """Order in one transaction for each number, and return those that were committed."""
    from tasks import order

    from late.celery import transaction
    from late.outbox import connect

    committed = set()
    for n in numbers:
        try:
            with connect(url) as tx, transaction(tx):
                tx.execute("insert into sale values (?)", (n,))
                order(n)
                if n % 10 == 0:
                    raise LookupError
        except LookupError:
            continue
        committed.add(n)
        if dies is not None and len(committed) == len(numbers) // 2:
            Path(os.environ["SHOP"], f"kill-{dies}").touch()
    return committed


def watch(phase: str) -> None:
    print(f"\n{phase}", flush=True)
    late("celery", "ramp")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--watch", action="store_true", help="show the counts in each phase")
    parser.add_argument("--page", metavar="PORT", help="serve the page for operators there")
    asked = parser.parse_args()
    shop = Path(tempfile.mkdtemp(prefix="celery-migration-"))
    os.environ["SHOP"] = str(shop)
    for folder in ("broker", "control", "results"):
        (shop / folder).mkdir()
    os.environ["LATE_URL"] = url = f"sqlite:///{shop / 'shop.db'}"
    late("migrate")
    with sqlite3.connect(shop / "shop.db") as db:
        db.execute("create table sale (n integer primary key)")
    declare()
    worker = ("late", "worker", "tasks:router")
    pool = ("celery", "-A", "tasks:celery_app", "worker", "-c", "2", "-P", "prefork",
            "--without-gossip", "--without-mingle", "--without-heartbeat")  # fmt: skip
    workers = {"late": [start("late", *worker) for _ in range(2)],
               "celery": [start("celery", *pool)]}  # fmt: skip
    if asked.page:
        workers["page"] = [
            start("page", "late", "serve", "--roles", "web", "--http-port", asked.page)
        ]
        print(f"http://127.0.0.1:{asked.page}/ui/celery", flush=True)
    phase_of, committed = {}, set()
    try:
        for at, (percent, dies) in enumerate(PHASES):
            late("celery", "ramp", *TASKS, str(percent))
            time.sleep(FOLLOW_S)
            numbers = range(at * CALLS + 1, (at + 1) * CALLS + 1)
            committed |= produce(numbers, url, dies)
            phase_of |= dict.fromkeys(numbers, at)
            phase = f"phase {at}: {percent}%" + (f", killed one of {dies}" if dies else "")
            watch(phase) if asked.watch else print(phase, flush=True)
        give_up = time.monotonic() + PATIENCE_S
        while committed - ran(shop).keys() and time.monotonic() < give_up:
            time.sleep(0.2)
        time.sleep(FOLLOW_S)  # What runs twice gets the time to.
        late("celery", "ramp")
    finally:
        for process in [each for side in workers.values() for each in side]:
            stop(process)
    alive = [dies for _, dies in PHASES if dies and (shop / f"kill-{dies}").exists()]
    if alive:
        print(f"no worker was killed of {', '.join(alive)}")
    canvases(ran(shop))
    return judge(ran(shop), committed, phase_of) or int(bool(alive))


def canvases(found: dict[int, list[str]]) -> None:
    """Print where the canvases ran; one with its parts on both sides has a line of its own."""
    from tasks import is_canvas

    sides = Counter(side for n, runs in found.items() if is_canvas(n) for side in set(runs))
    for side, count in sorted(sides.items()):
        print(f"canvases on {side}: {count}")


def judge(found: dict[int, list[str]], committed: set[int], phase_of: dict[int, int]) -> int:
    """Print where the calls ran, and return 1 if the promises were not kept."""
    sides = Counter((phase_of[n], side) for n, runs in found.items() for side in set(runs))
    for at, (percent, _) in enumerate(PHASES):
        print(f"{percent:>4}%  late {sides[at, 'late']:>5}  celery {sides[at, 'celery']:>5}")
    both = sum(set(runs) not in ({"late"}, {"celery"}) for runs in found.values())
    again = sum(len(runs) > 1 for runs in found.values())
    lost, rolled_back = len(committed - found.keys()), len(found.keys() - committed)
    print(f"calls {len(committed)}, on both sides {both}, lost {lost}, "
          f"rolled back and run {rolled_back}, repeated on their side {again}")  # fmt: skip
    return 1 if both or lost or rolled_back else 0


if __name__ == "__main__":
    sys.exit(main())
