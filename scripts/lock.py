"""Writes the lock files: `make lock`. Names, versions and hashes only.

An index address, a host or a path of this machine must not get into the repository: the locks are
made without them, and the result is read once more before it replaces anything. `--upgrade` looks
for newer versions; without it a pinned version stays as long as it fits.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLEAN = re.compile(r"(?:#.*|\s*--hash=sha256:[0-9a-f]{64}.*|[A-Za-z0-9][^/@]*|\s*#.*|)\Z")
"""A line of a lock: a comment, a hash or `name==version ; marker`; no address, no path."""

EVERYTHING = ("--all-extras", "--group", "dev", "--group", "bench", "--group", "build")
IMAGE = tuple(
    word
    for extra in ("crypto", "fast", "grpc", "http", "oidc", "otel", "postgres", "serve", "spanner")
    for word in ("--extra", extra)
)
"""What the container image has: `deploy/Dockerfile`."""
# The development lock comes first and binds the others: the levels then agree on every version,
# and two locks can be installed side by side.
LOCKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("requirements-dev.lock", EVERYTHING),
    ("requirements.lock", ("-c", "requirements-dev.lock")),
    ("requirements-image.lock", (*IMAGE, "-c", "requirements-dev.lock")),
    ("requirements-build.lock", ("-c", "requirements-dev.lock")),
    ("requirements-docs.lock", ("-c", "requirements-dev.lock")),
)


def compile_lock(name: str, options: Sequence[str], *, upgrade: bool) -> None:
    """Resolve one lock in the repository's root; uv keeps what the existing file pins."""
    group = {"requirements-build.lock": "build", "requirements-docs.lock": "docs"}.get(name)
    source = ["--group", group] if group else ["pyproject.toml"]
    command = [sys.executable, "-m", "uv", "pip", "compile", *source, *options]
    command += ["--universal", "--generate-hashes", "--python-version", "3.11", "--no-header"]
    command += ["--no-emit-index-url", "--no-emit-find-links", "--no-annotate", "--quiet"]
    command += ["--upgrade"] if upgrade else []
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch) / name
        if (ROOT / name).exists():
            fresh.write_bytes((ROOT / name).read_bytes())
        subprocess.run([*command, "--output-file", str(fresh)], cwd=ROOT, check=True)
        text = fresh.read_text()
    foreign = [line for line in text.splitlines() if not CLEAN.match(line)]
    if foreign:
        raise SystemExit(f"{name} would hold an address or a path: {foreign[:3]}")
    (ROOT / name).write_text(text)
    print(f"{name}: {len(re.findall(r'^[A-Za-z0-9]', text, re.M))} packages")


def main(arguments: Sequence[str]) -> int:
    for name, options in LOCKS:
        compile_lock(name, options, upgrade="--upgrade" in arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
