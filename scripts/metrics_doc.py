"""Writes `docs/metrics.md`: `python scripts/metrics_doc.py`.

From the catalogue of metrics (`late/observability/metrics/catalogue.py`) and that of events
(`late/events.py`), with the words below for what neither says. A test compares page and sources.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from late.events import EVENTS
from late.observability.metrics.catalogue import METRICS, Metric, Source
from late.observability.metrics.registry import LABEL_MAX, LABEL_MAXES, SERIES_MAX

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "metrics.md"

HEAD = f"""# Metrics and events

Made by `python scripts/metrics_doc.py` from `late/observability/metrics/catalogue.py` and
`late/events.py`.

## Where they are

| process | where | what |
|---|---|---|
| `late worker --health-port N` | `/metrics` there | its own, and as maintainer the database's |
| `late worker --processes N --health-port N` | `/metrics` there | of all its workers, and its own |
| `late serve` with the role `api` | `/metrics` of its HTTP port | the same |
| `late autoscale run --metrics-port N` | `/metrics` there | its own |
| `late metrics --port N` | `/metrics` there | the database's; it needs no worker |

With `--auth`, `late serve` wants a token of the scope `operate` for all queues (`--queue '*'`).
`late metrics` without a port prints its page once.

What the database server itself counts (`late_database_*`) comes from SQL on PostgreSQL and from
the file's size on SQLite. CockroachDB's nodes tell it to Prometheus and not to SQL: give each of
them to `late metrics --status-vars http://NODE:8080`, and their `/_status/vars` are added up: of
the whole cluster, with all its databases and replicas (the extra
`late-queue[cockroach]` reads them). Rows are not among them, for it counts statements.
While one node does not answer, nothing is told of the server, and all else is. No
password is sent; for a certificate of your own authority set `SSL_CERT_FILE`. It is made from the
vendor's names for these figures and has not met a node yet. Spanner's load is in Cloud Monitoring,
which `--record` keeps for the [cost report](reports.md).

The same figures go to OpenTelemetry under the same names: `LATE_OTEL=1`, see
[tracing](tracing.md).

The names do not depend on the store, nor on whether it is a laptop or production. A scrape of a
worker is answered although its event loop stands still: with what was known, and with
`late_stalls_total`.

**What it costs.** Nothing per task: a settlement counts its tasks anyway, and its sums are added
up here: 3 % of a worker's processor while it drains no-ops ([benchmarks](benchmarks.md)). Where
nobody can ask, nothing is counted.

**How many series there can be.** Each label keeps the first {LABEL_MAX} values that a process
meets ({", ".join(f"`{name}` {most}" for name, most in sorted(LABEL_MAXES.items()))}), each metric
its first {SERIES_MAX:,} series. What comes later is added up under `other`.

**Labels.** `group`: the consumer group; `queue`; `task`: the task's name, never its id; `target`:
who executed it, `local` for the worker itself; `shard`.
"""

DATABASE = """One worker looks for all, every `look_every_s` (15 s), and serves what it saw; the
others do not have these metrics. Which worker it is changes: use `max by (group, queue) (...)`. A
look is what `late status` does: for each group and shard it goes from the cursor into the log, and
stops counting at 1,000 rows, so that it costs the same on a log of a hundred million rows. Beyond
that the age and the rate say more than a depth: their product is the depth.

`late_freshness_seconds` says that everything which was committed that long ago is done, or was put
off: by a delay, a retry, its ordering key or a knob. What was put off counts again from its new due
time. `late_workers_wanted` and `late_saturation` take all workers to have the slots of the one that
looks."""

WORDS: dict[Source, tuple[str, str]] = {
    "event": ("What is counted", "Since the process began, from the events below."),
    "worker": ("What a worker is doing", "Looked at when it is asked for."),
    "parent": (
        "What the parent says",
        "Of `late worker --processes N`, beside the metrics of its workers, which have a label\n"
        "`process` there.",
    ),
    "database": ("What the database says", DATABASE),
    "replica": (
        "What `late serve` says of its replica",
        "Where `LATE_READ_URL` is set and the page is served; asked every 15 s. On Spanner the\n"
        "lag is the age of a stale read, as the service tells it.",
    ),
    "close": (
        "What a close says of budgets",
        "`late close` writes them to `budgets.prom` in its folder ([budgets](alerts.md#budgets)).\n"
        "`part`: who has the budget, such as an owner, or `Total`.",
    ),
}

EVENTS_HEAD = """## Events

What `late.events` emits, and what the log shows under the logger `late.worker`: `event=NAME` with
all measures, tags and details. Renaming one is a breaking change; adding one is not.

| event | level | what | measures | tags | details |
|---|---|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for source, (title, words) in WORDS.items():
        chosen = [metric for metric in METRICS.values() if metric.source == source]
        parts.append(f"\n## {title}\n\n{words}\n\n")
        parts.append("| metric | kind | labels | what |\n|---|---|---|---|\n")
        parts += [_row(metric) for metric in chosen]
    parts.append("\n" + EVENTS_HEAD)
    parts += _events()
    return "".join(parts)


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    of = f" (`{metric.event.name}`)" if metric.event is not None else ""
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.text}{of} |\n"


def _events() -> Iterator[str]:
    for name, event in sorted(EVENTS.items()):
        cells = (" ".join(each) for each in (event.measures, event.tags, event.details))
        yield f"| `{name}` | {event.level} | {event.text} | {' | '.join(cells)} |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"{PAGE}: {len(METRICS)} metrics, {len(EVENTS)} events", file=sys.stderr)
