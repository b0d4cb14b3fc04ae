"""`make bench-alone`: what late does by itself where it grows: W5, W6, W8 and W9, on PostgreSQL.

| | what | how |
|---|---|---|
| W5 | backlog | so many wait; one worker's rate from its first start, for `SLOPE_S` at most |
| W6 | parked | a million timers, some due soon: how late those start, what memory it takes |
| W8 | workers | tasks appear at once, in one commit, when one or two workers hold all shards |
| W9 | other processes | tasks appear at once: fetched by a consumer over gRPC, or pushed |

Backlogs and timers are written by SQL, as producers and settlements would have left them.
W8 is measured with no-ops, which take all of two processors, and with tasks that compute, so that
the database has headroom. One and two workers take turns; the median counts.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from bench import measure
from bench.main import RESULTS, machine
from bench.targets import Postgres
from bench.tasks import compute, nothing, stamp

SLOPE_S = 20.0
SHARDS = 8
TURNS = 3
"""Turns with one worker, and as many with two."""
COMPUTED_SHARE = 0.25
"""So many of the no-ops, where tasks compute."""
DUE_S, DUE_RATE = 20, 500
"""Duration, and the rate at which parked tasks fall due."""
MEET_S = 4.0
"""Until a consumer or a service that has just started is known."""
AHEAD_S = 15
"""Until the first of them does."""

_ID = (
    "('01999999-0000-7' || lpad(to_hex(mod(g, 8)), 3, '0') || '-8000-' || lpad(to_hex(g), 12, '0'))"
)
FILL = f"""
do $$ begin
  for part in 0..({{count}} - 1) / 1000 loop
    insert into late_task (shard_id, task_id, queue, name, payload)
    select mod(g, {SHARDS}), {_ID}::uuid, 'bench', '{{name}}',
           convert_to('{{{{"n":' || g || ',"note":"{measure.NOTE}"}}}}', 'utf8')
      from generate_series(part * 1000, least(part * 1000 + 999, {{count}} - 1)) g;
    {{commit}}
  end loop;
end $$"""
PARK = f"""
insert into late_timer (consumer_group, shard_id, due_at_us, task_id, reason, position, sequence,
                        queue, name, payload, created_at_us, attempts, deaths)
