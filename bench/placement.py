"""`python -m bench.placement`: what placement gives a fleet, without any database.

Speed-up, moves and time, for the highest score alone and with bounded loads; restarts also of
workers that begin on standby. `--large` adds a fleet of 1,000 workers with 10,000 shards in five
groups: a tenth of it dies at once, and each worker is replaced by another one.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from bench.peers.table import rows
from late.store.base import WorkerInfo
from late.tailer.placement import BOUNDED, HIGHEST_SCORE, announced, owners, place
from late.tailer.standby import places

SPEED_UPS = ((2, 8), (8, 8), (8, 64), (16, 128), (32, 256), (64, 512), (64, 1024))
CHANGES = ((2, 8), (8, 64), (16, 128), (32, 256), (33, 300), (64, 512))
ROLLED = ((8, 64), (16, 128), (32, 256), (64, 512))
TIMED = ((8, 64), (64, 512), (256, 2048), (1000, 10_000))
NUMBERS = (HIGHEST_SCORE, BOUNDED)
GROUP = "default"

Place = Callable[[Sequence[str], Mapping[str, float]], dict[str, str]]


def of(number: int) -> Place:
    """Return the placement of this number."""
    return partial(owners, number=number)


def keys_of(shards: int, group: str = GROUP) -> list[str]:
    return [f"{group}/{shard}" for shard in range(shards)]


def fleet(workers: int, rng: random.Random) -> dict[str, float]:
    """Return workers of equal weight under ids as they have them."""
    return {f"w-{rng.randbytes(8).hex()}": 1.0 for _ in range(workers)}


def speed_up(place: Place, workers: int, shards: int, seed: int) -> float:
    """Return how many times as fast as one worker the fleet drains shards of equal backlogs."""
    placed = place(keys_of(shards), fleet(workers, random.Random(seed)))
    return shards / max(Counter(placed.values()).values())


def moved(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    return [key for key, owner in before.items() if after[key] != owner]


def beside_a_join(place: Place, workers: int, shards: int, seed: int) -> tuple[int, int]:
    """Return how many shards a joining worker gets, and how many move between others.

    Read backwards it is a leave: what it had, and what moves between others.
    """
    rng, keys = random.Random(seed), keys_of(shards)
    nodes = fleet(workers, rng)
    joined = nodes | fleet(1, rng)
    after = place(keys, joined)
    changed = moved(place(keys, nodes), after)
    gained = sum(after[key] not in nodes for key in changed)
    return gained, len(changed) - gained


def rolled(place: Place, workers: int, shards: int, seed: int, steps: int | None = None) -> Counter:
    """Return the moves of each shard while worker after worker is replaced, the new one first."""
    rng, keys = random.Random(seed), keys_of(shards)
    nodes = fleet(workers, rng)
    moves = Counter(dict.fromkeys(keys, 0))
    placed = place(keys, nodes)
    for old in list(nodes)[:steps]:
        nodes |= fleet(1, rng)
        for _ in range(2):
            now = place(keys, nodes)
            moves.update(moved(placed, now))
            placed = now
            nodes.pop(old, None)
    return moves


def rolled_on_standby(workers: int, shards: int, seed: int, steps: int | None = None) -> Counter:
    """The same where each new worker begins on standby, with what is seen in between."""
    keys = keys_of(shards)
    rng = random.Random(seed)
    fleet = [_worker(rng) for _ in range(workers)]
    moves = Counter(dict.fromkeys(keys, 0))

    def owned(*members: WorkerInfo) -> dict[str, str]:
        found, _ = places(members, GROUP)
        owner_of = place(keys, {each: worker.capacity for each, worker in found.items()})
        return {key: found[at].worker_id for key, at in owner_of.items()}

    placed = owned(*fleet)
    for old in list(fleet)[:steps]:
        rest = [each for each in fleet if each is not old]
        new = _worker(rng, standby=True)
        going = msgspec.structs.replace(old, capacity=0.0)
        found, _ = places([*rest, going, new], GROUP)
        at = next(each for each, worker in found.items() if worker is new)
        told = msgspec.structs.replace(new, version=announced("1", place=at))
        for members in ([*fleet, new], [*rest, going, new], [*rest, going, told], [*rest, told]):
            now = owned(*members)
            moves.update(moved(placed, now))
            placed = now
        fleet = [*rest, told]
    return moves


def _worker(rng: random.Random, *, standby: bool = False) -> WorkerInfo:
    name = f"w-{rng.randbytes(8).hex()}"
    return WorkerInfo(name, name, (GROUP,), version=announced("1", standby=standby))


def speed_ups(runs: int) -> str:
    body = []
    for workers, shards in SPEED_UPS:
        plain, bounded = (
            [speed_up(of(n), workers, shards, seed) for seed in range(runs)] for n in NUMBERS
        )
        body.append(
            [
                f"{workers} / {shards}",
                f"{statistics.mean(plain):.2f} ({min(plain):.2f})",
                f"{statistics.mean(bounded):.2f} ({min(bounded):.2f})",
            ]
        )
    return rows(["workers / shards", "highest score, mean (worst)", "bounded loads"], body)


def changes(runs: int) -> str:
    body = []
    for workers, shards in CHANGES:
        found = [beside_a_join(of(BOUNDED), workers, shards, seed) for seed in range(runs)]
        gained = [each for each, _ in found]
        others = sorted(each for _, each in found)
        body.append(
            [
                f"{workers} to {workers + 1} / {shards}",
                f"{statistics.mean(gained):.1f}",
                f"{statistics.mean(others):.1f}",
                f"{others[int(0.95 * len(others))]}",
                f"{others[-1]} ({others[-1] / shards:.0%})",
            ]
        )
    head = ["workers / shards", "the newcomer gets", "beside it move, mean", "p95", "worst"]
    return rows(head, body)


def restarts(runs: int) -> str:
    body = []
    for workers, shards in ROLLED:
        row = [f"{workers} / {shards}"]
        rolls: list[Callable[[int, int, int], Counter]] = [partial(rolled, of(n)) for n in NUMBERS]
        for roll in (*rolls, rolled_on_standby):
            found = [roll(workers, shards, seed) for seed in range(runs)]
            each = sorted(moves for one in found for moves in one.values())
            twice = sum(moves <= 2 for moves in each) / len(each)
            row.append(f"{statistics.mean(each):.1f} / {each[-1]} / {twice:.0%}")
        body.append(row)
    head = [
        "moves of a shard: mean / most / at most two",
        "highest score",
        "bounded loads",
        "on standby",
    ]
    return rows(head, body)


def times() -> str:
    body = []
    for workers, shards in TIMED:
        nodes, row = fleet(workers, random.Random(1)), [f"{workers:,} / {shards:,}"]
        for number in NUMBERS:
            began_s = time.perf_counter()
            of(number)(keys_of(shards), nodes)
            row.append(f"{(time.perf_counter() - began_s) * 1e3:,.1f}")
        body.append(row)
    return rows(["workers / shards, one group, ms", "highest score", "bounded loads"], body)


def large(steps: int) -> str:
    """Format what a fleet of 1,000 with 10,000 shards in five groups goes through."""
    workers, shards, groups = 1000, 2000, [f"group-{number}" for number in range(5)]
    body = []
    for number in NUMBERS:
        place, rng = of(number), random.Random(1)
        nodes = fleet(workers, rng)
        dead = set(rng.sample(sorted(nodes), workers // 10))
        living = {node: weight for node, weight in nodes.items() if node not in dead}
        gone = others = 0
        loads: Counter[str] = Counter()
        for group in groups:
            before, after = (place(keys_of(shards, group), each) for each in (nodes, living))
            changed = moved(before, after)
            gone += sum(before[key] in dead for key in changed)
            others += sum(before[key] not in dead for key in changed)
            loads.update(after.values())
        share = steps / workers
        total = rolled(place, workers, shards, 1, steps).total() / shards / share
        body.append(
            [
                "bounded loads" if number == BOUNDED else "highest score",
                f"{gone:,}",
                f"{others:,}",
                f"{min(loads[node] for node in living)} to {max(loads.values())}",
                f"{total:.1f}",
            ]
        )
    waited = rolled_on_standby(workers, shards, 1, steps).total() / shards * workers / steps
    body.append(["bounded loads, on standby", "", "", "", f"{waited:.1f}"])
    head = [
        "1,000 workers, five groups of 2,000 shards",
        "a tenth dies: moves of its shards",
        "of others'",
        "then each has",
        "a rolling restart moves a shard, times",
    ]
    return f"{rows(head, body)}\n(restarts: {steps} of 1,000 workers of one group, extrapolated)\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.placement", description=__doc__)
    parser.add_argument("--runs", type=int, default=100, help="fleets for each row")
    parser.add_argument("--large", type=int, default=0, metavar="RESTARTS", help="of 1,000 workers")
    asked = parser.parse_args()
    for table in (speed_ups(asked.runs), changes(asked.runs), restarts(max(1, asked.runs // 20))):
        print(table, flush=True)
    print(times(), flush=True)
    if asked.large:
        print(large(asked.large), flush=True)


if __name__ == "__main__":
    main()
