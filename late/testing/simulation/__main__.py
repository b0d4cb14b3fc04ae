"""`python -m late.testing.simulation`: live many worlds, say which of them broke, and how.

    python -m late.testing.simulation --seeds 500          the first 500
    python -m late.testing.simulation --first 17 --seeds 1 one again, minimised if it breaks

The exit code is 1 if any broke.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import time

from late.testing.simulation.minimise import describe, minimise
from late.testing.simulation.world import live


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m late.testing.simulation")
    parser.add_argument("--seeds", type=int, default=500, help="how many worlds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    began = time.monotonic()
    steps = tasks = starts = 0
    broken = []
    seeds = range(asked.first, asked.first + asked.seeds)
    with multiprocessing.get_context("spawn").Pool(asked.jobs) as pool:
        for result in pool.imap_unordered(live, seeds, chunksize=4):
            steps, tasks = steps + result.steps, tasks + result.tasks
            starts += result.starts
            if result.error is not None:
                broken.append(result)
                print(f"seed {result.plan.seed} broke: {result.error}", flush=True)
    took_s = time.monotonic() - began
    print(
        f"{asked.seeds:,} worlds, {len(broken)} broke; {tasks:,} tasks, {starts:,} starts, "
        f"{steps:,} steps in {took_s:.0f} s"
    )
    logging.disable(logging.CRITICAL)
    for result in sorted(broken, key=lambda each: each.plan.seed)[:3]:
        print(describe(minimise(result)))
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