select 'default', mod(g, {SHARDS}), %(due)s::bigint + g * %(step)s::bigint, {_ID}::uuid, 'delay',
       1, g, 'bench', '{stamp.name}',
       convert_to('{{"n":' || g || ',"note":"{measure.NOTE}"}}', 'utf8'),
       %(due)s::bigint - 3600000000, 0, 0
  from generate_series(%(first)s::bigint, %(first)s::bigint + %(count)s::bigint - 1) g"""
SETTLED = """
select coalesce(sum((u ->> 4)::bigint), 0), max(s.settled_at_us)
  from late_settlement s, jsonb_array_elements(s.usage::jsonb) u
 where s.usage is not null and u ->> 3 = 'done'"""
OWNERS = "select count(*) from late_lease where owner is not null"
SHARES = "select count(*) from late_lease where owner is not null group by owner"


def fill(
    server: Postgres, url: str, count: int, *, name: str = nothing.name, at_once: bool = False
) -> None:
    """`count` tasks into the log: a thousand a transaction, or all in one."""
    with closing(server.connect(url, autocommit=True)) as connection:
        connection.execute("set synchronous_commit = off")
        connection.execute(FILL.format(count=count, name=name, commit="" if at_once else "commit;"))


def settled(connection: Any) -> tuple[int, int]:
    """(how many are recorded as done, when the last was: µs of the database)."""
    done, at_us = connection.execute(SETTLED).fetchone()
    return int(done), int(at_us or 0)


def first_us(running: Sequence[measure.Worker]) -> int:
    """Wait until the first handler of any worker has started, and return the time."""
    while True:
        for each in running:
            each.check()
        found = [int(text.split()[1]) for each in running if (text := each.marks.read_text())]
        if found:
            return min(found) // 1_000
        time.sleep(0.005)


def rate(
    server: Postgres, url: str, count: int, running: Sequence[measure.Worker], most_s: float
) -> float:
    """Tasks a second, until all are recorded or for `most_s`."""
    began_us = first_us(running)
    deadline = time.monotonic() + most_s
    with closing(server.connect(url, autocommit=True)) as connection:
        while True:
            time.sleep(0.1)
            for each in running:
                each.check()
            done, last_us = settled(connection)
            if done >= count or (time.monotonic() > deadline and done):
                return done / (last_us - began_us) * 1e6
            if time.monotonic() > deadline + measure.PATIENCE_S:
                raise measure.GaveUp(f"{done} of {count} settled")


def backlog(server: Postgres, folder: Path, count: int) -> dict[str, Any]:
    """W5."""
    url = server.fresh()
    fill(server, url, count)
    with closing(server.connect(url, autocommit=True)) as connection:
        connection.execute("checkpoint")
    with measure.worker(url, folder) as running:
        found = rate(server, url, count, [running], SLOPE_S)
    server.drop(url)
    return {"waiting": count, "per_s": found}


def parked(server: Postgres, folder: Path, count: int) -> dict[str, Any]:
    """W6: lateness of those that fall due, in ms by the machine's clock, and memory in MiB."""
    url = server.fresh()
    due = DUE_S * DUE_RATE
    with closing(server.connect(url, autocommit=True)) as connection:
        connection.execute("set synchronous_commit = off")
        tomorrow_us = (int(time.time()) + 86_400) * 1_000_000
        connection.execute(PARK, {"due": tomorrow_us, "step": 1, "first": due, "count": count})
        connection.execute("analyze late_timer")
        with measure.worker(url, folder) as running:
            while connection.execute(OWNERS).fetchone()[0] < SHARDS:
                running.check()
                time.sleep(0.05)
            time.sleep(2.0)
            before_mib = memory_mib(running)
            due_us = (int(time.time()) + AHEAD_S) * 1_000_000
            step_us = 1_000_000 // DUE_RATE
            connection.execute(PARK, {"due": due_us, "step": step_us, "first": 0, "count": due})
            started = measure.read_stamps(running, due)
            after_mib = memory_mib(running)
    server.drop(url)
    late_ms = sorted(at / 1e6 - (due_us + n * step_us) / 1e3 for n, at in started.items())
    return {
        "parked": count,
        "due": due,
        "p50_ms": measure.percentile(late_ms, 0.5),
        "p99_ms": measure.percentile(late_ms, 0.99),
        "max_ms": late_ms[-1],
        "early": sum(each < 0 for each in late_ms),
        "memory_before_mib": before_mib,
        "memory_after_mib": after_mib,
    }


