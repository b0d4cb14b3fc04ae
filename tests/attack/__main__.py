"""`python -m tests.attack`: attack a running server on each store, and print what came of it.

python -m tests.attack                            everything, on SQLite and PostgreSQL
python -m tests.attack --stores sqlite            on one of them
python -m tests.attack --only contract big_run    some parts: see PARTS, and `security`
python -m tests.attack --save                     write the table into docs/attacks.md

`security` runs tests, whose servers are their own. They and the parts of both stores run side by
side, each store with a server of its own; `big_run`, all floods at once, runs when these have
ended, against a new server, so that its memory counts from a known start. The exit code is 1 if
anything did not hold; each outcome that must not be is printed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

from tests.attack import (
    big_run,
    contract,
    forgeries,
    http_corpus,
    operator_walk,
    page_walk,
    piles,
    rpc_fuzz,
)
from tests.attack.table import Row, render
from tests.attack.target import Target, running
from tests.servers import URL_VARIABLE, drop_database, fresh_database, postgres_url, stop_servers

PARTS: dict[str, ModuleType] = {
    each.__name__.rpartition(".")[2]: each
    for each in (http_corpus, piles, rpc_fuzz, forgeries, page_walk, operator_walk, contract)
}
BIG_RUN = "big_run"
TESTS = ("tests/security", "tests/integration/test_outbox_autocommit.py")
STORES = ("sqlite", "postgresql")
ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "attacks.md"
MARK = "<!-- the table: make attack -->"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack")
    parser.add_argument("--stores", nargs="+", choices=STORES, default=list(STORES))
    names = ["security", *PARTS, BIG_RUN]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--save", action="store_true", help=f"write {PAGE.name}")
    asked = parser.parse_args()
    began = time.monotonic()
    try:
        server = postgres_url()
        if server is not None:
            os.environ[URL_VARIABLE] = server  # one for all
        rows = _attacks(asked.stores, server, asked.only)
    finally:
        stop_servers()
    table = render(rows)
    print(table)
    for row in rows:
        for text in row.wrong:
            print(f"NOT HELD, {row.attack} {row.store}: {text}")
    print(f"{sum(row.inputs for row in rows):,} inputs in {time.monotonic() - began:.0f} s")
    if asked.save:
        _save(table, time.monotonic() - began)
    return int(any(row.wrong for row in rows))


def _attacks(stores: Sequence[str], server: str | None, only: Sequence[str]) -> list[Row]:
    """Run the tests and the parts of each store side by side, and then the floods one by one."""
    parts = {name: part for name, part in PARTS.items() if name in only}
    with ThreadPoolExecutor() as pool:
        tests = pool.submit(_security) if "security" in only else None
        walks = [pool.submit(_attack, store, server, parts) for store in stores if parts]
        rows = tests.result() if tests is not None else []
        by_store = [walk.result() for walk in walks]
    for number, store in enumerate(stores):
        rows += by_store[number] if by_store else []
        if BIG_RUN in only:
            rows += _attack(store, server, {BIG_RUN: big_run})
    return rows


def _attack(store: str, server: str | None, parts: Mapping[str, ModuleType]) -> list[Row]:
    """Run the parts against a new server on an empty database."""
    with (
        tempfile.TemporaryDirectory(prefix="late-attack-") as folder,
        _database(store, server, Path(folder)) as url,
        running(store, url, Path(folder)) as target,
    ):
        return [row for name, part in parts.items() for row in _part(name, part, target)]


def _part(name: str, part: ModuleType, target: Target) -> list[Row]:
    began = time.monotonic()
    made = part.run(target)
    rows = made if isinstance(made, list) else [made]
    held = all(not row.wrong for row in rows)
    _tell(f"{target.store}: {name}", held, began)
    for text in (each for row in rows for each in row.wrong):
        print(f"[attack]   {text}", file=sys.stderr, flush=True)
    return rows


def _tell(name: str, held: bool, began: float) -> None:
    end = f"{'held' if held else 'DID NOT HOLD'}, {time.monotonic() - began:.0f} s"
    print(f"[attack] {name} {end}", file=sys.stderr, flush=True)


@contextmanager
def _database(store: str, server: str | None, folder: Path) -> Iterator[str]:
    """Yield the URL of an empty database."""
    if store == "sqlite":
        yield f"sqlite:///{folder}/attacked.db"
        return
    if server is None:
        raise SystemExit(f"no PostgreSQL: set {URL_VARIABLE} or install one")
    url = fresh_database(server)
    try:
        yield url
    finally:
        drop_database(server, url)


def _security() -> list[Row]:
    """Run the tests of attacks on SQLite and PostgreSQL, and give a row for each file."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="late-attack-") as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", f"--junitxml={report}"]
        command += ["-k", "not spanner and not cockroach", *TESTS]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if not report.exists():
            raise SystemExit(done.stdout + done.stderr)
        rows: dict[str, Row] = {}
        for case in ElementTree.parse(report).iter("testcase"):  # It is our own. # nosec B314
            name = (case.get("classname") or "").rpartition("test_")[2]
            row = rows.setdefault(name, Row(f"tests of {name.replace('_', ' ')}", "own servers"))
            result = Counter(each.tag for each in case)
            failed = result["failure"] + result["error"]
            outcome = "failed" if failed else "skipped" if result["skipped"] else "held"
            row.add(outcome, wrong=case.get("name") if failed else None)
    _tell("tests", all(not row.wrong for row in rows.values()), began)
    return [rows[name] for name in sorted(rows)]


def _save(table: str, seconds: float) -> None:
    cores, day = os.cpu_count(), datetime.now(UTC).date()
    load = re.sub(r"[(), ]+", " ", str(tuple(round(each, 1) for each in os.getloadavg()))).strip()
    said = f"Made on {day} in {seconds:.0f} s, on {cores} processors with a load of {load}."
    head, mark, _ = PAGE.read_text().partition(MARK)
    PAGE.write_text(f"{head}{mark}\n\n{said}\n\n{table}\n")


if __name__ == "__main__":
    sys.exit(main())
