"""`make bench-simulate`: `late simulate` beside what a real worker does.

One worker; a producer commits bursts of tasks above the queue's rate. The run is simulated with the
same knobs: the error is that of the answer's own first columns. Then the same tasks come to a fresh
database with other knobs, and that run is compared with what the first one foretold. Both also with
the journal as it is after an hour, when it has sums of a minute.

    python -m bench.simulate --postgres URL [--store postgresql] [--seconds 120] [--seed 1]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import late
from bench.targets import Postgres, Sqlite
from late.config import WorkerConfig
from late.control import Control
from late.control.simulation import simulation
from late.control.simulation.attempts import Counted
from late.control.simulation.comparison import Read, Simulation, compare
from late.control.simulation.variants import variants
from late.model import queue_settings
from late.model.usage_sums import summed
from late.outbox import connect
from late.schema.engine import reading
from late.worker.worker import Worker

QUEUE = "mail"
BUSY_S = 0.2
"""The mean time of a handler."""
BEFORE, AFTER = "rate=20 burst=20", "rate=30 burst=30"
NARROW, WIDE = "concurrency=4", "concurrency=6"
"""The knobs of the first run, and of the second one: limits of rate, and of slots."""
MINUTE_US = 60_000_000


class Burst(NamedTuple):
    """Tasks that are committed together."""

    at_s: float
    busy_s: list[float]


def bursts(seconds: float, rate: float, seed: int) -> list[Burst]:
    """Draw a trickle at half of the rate, with a burst of ten seconds' worth each half a minute."""
    drawn, found, at_s = random.Random(seed), [], 0.0
    while at_s < seconds:
        at_s += drawn.expovariate(rate / 2)
        found.append(Burst(at_s, [drawn.expovariate(1 / BUSY_S)]))
    for number in range(int(seconds // 30)):
        count = round(rate * drawn.uniform(5, 15))
        busy = [drawn.expovariate(1 / BUSY_S) for _ in range(count)]
        found.append(Burst(30 * number + drawn.uniform(0, 10), busy))
    return sorted(found)


async def live(url: str, planned: Sequence[Burst], knobs: str) -> None:
    """Let one worker run the tasks at their times, with these knobs, to the last one."""
    app = late.App(url)

    @app.task(name="send", queue=QUEUE)
    async def send(busy_s: float) -> None:
        await asyncio.sleep(busy_s)

    def commit(busy: Sequence[float]) -> None:
        with connect(url) as tx:
            app.enqueue_many(tx, [send.call(each) for each in busy])

    with Control(url) as control:
        control.queues.change("queue", QUEUE, queue_settings.parse(knobs.split()))
    worker = Worker(app, settings=WorkerConfig(concurrency=16, look_every_s=0.0))
    await worker.start()
    await asyncio.sleep(2.0)
    loop = asyncio.get_running_loop()
    begun, total = loop.time(), sum(len(each.busy_s) for each in planned)
    for each in planned:
        await asyncio.sleep(max(0.0, begun + each.at_s - loop.time()))
        await asyncio.to_thread(commit, each.busy_s)
    while worker.dispatcher.ended < total or worker.scheduler.unrecorded:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    await worker.stop()


def read(url: str) -> Read:
    """Read the journal of a run, as `late simulate` does."""
    with Control(url) as control, reading(control._database.engine) as connection:
        return simulation.read_journal(connection, QUEUE, "default", "1h")


def as_minutes(found: Read) -> Read:
    """Put the rows of each minute together, as the journal's compaction does after an hour."""
    kept: dict[tuple[int, int], list[Counted]] = {}
    for row in found.rows:
        kept.setdefault((row.shard_id, row.until_us // MINUTE_US), []).append(row)
    rows, before = [], dict[int, int]()
    for (shard, _), group in sorted(kept.items()):
        until_us = group[-1].until_us
        begins_us = max(until_us // MINUTE_US * MINUTE_US, before.get(shard, 0))
        usage = summed(usage for row in group for usage in row.usage)
        rows.append(Counted(shard, min(begins_us, until_us - 1), until_us, usage))
        before[shard] = until_us
    made = msgspec.structs.replace(found)
    made.rows = rows
    return made


def answer(found: Read, knobs: str) -> Simulation:
    return compare(found, QUEUE, "default", variants([knobs]), simulation.JOBS)


def line(what: str, seen: Any, made: Any) -> str:
    parts = [
        f"{name} {getattr(seen, name):8.2f} s  {getattr(made, name):8.2f} s "
        f"{getattr(made, name) / getattr(seen, name) - 1:+6.1%}"
        for name in ("p50", "p95", "p99")
    ]
    return f"{what:<44} {'   '.join(parts)}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postgres", required=True)
    parser.add_argument("--store", choices=("postgresql", "sqlite"), default="postgresql")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="late-bench-") as scratch:
        target = Sqlite(Path(scratch)) if options.store == "sqlite" else Postgres(options.postgres)
        worst, lines = 0.0, []
        for before, after in ((BEFORE, AFTER), (NARROW, WIDE)):
            planned = bursts(options.seconds, 20.0, options.seed)
            runs = []
            for knobs in (before, after):
                url = target.fresh()
                asyncio.run(live(url, planned, knobs))
                runs.append(read(url))
            for kind, of in (("", runs), (", minutes", [as_minutes(each) for each in runs])):
                first, second = answer(of[0], after), answer(of[1], before)
                spread = f" ({first.bursts} bursts, drag {first.drag:.0%})"
                same = first.error.p99 or 0.0
                worst = max(worst, abs(same))
                lines += [
                    line(f"{before}{kind}{spread}", first.happened.wait_s, first.replayed.wait_s),
                    line(f"  foretold {after}{kind}", second.happened.wait_s,
                         first.variants[0].wait_s),
                ]  # fmt: skip
    print("seen, simulated, error; waits from due to start")
    print(json.dumps(lines) if options.json else "\n".join(lines))
    print(f"the largest error of a p99 with the same knobs is {worst:.1%}")
    return 0 if worst <= 0.2 else 1


if __name__ == "__main__":
    raise SystemExit(main())
