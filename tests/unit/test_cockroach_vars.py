"""What CockroachDB's nodes count, by their page for Prometheus: a hand-made one, never a node's."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path

import pytest
from late_spark import importers

from late.cli.metrics_recorder import Recorder, of_nodes, of_server
from late.control.status import cockroach_nodes as cockroach_vars
from late.control.status.cockroach_nodes import checked, fetch, parse, server_of
from late.control.status.server import Server
from late.errors import ConfigError, StoreUnavailable
from tests.support import sqlite
from tests.unit.cli_kit import Cli

PAGE = """# HELP sql_conns Number of open SQL connections
# TYPE sql_conns gauge
sql_conns{node_id="NODE",tenant="system"} 4
sql_conns_waiting_to_hash{node_id="NODE"} 77
# TYPE txn_commits counter
txn_commits{node_id="NODE"} COMMITS
txn_aborts{node_id="NODE"} 5
sql_txn_commit_count{node_id="NODE"} 1
sql_select_count{node_id="NODE",tenant="system"} 100
sql_select_count{node_id="NODE",tenant="other \\"} 9 {"} 20
sql_select_count_internal{node_id="NODE"} 1e+06
sql_insert_count{node_id="NODE"} 7
capacity_used{store="NODE",node_id="NODE"} 1.5e+09
capacity{store="NODE"} 9e+09
rocksdb_block_cache_hits{store="NODE"} 30
rocksdb_block_cache_misses{store="NODE"} 3
sys_cpu_combined_percent_normalized{node_id="NODE"} 0.25
liveness_livenodes 2 1700000000000
storage_wal_bytes_written{store="NODE"} NaN
txnwaitqueue_deadlocks_total{store="NODE"} 0
"""


def page_of(node: int, commits: int = 10) -> str:
    return PAGE.replace("NODE", str(node)).replace("COMMITS", str(commits))


@contextmanager
def nodes(*pages: Callable[[], str]) -> Iterator[list[str]]:
    """Their addresses; an empty page is a 500, and one with a head of its own is sent as it is."""
    servers = []
    for page in pages:

        class Handler(BaseHTTPRequestHandler):
            told = staticmethod(page)

            def do_GET(self) -> None:
                content = self.told() if self.path == "/_status/vars" else ""
                if content.startswith("HTTP/"):
                    self.wfile.write(content.encode())
                    return
                self.send_response(200 if content else 500)
                self.end_headers()
                self.wfile.write(content.encode())

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
    try:
        yield [f"http://127.0.0.1:{server.server_port}" for server in servers]
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def test_figures_of_all_nodes_are_added_up() -> None:
    samples = [each for node in (1, 2) for each in parse(page_of(node), f"n{node}")]
    assert server_of(samples, 9) == Server(
        9, size_bytes=3_000_000_000, connections=8, commits=20, rollbacks=10, blocks_cached=60,
        blocks_read=6, deadlocks=0,
    )  # fmt: skip
    assert server_of([], 9) == Server(9)


@pytest.mark.parametrize(
    "text", ["", "<html>sign in</html>", "txn_commits{} many", "txn_commits", 'sql_conns{a="b"} ']
)
def test_what_cannot_be_read_is_said(text: str) -> None:
    with pytest.raises(StoreUnavailable, match="n1"):
        parse(text, "n1")


def test_nodes_are_asked_one_by_one_and_all_must_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with nodes(lambda: page_of(1), lambda: page_of(2, 3)) as urls:
        assert server_of(fetch(checked(urls)), 1).commits == 13
        with monkeypatch.context() as patch:
            patch.setattr(cockroach_vars, "BYTES_MAX", 100)
            with pytest.raises(StoreUnavailable, match="more than 100 bytes"):
                fetch(checked(urls))
    with nodes(lambda: page_of(1), str) as urls, pytest.raises(StoreUnavailable, match="500"):
        fetch(checked(urls))
    with pytest.raises(StoreUnavailable, match="does not tell its figures"):
        fetch(checked(urls))  # nobody is there any more


@pytest.mark.parametrize(
    "answer",
    [
        "HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n" + page_of(1),
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n400\r\nsql_conns 4\n",
        "HTTP/1.1 many\r\n\r\n",
        "HTTP/1.1 200 OK\r\n" + "X: y\r\n" * 101 + "\r\n" + page_of(1),
    ],
    ids=["cut short", "a chunk cut short", "no status", "too many headers"],
)
def test_an_answer_that_is_not_whole_or_not_http_is_none(answer: str) -> None:
    with (
        nodes(lambda: answer) as urls,
        pytest.raises(StoreUnavailable, match=r"does not tell its figures: ."),
    ):
        fetch(checked(urls))


def test_an_address_that_nobody_can_be_asked_at_is_as_a_node_that_is_gone() -> None:
    with pytest.raises(StoreUnavailable, match="does not tell its figures"):
        fetch(["http://127.0.0.1:1/a page"])  # http.client refuses it by an error of its own


def test_a_page_has_one_deadline_however_often_a_part_of_it_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = count(0.0, 2.0)
    monkeypatch.setattr(cockroach_vars, "monotonic", clock.__next__)
    monkeypatch.setattr(cockroach_vars, "_CHUNK", 1_000)
    with nodes(lambda: page_of(1)) as urls:
        assert fetch(checked(urls))
    whole = page_of(1) + "# more\n" * 1_000
    with (
        nodes(lambda: whole) as urls,
        pytest.raises(StoreUnavailable, match="not whole after 5 s"),
    ):
        fetch(checked(urls))


def test_a_long_line_costs_no_more_than_its_length() -> None:
    line = "sql_conns{" + "a" * 60_000 + "} 1"
    with pytest.raises(StoreUnavailable, match="n1 tells sql_conns in a line that is too long"):
        parse(line, "n1")
    assert parse("other{" + "a" * 60_000 + "} 1\nsql_conns 1", "n1")


def test_a_line_that_is_wrong_elsewhere_is_passed_over_and_an_odd_one_of_ours_is_told() -> None:
    assert [each.value for each in parse("# TYPE\nother{a=} ?\nsql_conns\t4 \n", "n1")] == [4.0]
    for odd in ('sql_conns{a="b} 4', "sql_conns{a=b} 4", 'sql_conns{a="b",a="c"} 4', "sql_conns{"):
        with pytest.raises(StoreUnavailable, match="n1 tells sql_conns in a way that is not known"):
            parse(odd, "n1")


def test_without_the_reader_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client.parser", None)
    assert checked([]) == []
    with pytest.raises(ConfigError, match=r"late-queue\[cockroach\]"):
        checked(["http://node:8080"])


def test_what_comes_to_more_than_a_number_can_be_is_not_known() -> None:
    page = "sql_conns 1e308\ntxn_commits 7\nsql_select_count 1e308"
    samples = parse(page, "n1") * 2
    assert server_of(samples, 9) == Server(9, commits=14)
    assert list(cockroach_vars.series_of(samples)) == []


@pytest.mark.parametrize(
    "url",
    ["node:8080", "file:///etc/passwd", "http://", "http://[::1", "http://node:many",
     "http://node:0", "http://eve:secret@node:8080", "http://eve:secret@[::1"],
)  # fmt: skip
def test_an_address_that_is_none_is_refused_and_its_password_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        checked([url])
    assert repr(url.rpartition("@")[2]) in str(refused.value)
    assert "secret" not in str(refused.value)
    with pytest.raises(ConfigError, match="twice"):
        checked(["http://a:1", "http://a:1/"])


def test_a_recording_is_what_the_report_reads(tmp_path: Path) -> None:
    path = tmp_path / "load.csv"
    for at_s, commits in ((1_700_000_000, 10), (1_700_000_060, 40)):
        samples = parse(page_of(1, commits).replace(" 7\n", f" {commits}\n"), "n1")
        recorder = Recorder(path, lambda s=samples, t=at_s: of_nodes(s, t * 1_000_000))
        assert recorder.once() == 5
        assert recorder.once() == 0
    found = importers.load([path])
    values = {key.metric: list(series.values) for key, series in found.series.items()}
    assert values == {
        "nodes": [Decimal(2)] * 2, "cpu": [Decimal("0.25")] * 2,
        "storage_bytes": [Decimal("1.5E+9")] * 2, "reads": [Decimal(0)], "writes": [Decimal(30)],
    }  # fmt: skip
    with pytest.raises(ConfigError, match="other columns"):
        Recorder(path, lambda: of_server(Server(1, size_bytes=1))).once()
    other = tmp_path / "notes.csv"
    other.write_text("what,when\n")
    with pytest.raises(ConfigError, match="dump of CockroachDB"):
        Recorder(other, lambda: of_nodes(samples, 1)).once()


def test_the_command_tells_of_the_nodes_and_of_the_queues_without_them(
    cli: Cli, tmp_path: Path
) -> None:
    url = sqlite.database(tmp_path / "queue.db")
    with nodes(lambda: page_of(1)) as urls:
        said = cli.fine("metrics", url, "--status-vars", urls[0]).out
    assert 'late_database_transactions_total{outcome="commit"} 10' in said
    assert "late_database_size_bytes 1500000000" in said
    gone = cli.fine("metrics", url, "--status-vars", urls[0])
    assert "late_database_transactions_total{" not in gone.out
    assert "late_shards{" in gone.out
    assert "nothing is known of the server" in gone.err
    both = ("--instance", "projects/p/instances/i", "--status-vars", urls[0])
    assert "--status-vars" in cli.refused("metrics", url, *both)
