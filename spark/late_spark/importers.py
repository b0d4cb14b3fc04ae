"""Metrics from files: which format it is shows in its first line.

- `at,metric,value[,region,role,resource]`: the plain form, canonical names (`series.py`);
- Cloud Monitoring: the JSON answer of `projects.timeSeries.list`, one document or several in a row;
- CockroachDB: `cockroach debug tsdump --format=csv` (name, time, source, value; no header);
- PostgreSQL: a table of `pg_stat_database` over time, with a header that has `xact_commit`
  (docs/reports.md has the query).

Counters of the last two only grow until a restart, and become flows here: a value below the one
before counts as it is, for the counter began again.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from pathlib import Path

import msgspec

from late.errors import ConfigError
from late_spark.calendar import microseconds
from late_spark.series import Key, Metrics

Sample = tuple[Key, int, Decimal]

CLOUD_MONITORING = {
    "spanner.googleapis.com/instance/node_count": "nodes",
    "spanner.googleapis.com/instance/processing_units": "processing_units",
    "spanner.googleapis.com/instance/cpu/utilization": "cpu",
    "spanner.googleapis.com/instance/storage/used_bytes": "storage_bytes",
    "spanner.googleapis.com/api/api_request_count": "queries",
    "spanner.googleapis.com/api/sent_bytes_count": "network_out_bytes",
    "spanner.googleapis.com/api/received_bytes_count": "network_in_bytes",
}
COCKROACH = {
    "cr.node.liveness.livenodes": ("nodes", "level"),
    "cr.node.sys.cpu.combined.percent-normalized": ("cpu", "level"),
    "cr.store.capacity.used": ("storage_bytes", "level"),
    "cr.node.sql.select.count": ("reads", "counter"),
    "cr.node.sql.insert.count": ("writes", "counter"),
    "cr.node.sql.update.count": ("writes", "counter"),
    "cr.node.sql.delete.count": ("writes", "counter"),
    "cr.node.sql.query.count": ("queries", "counter"),
    "cr.node.sql.bytesin": ("network_in_bytes", "counter"),
    "cr.node.sql.bytesout": ("network_out_bytes", "counter"),
}
POSTGRES_COUNTERS = {
    "tup_fetched": "reads",
    "tup_inserted": "writes",
    "tup_updated": "writes",
    "tup_deleted": "writes",
    "xact_commit": "queries",
}
POSTGRES_LEVELS = ("nodes", "cores", "cpu", "storage_bytes", "users")
_PLAIN = ("at", "metric", "value")


def load(paths: Iterable[Path], leader_regions: frozenset[str] = frozenset()) -> Metrics:
    """Read all files as one set of series.

    Args:
        leader_regions: where the file does not say a series' role, those of these regions are the
            leader's and the others a replica's. Empty: no role.

    Raises:
        ConfigError: a file that is none of the formats, a row that is not as it should be, two
            files that measure the same at the same time.
    """
    found = Metrics()
    for path in paths:
        found.add(Metrics.of(_with_roles(_samples(path), leader_regions), f"metrics {path}"))
    return found


def _with_roles(samples: Iterable[Sample], leader_regions: frozenset[str]) -> Iterator[Sample]:
    for key, at_us, value in samples:
        if leader_regions and not key.role and key.region:
            role = "leader" if key.region in leader_regions else "replica"
            yield key._replace(role=role), at_us, value
        else:
            yield key, at_us, value


def _samples(path: Path) -> Iterator[Sample]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise ConfigError(f"metrics {path}: {reason}") from None
    what = f"metrics {path}"
    if text.lstrip().startswith(("{", "[")):
        return _cloud_monitoring(text, what)
    lines = text.splitlines()
    header = next(csv.reader(lines[:1]), [])
    if set(_PLAIN) <= set(header):
        return _plain(csv.DictReader(lines), what)
    if "xact_commit" in header:
        return _postgres(csv.DictReader(lines), what)
    if header and header[0].startswith("cr."):
        return _cockroach(csv.reader(lines), what)
    raise ConfigError(
        f"{what} is in no known format: expected a header with {', '.join(_PLAIN)} or xact_commit, "
        "a dump of CockroachDB's time series, or JSON of Cloud Monitoring"
    )


def _plain(rows: Iterable[dict[str, str]], what: str) -> Iterator[Sample]:
    for number, row in enumerate(rows, start=2):
        where = f"{what}:{number}"
        key = Key(row["metric"], row.get("region") or "", row.get("role") or "",
                  row.get("resource") or "")  # fmt: skip
        if not key.metric:
            raise ConfigError(f"{where}: metric is empty")
        yield key, _time(row["at"], f"{where}: at"), _number(row["value"], f"{where}: value")


class _Interval(msgspec.Struct):
    endTime: str


class _Value(msgspec.Struct):
    doubleValue: float | None = None
    int64Value: str | None = None


class _Point(msgspec.Struct):
    interval: _Interval
    value: _Value


class _Labels(msgspec.Struct):
    type: str
    labels: dict[str, str] = {}


class _TimeSeries(msgspec.Struct):
    metric: _Labels
    resource: _Labels
    points: list[_Point] = []


class _Answer(msgspec.Struct):
    timeSeries: list[_TimeSeries] = []


def _cloud_monitoring(text: str, what: str) -> Iterator[Sample]:
    # Series of one quantity (storage by database, requests by method) are added up at each time;
    # utilisations are not additive, and each keeps a resource of its own.
    sums: dict[tuple[Key, int], Decimal] = defaultdict(Decimal)
    for answer in _answers(text, what):
        for each in answer.timeSeries:
            name = CLOUD_MONITORING.get(each.metric.type, each.metric.type)
            labels = each.resource.labels
            region = each.metric.labels.get("location") or labels.get("location", "")
            resource = labels.get("instance_id", "")
            if name == "cpu":
                resource = "/".join(x for x in (resource, each.metric.labels.get("database")) if x)
            key = Key(name, region, each.metric.labels.get("role", ""), resource)
            for point in each.points:
                at_us = _time(point.interval.endTime, f"{what}: endTime of {each.metric.type}")
                value = point.value.int64Value
                if value is None and point.value.doubleValue is not None:
                    value = repr(point.value.doubleValue)
                if value is None:
                    raise ConfigError(f"{what}: {each.metric.type} is a distribution, not a number")
                sums[key, at_us] += _number(value, f"{what}: value of {each.metric.type}")
    for (key, at_us), total in sums.items():
        yield key, at_us, total


def _answers(text: str, what: str) -> list[_Answer]:
    text = text.strip()
    try:
        if text.startswith("["):
            return msgspec.json.decode(text, type=list[_Answer])
        # Several pages of answers written to one file, one after the other.
        pages = text.replace("}\n{", "}\0{").split("\0")
        return [msgspec.json.decode(page, type=_Answer) for page in pages]
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"{what} is not Cloud Monitoring's list of time series: {error}"
        ) from None


def _cockroach(rows: Iterable[list[str]], what: str) -> Iterator[Sample]:
    counters: dict[tuple[Key, str], list[tuple[int, Decimal]]] = defaultdict(list)
    livenodes: dict[int, Decimal] = {}
    for number, row in enumerate(rows, start=1):
        if not row:
            continue
        where = f"{what}:{number}"
        if len(row) != 4:
            raise ConfigError(f"{where}: expected name, time, source and value")
        known = COCKROACH.get(row[0])
        if known is None:
            continue
        name, kind = known
        at_us, value = _time(row[1], f"{where}: time"), _number(row[3], f"{where}: value")
        if name == "nodes":
            # Every node says how many there are; those who know more are not behind.
            livenodes[at_us] = max(value, livenodes.get(at_us, value))
        elif kind == "level":
            yield Key(name, resource=f"n{row[2]}"), at_us, value
        else:
            counters[Key(name, resource=f"n{row[2]}"), row[0]].append((at_us, value))
    yield from ((Key("nodes"), at_us, value) for at_us, value in livenodes.items())
    yield from _flows(counters)


def _postgres(rows: Iterable[dict[str, str]], what: str) -> Iterator[Sample]:
    counters: dict[tuple[Key, str], list[tuple[int, Decimal]]] = defaultdict(list)
    for number, row in enumerate(rows, start=2):
        where = f"{what}:{number}"
        at_us = _time(row.get("at") or "", f"{where}: at")
        marks = (row.get("region") or "", row.get("role") or "", row.get("datname") or "")
        for column, name in POSTGRES_COUNTERS.items():
            if row.get(column):
                value = _number(row[column], f"{where}: {column}")
                counters[Key(name, *marks), column].append((at_us, value))
        for name in POSTGRES_LEVELS:
            if row.get(name):
                yield Key(name, *marks), at_us, _number(row[name], f"{where}: {name}")
    yield from _flows(counters)


def _flows(counters: dict[tuple[Key, str], list[tuple[int, Decimal]]]) -> Iterator[Sample]:
    """Counters as amounts since the sample before, those of one key added up at each time."""
    sums: dict[tuple[Key, int], Decimal] = defaultdict(Decimal)
    for (key, _), points in counters.items():
        points.sort()
        for (_, before), (at_us, value) in pairwise(points):
            sums[key, at_us] += value - before if value >= before else value
    for (key, at_us), total in sums.items():
        yield key, at_us, total


def _time(text: str, what: str) -> int:
    """ISO 8601 with a zone, PostgreSQL's `+00`, or seconds since the epoch."""
    text = text.strip()
    try:
        if text.replace(".", "", 1).isdigit():
            return int(Decimal(text) * 1_000_000)
        found = datetime.fromisoformat(text)
    except (ValueError, InvalidOperation):
        raise ConfigError(f"{what}: {text[:64]!r} is not a time") from None
    return microseconds(found if found.tzinfo else found.replace(tzinfo=UTC))


def _number(text: str | None, what: str) -> Decimal:
    try:
        value = Decimal((text or "").strip())
    except InvalidOperation:
        raise ConfigError(f"{what}: {(text or '')[:64]!r} is not a number") from None
    if not value.is_finite() or value < 0:
        raise ConfigError(f"{what}: {text} is not a measured quantity")
    return value
