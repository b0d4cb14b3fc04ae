"""`python -m tests.simulator`: live many worlds, say which of them broke, and how.

    python -m tests.simulator --seeds 500          the first 500
    python -m tests.simulator --first 17 --seeds 1 one again, minimised if it breaks
    python -m tests.simulator --minutes 60 --save soak.json

The exit code is 1 if any broke.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import multiprocessing
import os
import time
from collections import Counter
from pathlib import Path

from tests.simulator.minimise import describe, minimise
from tests.simulator.world import Result, live

EVERY = 500
"""Worlds between two lines of progress."""


class Tally:
    """What many worlds add up to."""

    def __init__(self) -> None:
        self.sums: Counter[str] = Counter()
        self.profiles: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.broken: list[Result] = []
        self._trace = ""
        self._began = time.monotonic()

    def add(self, result: Result) -> None:
        plan = result.plan
        self._trace = result.trace
        self.sums.update(worlds=1, tasks=result.tasks, starts=result.starts, steps=result.steps)
        self.sums["transactions"] += len(plan.bookings)
        self.sums["virtual_seconds"] += round(result.virtual_s)
        self.profiles[plan.profile] += 1
        self.faults.update(fault.kind for fault in plan.faults)
        if result.error is not None:
            self.broken.append(result)

    @property
    def took_s(self) -> float:
        return time.monotonic() - self._began

    @property
    def line(self) -> str:
        n = self.sums
        # Of one world, which somebody lives again: the same seed has the same trace.
        trace = f"; trace {self._trace}" if n["worlds"] == 1 else ""
        return (
            f"{n['worlds']:,} worlds, {len(self.broken)} broke; {n['tasks']:,} tasks, "
            f"{n['starts']:,} starts, {n['steps']:,} steps in {self.took_s:.0f} s{trace}"
        )

    def save(self, path: Path, first: int) -> None:
        found = {
            "first": first,
            **self.sums,
            "broke": [result.plan.seed for result in self.broken],
            "profiles": dict(sorted(self.profiles.items())),
            "faults": dict(sorted(self.faults.items())),
            "seconds": round(self.took_s),
        }
        path.write_text(json.dumps(found, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator")
    parser.add_argument("--seeds", type=int, default=500, help="how many worlds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, help="begin no world after so long")
    parser.add_argument(
        "--until-broken", action="store_true", help="end with the first that breaks"
    )
    parser.add_argument("--save", type=Path, help="write what it adds up to into this file")
    asked = parser.parse_args()
    tally = Tally()
    seeds = range(asked.first, asked.first + asked.seeds)
    # Every world ends with a collection, which need not go over the modules each time.
    with multiprocessing.get_context("spawn").Pool(asked.jobs, initializer=gc.freeze) as pool:
        for result in pool.imap_unordered(live, seeds, chunksize=4):
            tally.add(result)
            if result.error is not None:
                print(f"seed {result.plan.seed} broke: {result.error}", flush=True)
                if asked.until_broken:
                    return 1
            if tally.sums["worlds"] % EVERY == 0 and tally.sums["worlds"] < asked.seeds:
                print(tally.line, flush=True)
            if asked.minutes is not None and tally.took_s > 60 * asked.minutes:
                break
    print(tally.line)
    if asked.save is not None:
        tally.save(asked.save, asked.first)
    logging.disable(logging.CRITICAL)
    for result in sorted(tally.broken, key=lambda each: each.plan.seed)[:3]:
        print(describe(minimise(result)))
    return 1 if tally.broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
