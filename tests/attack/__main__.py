"""`python -m tests.attack`: attack a running server on each store, and print what came of it.

python -m tests.attack                            everything, on SQLite and PostgreSQL
python -m tests.attack --stores sqlite            on one of them
python -m tests.attack --only contract big_run    some parts: see PARTS, and `security`
python -m tests.attack --save                     write the table into docs/attacks.md

`security` runs tests/security, whose servers are their own. The exit code is 1 if anything did not
hold; each outcome that must not be is printed.
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
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

from tests.attack import big_run, contract, forgeries, http_corpus, page_walk, rpc_fuzz
from tests.attack.table import Row, render
from tests.attack.target import Target, running
from tests.servers import URL_VARIABLE, drop_database, fresh_database, postgres_url, stop_servers

PARTS: dict[str, ModuleType] = {
    each.__name__.rpartition(".")[2]: each
    for each in (http_corpus, rpc_fuzz, forgeries, page_walk, contract, big_run)
}
STORES = ("sqlite", "postgresql")
ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "attacks.md"
MARK = "<!-- the table: make attack -->"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack")
    parser.add_argument("--stores", nargs="+", choices=STORES, default=list(STORES))
    names = ["security", *PARTS]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--save", action="store_true", help=f"write {PAGE.name}")
    asked = parser.parse_args()
    began = time.monotonic()
    rows: list[Row] = []
    try:
        server = postgres_url()
        if server is not None:
            os.environ[URL_VARIABLE] = server  # one for all
        if "security" in asked.only:
            rows += _security()
        for store in asked.stores:
            with (
                tempfile.TemporaryDirectory(prefix="late-attack-") as folder,
                _database(store, server, Path(folder)) as url,
            ):
                rows += _attack(store, url, Path(folder), asked.only)
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


def _attack(store: str, url: str, folder: Path, only: list[str]) -> Iterator[Row]:
    with running(store, url, folder) as target:
        for name, part in PARTS.items():
            if name in only:
                yield from _part(name, part, target)


def _part(name: str, part: ModuleType, target: Target) -> list[Row]:
    began = time.monotonic()
    made = part.run(target)
    rows = made if isinstance(made, list) else [made]
    held = "held" if not any(row.wrong for row in rows) else "DID NOT HOLD"
    took = time.monotonic() - began
    print(f"[attack] {target.store}: {name} {held}, {took:.0f} s", file=sys.stderr, flush=True)
    return rows


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
    """Run tests/security, and give a row for each file."""
    with tempfile.TemporaryDirectory(prefix="late-attack-") as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", f"--junitxml={report}"]
        done = subprocess.run(
            [*command, "tests/security"], cwd=ROOT, capture_output=True, text=True, check=False
        )
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
    return [rows[name] for name in sorted(rows)]


def _save(table: str, seconds: float) -> None:
    cores, day = os.cpu_count(), datetime.now(UTC).date()
    load = re.sub(r"[(), ]+", " ", str(tuple(round(each, 1) for each in os.getloadavg()))).strip()
    said = f"Made on {day} in {seconds:.0f} s, on {cores} processors with a load of {load}."
    head, mark, _ = PAGE.read_text().partition(MARK)
    PAGE.write_text(f"{head}{mark}\n\n{said}\n\n{table}\n")


if __name__ == "__main__":
    sys.exit(main())
