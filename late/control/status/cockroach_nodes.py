"""Figures that CockroachDB's nodes count: their own page for Prometheus, `http://NODE:8080/_status/vars`.

Each node tells of itself, and SQL tells none of it. So all nodes are asked, and their figures are
added up: of the whole cluster, with all databases and replicas in it. One node that does not answer
makes the sum unknown: without it every counter would seem to have gone back.
"""

from __future__ import annotations

import math
import re
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from http.client import HTTPException, HTTPResponse
from time import monotonic
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.parse import urlsplit

import msgspec

from late.control.status.server import Server
from late.errors import ConfigError, StoreUnavailable

if TYPE_CHECKING:
    from prometheus_client import Metric

TIMEOUT_S = 5.0
"""The time for which a node may be silent, and that it may take for the whole of its page."""
BYTES_MAX = 32 * 1024 * 1024
LINE_MAX = 16 * 1024
"""Characters of a line: a node's have some hundred."""
_CHUNK = 64 * 1024
_NAME = re.compile(r"\w+")
_FIELDS = {
    "size_bytes": "capacity_used",
    "connections": "sql_conns",
    # `sql_txn_commit_count` knows only what was committed by the word COMMIT.
    "commits": "txn_commits",
    "rollbacks": "txn_aborts",
    "blocks_cached": "rocksdb_block_cache_hits",
    "blocks_read": "rocksdb_block_cache_misses",
    "wal_bytes": "storage_wal_bytes_written",
    "temp_bytes": "sql_disk_distsql_spilled_bytes_written",
    "deadlocks": "txnwaitqueue_deadlocks_total",
}
"""Fields of `Server`. Rows are not among them: the nodes count statements, and not rows."""
_SERIES = {
    "liveness_livenodes": "cr.node.liveness.livenodes",
    "sys_cpu_combined_percent_normalized": "cr.node.sys.cpu.combined.percent-normalized",
    "capacity_used": "cr.store.capacity.used",
    "sql_select_count": "cr.node.sql.select.count",
    "sql_insert_count": "cr.node.sql.insert.count",
    "sql_update_count": "cr.node.sql.update.count",
    "sql_delete_count": "cr.node.sql.delete.count",
    "sql_query_count": "cr.node.sql.query.count",
    "sql_bytesin": "cr.node.sql.bytesin",
    "sql_bytesout": "cr.node.sql.bytesout",
}
"""Under which names `cockroach debug tsdump` has what the cost report reads."""
_WANTED = frozenset(_FIELDS.values()) | frozenset(_SERIES)


class Sample(msgspec.Struct, frozen=True):
    """One figure of one node or store."""

    name: str
    source: str
    """The node, or the store of it."""
    value: float


def parse(text: str, node: str) -> list[Sample]:
    """The few figures that are of use here, in the order of the page; others are passed over.

    Args:
        node: what to call a node that does not name itself.

    Raises:
        StoreUnavailable: a line of one of them that cannot be read, or none of them is there.
    """
    families = _parser()
    found = []
    for line in text.splitlines():
        name = _NAME.match(line)
        if name is None or name[0] not in _WANTED:
            continue
        if len(line) > LINE_MAX:
            raise StoreUnavailable(f"{node} tells {name[0]} in a line that is too long")
        try:
            # Line by line: what is wrong elsewhere on the page is nothing to us.
            [family] = families(line)
            [(_, labels, value, *_)] = family.samples
        except (IndexError, ValueError):
            told = f"{node} tells {name[0]} in a way that is not known"
            raise StoreUnavailable(told) from None
        if math.isfinite(value):
            source = labels.get("store") or labels.get("node_id") or node
            found.append(Sample(name[0], source, float(value)))
    if not found:
        raise StoreUnavailable(f"{node} answers, and not with the figures of a CockroachDB node")
    return found


def _parser() -> Callable[[str], Iterable[Metric]]:
    """The reader of Prometheus' own library.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ModuleNotFoundError as error:
        raise ConfigError(
            '--status-vars needs what reads such a page: pip install "late-queue[cockroach]"'
        ) from error
    return text_string_to_metric_families


def fetch(urls: Sequence[str]) -> list[Sample]:
    """The figures of all nodes. Blocks, for each node `TIMEOUT_S` to connect, as long for its page,
    and as long for a last part that is on its way.

    Raises:
        StoreUnavailable: one of them does not answer as it should.
    """
    return [each for url in urls for each in parse(_read(url), urlsplit(url).netloc)]


def checked(urls: Iterable[str]) -> list[str]:
    """Whole addresses of nodes: `http://HOST:PORT` is enough.

    Raises:
        ConfigError: another scheme, no host or port that can be, or a password in it. The message
            names the value, and nothing before an `@`. Or what reads their pages is missing.
    """
    found = []
    for url in urls:
        try:
            parts = urlsplit(url)
            known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
            known = known and "@" not in parts.netloc
        except ValueError:
            known = False
        if not known:
            told = url.rpartition("@")[2][:80]
            raise ConfigError(f"--status-vars is a node's http://HOST:8080, and not {told!r}")
        found.append(url if parts.path.strip("/") else url.rstrip("/") + "/_status/vars")
    if found:
        _parser()
    if len(set(found)) < len(found):
        raise ConfigError("--status-vars names a node twice: it would be counted twice")
    return found


def server_of(samples: Iterable[Sample], at_us: int) -> Server:
    """The figures of all nodes together; what none of them tells, or what comes to more than can be
    counted, is not known."""
    sums: dict[str, float] = {}
    for each in samples:
        sums[each.name] = sums.get(each.name, 0.0) + each.value
    known = {
        field: int(sums[name])
        for field, name in _FIELDS.items()
        if math.isfinite(sums.get(name, math.nan))
    }
    return msgspec.convert({"at_us": at_us, **known}, Server)


def series_of(samples: Iterable[Sample]) -> Iterator[tuple[str, str, float]]:
    """(name, source, value) as `cockroach debug tsdump` has them; figures of tenants that share a
    node are added up."""
    sums: dict[tuple[str, str], float] = {}
    for each in samples:
        if each.name in _SERIES:
            key = (_SERIES[each.name], each.source)
            sums[key] = sums.get(key, 0.0) + each.value
    return ((name, source, value) for (name, source), value in sums.items() if math.isfinite(value))


def _read(url: str) -> str:
    where = urlsplit(url).netloc
    try:
        # The scheme was checked when the URL was given.
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:  # nosec B310
            content = _whole(answer, monotonic() + TIMEOUT_S)
    except (OSError, ValueError, HTTPException) as error:
        if isinstance(error, HTTPError):
            error.close()
        told = str(error) or type(error).__name__
        raise StoreUnavailable(f"{where} does not tell its figures: {told}") from None
    if len(content) > BYTES_MAX:
        raise StoreUnavailable(f"{where} answers with more than {BYTES_MAX:,} bytes")
    return content.decode("utf-8", "replace")


def _whole(answer: HTTPResponse, until: float) -> bytearray:
    """The body, up to the first part beyond `BYTES_MAX`.

    Part by part, because the socket's own timeout begins anew with each byte that comes.

    Raises:
        OSError: it is not there in time, or ends before it is whole.
    """
    content = bytearray()
    while part := answer.read1(_CHUNK):
        content += part
        if len(content) > BYTES_MAX:
            return content
        if monotonic() > until:
            raise TimeoutError(f"its page is not whole after {TIMEOUT_S:g} s")
    if answer.length:  # `read1` says nothing of it; of a body in chunks it does
        raise ConnectionError(f"its page was cut short by {answer.length:,} bytes")
    return content