def memory_mib(running: measure.Worker) -> float:
    """The most that the process has had in memory so far."""
    status = Path(f"/proc/{running.process.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def workers(server: Postgres, folder: Path, count: int, number: int, name: str) -> dict[str, Any]:
    """W8, one turn: the rate, and how many processors of the machine were in use."""
    url = server.fresh()
    with ExitStack() as stack, closing(server.connect(url, autocommit=True)) as connection:
        command = ["late.cli", "worker", "bench.tasks:app"]
        running = [
            stack.enter_context(measure.program(command, url, folder, f"worker-{n}"))
            for n in range(number)
        ]
        while shares(connection, running) != even(number):
            pass  # it waits a second, and fails when a worker has ended
        fill(server, url, count, name=name, at_once=True)
        busy_s, began_s = processors_s(), time.monotonic()
        found = rate(server, url, count, running, 120.0)
        used = (processors_s() - busy_s) / (time.monotonic() - began_s)
    server.drop(url)
    return {"workers": number, "per_s": found, "processors": used}


def shares(connection: Any, running: Sequence[measure.Worker]) -> list[int]:
    """Return the number of shards of each owner, once all are held and nothing moves."""
    found: list[int] = []
    while True:
        time.sleep(1.0)
        for each in running:
            each.check()
        before = found
        found = sorted(count for (count,) in connection.execute(SHARES).fetchall())
        if sum(found) == SHARDS and found == before:
            return found


def even(number: int) -> list[int]:
    """Divide the shards evenly."""
    return [SHARDS // number] * number


def processors_s() -> float:
    """Seconds that all processors of this machine have worked, for whomever."""
    user, nice, system, _idle, _io, irq, soft, *_ = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    )
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")


def in_turns(
    server: Postgres, folder: Path, count: int, name: str, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """W8 for one kind of task: the medians of one worker and of two."""
    turns: dict[int, list[dict[str, Any]]] = {1: [], 2: []}
    for turn in range(TURNS):
        for number, found in turns.items():
            say(f"turn {turn + 1}, {number} workers, {count:,} times {name}")
            found.append(workers(server, folder, count, number, name))
    return [
        {
            "task": name,
            "tasks": count,
            "workers": number,
            "per_s": median(each["per_s"] for each in found),
            "processors": median(each["processors"] for each in found),
            "turns_per_s": [each["per_s"] for each in found],
        }
        for number, found in turns.items()
    ]


def remote(server: Postgres, folder: Path, count: int, way: str) -> dict[str, Any]:
    """W9. The tasks appear when both ends know each other: before, they would be parked, for
    nobody takes them."""
    url = server.fresh()
    address = f"127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        if way == "pull":
            serve = ["late.cli", "serve", "--url", url, "--pull", "bench"]
            serve += ["--grpc-port", address.rpartition(":")[2]]
            stack.enter_context(measure.program(serve, url, folder, "serve"))
            doing = ["bench.remote", "consume", address]
            running = stack.enter_context(measure.program(doing, url, folder, "consumer"))
        else:
            doing = ["bench.remote", "serve", address]
            running = stack.enter_context(measure.program(doing, url, folder, "service"))
            work = ["late.cli", "worker", "bench.remote:app"]
            stack.enter_context(measure.program(work, url, folder, "worker", BENCH_TARGET=address))
        connection = stack.enter_context(closing(server.connect(url, autocommit=True)))
        while connection.execute(OWNERS).fetchone()[0] < SHARDS:
            running.check()
            time.sleep(0.05)
        time.sleep(MEET_S)
        fill(server, url, count, at_once=True)
        found = rate(server, url, count, [running], 120.0)
    server.drop(url)
    return {"way": way, "tasks": count, "per_s": found}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.alone", description=__doc__)
    parser.add_argument("--postgres", metavar="URL", required=True)
    parser.add_argument("--backlogs", type=int, nargs="*", default=(10_000, 1_000_000))
    parser.add_argument("--parked", type=int, default=1_000_000)
    parser.add_argument("--tasks", type=int, default=200_000, help="of W8")
    parser.add_argument("--remote", type=int, default=10_000, help="tasks of W9")
    parser.add_argument("--record", type=Path, help="write the results here as well")
    return parser.parse_args(arguments)


def measured(
    server: Postgres, folder: Path, options: argparse.Namespace, say: Callable[[str], None]
) -> dict[str, Any]:
    """Run every measurement; one with the number 0 is left out."""
    found: dict[str, Any] = {"backlog": [], "workers": [], "remote": []}
    for count in options.backlogs:
        say(f"{count:,} tasks wait")
        found["backlog"].append(backlog(server, folder, count))
    if options.parked:
        say(f"{options.parked:,} tasks are parked")
        found["parked"] = parked(server, folder, options.parked)
    for name, share in ((nothing.name, 1.0), (compute.name, COMPUTED_SHARE)):
        if count := round(options.tasks * share):
            found["workers"] += in_turns(server, folder, count, name, say)
    for way in ("pull", "push") if options.remote else ():
        say(f"gRPC {way}, {options.remote:,} tasks")
        found["remote"].append(remote(server, folder, options.remote, way))
    return found


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    console = Console(width=max(Console().width, 110))
    server = Postgres(options.postgres)
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    report = {"at": at, "machine": machine(), "server": server.versions()}
    try:
        with tempfile.TemporaryDirectory(prefix="late-bench-") as scratch:
            say = partial(console.print, style="dim", markup=False)
            report |= measured(server, Path(scratch), options, say)
    except measure.GaveUp as error:
        console.print(str(error), markup=False)
        return 1
    finally:
        server.clear()
    report["load_after"] = round(os.getloadavg()[0], 2)
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(report, indent=1)
    console.print(text, markup=False)
    for path in (RESULTS / f"alone-{at.replace(':', '')}.json", options.record):
        if path is not None:
            path.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
