"""Writes `docs/performance.md` and a table of the README: `python -m scripts.performance_doc`.

The numbers are those of `docs/figures/peers.json`, which `make bench-peers ARGS="--record
docs/figures/peers.json"` writes; without that file the page has none. Steady work comes the same
way from `docs/figures/steady.json` and `make bench-steady`, shapes of tasks from
`docs/figures/shapes.json` and `make bench-shapes`. Who is measured and how comes from
`bench/peers/peers.toml`. A test compares page and sources.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from bench import alone_table
from bench.peers import roster, table
from bench.shapes import table as shapes_table
from bench.steady import table as steady_table

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "performance.md"
README = ROOT / "README.md"
FIGURES = ROOT / "docs" / "figures" / "peers.json"
ALONE = ROOT / "docs" / "figures" / "alone.json"
STEADY = ROOT / "docs" / "figures" / "steady.json"
SHAPES = ROOT / "docs" / "figures" / "shapes.json"

HEAD = """# Beside other queues

Written by `scripts/performance_doc.py`; what late does by itself is in [benchmarks](benchmarks.md).

One command measures late and other queues in one run, on one PostgreSQL server with fsync on, with
the same payload of some 120 bytes, one peer after the other:

```
make bench-peers ARGS=--install      # bring the environments up and do nothing else
make bench-peers
make bench-peers ARGS="--only pg-boss --tasks 20000"
make bench-peers ARGS="--backlogs 10000 1000000 --workers 2"
make bench-peers ARGS="--record docs/figures/peers.json" && python -m scripts.performance_doc
make bench-peers ARGS="--record docs/figures/peers.json --go-on"   # after an interruption
```

Each peer has an environment of its own under `.late/peers/`, with the versions that
`bench/peers/peers.toml` pins, and the settings that its own documentation recommends for
throughput. Read ratios before rates: all of them stand in one table of one run.

{how}
Known bias: a producer and a worker in Python read one clock, those in Node.js each an
estimate of it; asking a storage what is left costs some milliseconds at the end of a drain.
"""

HOW = {
    "drain": "no-ops wait in the queue; one worker starts. From the first start of a handler until "
    "the queue's own storage holds nothing unfinished: who acknowledges late is measured late. A "
    "tenth of the tasks for those that would take minutes",
    "in bulk": "1,000 tasks a call where there is such a call, on one connection",
    "one per transaction": "a row of the service's own and one task, with 1, 4 and 16 clients at "
    "once. Queues that are not in PostgreSQL commit the row first and send the task then: a crash "
    "in between loses it",
    "commit to start": "from the return of the producer's commit to the first line of the handler, "
    "at a steady rate; one producer per 250/s",
    "beside an open transaction": "the same, while another transaction that has written stays open",
    "rounds": "so many tasks are put in and drained, again and again, by a worker that runs on; "
    "also while a transaction of the first round's time stays open and three queries overlap, so "
    "that no dead row can be removed. Then the time from commit to start at 100/s",
    "WAL, rows, dead rows, transactions": "differences of the server's own counters from before "
    "the first task to after the worker has stopped, per task",
    "worker, database": "processor time per task: of the worker's processes during the drain, and "
    "of the server's from before the worker's start until after its end",
}

WHO = """
## Who

{table}
"""

STEADY_HEAD = """
## Steady work

Most services make tasks one at a time: a transaction with a row of their own and one task. `make
bench-steady` measures that at steady rates, and what a drain does not show: the first task after
silence, a plain `def` handler that writes to the database, workers without work, and producers
beside a worker that sleeps. How each figure comes about is in
[benchmarks](benchmarks.md#steady-work); what it means for a database of yours is in
[sizing](sizing.md).

In that run graphile-worker had a local queue of 500 and pg-boss one worker with batches of 500.
The fixed loop is the same computation before and after each measurement: where it took longer, the
processor was slower, and so were the times beside it.

"""

SHAPES_HEAD = """
## Shapes of tasks

A no-op is the plainest of tasks. The tables below set ordinary shapes beside it, and others beside
late: `make bench-shapes`, explained in [benchmarks](benchmarks.md#shapes-of-tasks). A ratio is of
drains that followed each other, median and then least – most of the turns; rates of different
tables were measured at different moments and are not to be compared. Each table says how loaded the
machine was: where others keep its processors busy, a rate and a ratio of rates vary by half and
more, and processor time per task is the steadier figure.

A peer does each shape in its natural way: an UPDATE goes through a connection pool of its own, and
is repeated if the process dies before the job is finished. `ctx.once()` of late is one transaction
with the mark that it was done, and with `transaction=True` many tasks share a transaction. Slow
peers have fewer tasks, so that their start weighs more. Below 1 the peer was faster. The mix is run
by those that offer ordering keys, unique keys, priorities and delays in one queue.

"""

NONE = """
## Numbers

No run has been recorded yet, so there are none here.
"""


ALONE_HEAD = """
## late alone, where it grows

`make bench-alone`: backlogs and timers are written by SQL, as producers and settlements would have
left them; `bench/alone.py` says how each is measured. Tasks for consumers or a service that nobody
takes yet are parked, and come back within a minute: what is measured here begins when both ends
know each other.

Two workers beside one: no-ops keep both processors of this machine busy, the server's work
included, and that is what limits them; with tasks that compute, the database has headroom. Both
workers have four of the eight shards.

"""


def whom() -> str:
    """List the peers of the roster."""
    body = []
    for peer in roster.read().values():
        page = f"[page]({peer.docs})" if peer.docs.startswith("http") else f"`{peer.docs}`"
        packages = ", ".join(f"`{name}`" for name in peer.packages) or "this checkout"
        joins = "yes" if peer.same_transaction else "no"
        body.append([peer.title, packages, peer.settings, page, joins, peer.durability])
    head = ["", "packages", "settings", "follow", "joins the caller's transaction", "survives"]
    return table.rows(head, body).replace("--:", "---")


def page() -> str:
    """The page as it should be."""
    how = table.rows(["", "how it is measured"], list(HOW.items())).replace("--:", "---")
    text = HEAD.format(how=how) + WHO.format(table=whom().rstrip())
    if STEADY.exists():
        text += STEADY_HEAD + steady_table.text(json.loads(STEADY.read_text()))
    if SHAPES.exists():
        text += SHAPES_HEAD + shapes_table.text(json.loads(SHAPES.read_text()))
    if not FIGURES.exists():
        return text + NONE
    text += "\n## Numbers\n\n" + table.text(json.loads(FIGURES.read_text()))
    if ALONE.exists():
        text += ALONE_HEAD + alone_table.text(json.loads(ALONE.read_text()))
    return text


def readme(text: str) -> str:
    """Return the README with the plain and the ordinary shapes side by side between its marks."""
    made = shapes_table.brief(json.loads(SHAPES.read_text()))
    pattern = r"(<!-- shapes -->\n).*?(<!-- end of shapes -->)"
    text, found = re.subn(pattern, lambda marks: marks[1] + made + marks[2], text, flags=re.S)
    assert found == 1, "README.md has no mark for shapes"
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
    README.write_text(readme(README.read_text()))
    sys.exit(0)
