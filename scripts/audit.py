"""Looks for known vulnerabilities in the locks: `make audit ARGS=all.zip`.

The argument is a database of OSV for PyPI: the file `all.zip` that OSV offers to download, or a
folder of its JSON files. pip-audit asks it through a server on this machine, so a build without the
internet can be audited by a file that is brought to it. Without an argument pip-audit asks the
package index.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ("requirements-dev.lock", "requirements-build.lock", "requirements-docs.lock")
"""The first has what those of a service and of the image have, in the same versions."""
Record = dict[str, Any]


def records(path: Path) -> Iterator[Record]:
    """Return the records in a ZIP file or a folder."""
    if path.is_dir():
        yield from (json.loads(each.read_bytes()) for each in sorted(path.rglob("*.json")))
        return
    with zipfile.ZipFile(path) as packed:
        for name in packed.namelist():
            if name.endswith(".json"):
                yield json.loads(packed.read(name))


def by_package(found: Iterable[Record]) -> dict[str, list[Record]]:
    """Return the records of each package of PyPI."""
    index: dict[str, list[Record]] = {}
    for record in found:
        names = {canonicalize_name(each["package"]["name"]) for each in _python(record)}
        for name in names:
            index.setdefault(name, []).append(record)
    return index


def _python(record: Record) -> list[Record]:
    affected = record.get("affected") or ()
    return [each for each in affected if each.get("package", {}).get("ecosystem") == "PyPI"]


def is_affected(record: Record, name: str, version: str) -> bool:
    """Return whether a version is among those of a record, by its list or its ranges.

    Source: the OSV schema 1.7, "evaluation of a version". What cannot be compared is affected.
    """
    for each in _python(record):
        if canonicalize_name(each["package"]["name"]) != name:
            continue
        ranges = [one for one in each.get("ranges") or () if one.get("type") == "ECOSYSTEM"]
        if version in (each.get("versions") or ()) or any(
            _within(one.get("events") or (), version) for one in ranges
        ):
            return True
    return False


def _within(events: Sequence[Mapping[str, str]], version: str) -> bool:
    try:
        mine, inside = Version(version), False
        for event in sorted(events, key=_at):
            if "introduced" in event:
                inside = inside or mine >= _at(event)
            elif "fixed" in event:
                inside = inside and mine < _at(event)
            elif "last_affected" in event:
                inside = inside and mine <= _at(event)
    except InvalidVersion:
        return True
    return inside


def _at(event: Mapping[str, str]) -> Version:
    (value,) = event.values()
    return Version(value)


def server(index: Mapping[str, Sequence[Record]]) -> ThreadingHTTPServer:
    """Return a server on a free port that answers `POST /v1/query` as OSV does."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            name, version = canonicalize_name(asked["package"]["name"]), asked["version"]
            found = [each for each in index.get(name, ()) if is_affected(each, name, version)]
            body = json.dumps({"vulns": found} if found else {}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


def main(arguments: Sequence[str], locks: Sequence[str] = LOCKS) -> int:
    """Return pip-audit's exit code: 0 if nothing is known."""
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--progress-spinner", "off"]
    for name in locks:
        command += ["-r", str(ROOT / name)]
    if not arguments:
        return subprocess.run(command, check=False).returncode
    index = by_package(records(Path(arguments[0])))
    if not index:
        raise SystemExit(f"{arguments[0]} has no record of a package of PyPI")
    with server(index) as asked:
        threading.Thread(target=asked.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{asked.server_address[1]}/v1/query"
        command += ["--vulnerability-service", "osv", "--osv-url", url]
        code = subprocess.run(command, check=False).returncode
        asked.shutdown()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
