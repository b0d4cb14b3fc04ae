"""Sets up the project's own environment in `.venv`: `python3 scripts/environment.py run|dev|docs`.

Levels: `run` is what the embedded demo needs (a few megabytes), `dev` is everything that the
tests, the checks and PostgreSQL need. `docs` makes the site of the documentation; it has an
environment of its own in `.late/docs`, without late itself. Every file that is downloaded is
checked against the hash in a lock. A stamp remembers what was installed, so that the second run
does nothing.

Standard library only: this file runs before anything is installed. pip is used once, to get uv
(some five times faster than pip); the rest is uv's work.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON_MIN = (3, 11)
BUILD_LOCK = "requirements-build.lock"
LOCKS = {
    "run": ("requirements.lock", BUILD_LOCK),
    "dev": ("requirements-dev.lock", BUILD_LOCK),
    "docs": ("requirements-docs.lock", BUILD_LOCK),
}


class SetupFailed(Exception):
    """A step failed twice, or the machine lacks something: the message says what to do."""


def say(text: str) -> None:
    print(f"[setup] {text}", flush=True)


def fingerprint(root: Path, level: str) -> str:
    """Changes when anything that decides the environment's content changes."""
    digest = hashlib.sha256(repr((sys.version_info[:3], str(root), level)).encode())
    for name in (*LOCKS[level], "pyproject.toml", "scripts/environment.py"):
        digest.update((root / name).read_bytes())
    return digest.hexdigest()


def installed(root: Path, venv: Path, level: str) -> bool:
    """Return True if `venv` already holds `level`; `dev` includes `run`."""
    levels = ("run", "dev") if level == "run" else (level,)
    for one in levels:
        stamp = venv / f".late-{one}"
        if stamp.is_file() and stamp.read_text() == fingerprint(root, one):
            return True
    return False


def attempt(command: Sequence[str], *, tries: int = 2) -> None:
    """Run a command and show its output; only the exit code decides, warnings do not.

    A second try, because a download may break once; it also trusts the machine's own certificates,
    which know a company's proxy. They are not the first choice because a bare image has none. No
    `-q` anywhere: a quiet tool that fails leaves nothing to go by.

    Raises:
        SetupFailed: it failed every time.
    """
    # pip.conf and uv.toml of the machine stay in force (proxies, mirrors); the hashes in the
    # locks decide what is accepted from there.
    environment = os.environ | {
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_NO_PROGRESS": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
    }
    for number in range(1, tries + 1):
        code = subprocess.run(command, check=False, env=environment).returncode
        if code == 0:
            return
        environment.setdefault("UV_SYSTEM_CERTS", "true")
        say(f"exit code {code} (try {number} of {tries}): {' '.join(command)}")
    raise SetupFailed(f"this step failed {tries} times: {' '.join(command)}")


def has_pip(python: Path) -> bool:
    """Return True if this environment's Python runs and has pip; add pip if it is missing."""
    if not python.exists():
        return False
    for words in (["pip", "--version"], ["ensurepip"]):
        done = subprocess.run([str(python), "-m", *words], check=False, capture_output=True)
        if done.returncode == 0:
            return True
    return False


def create(venv: Path) -> None:
    """A fresh virtual environment; a broken or foreign one is replaced."""
    if venv.exists():
        shutil.rmtree(venv)
    try:
        attempt([sys.executable, "-m", "venv", str(venv)], tries=1)
    except SetupFailed as failed:
        raise SetupFailed(
            f"{sys.executable} cannot make a virtual environment; on Debian and Ubuntu the "
            f"package python3-venv is missing ({failed})"
        ) from failed


def install(root: Path, venv: Path, level: str) -> None:
    """Bring `venv` to exactly what the locks of `level` say, plus the checkout itself.

    The site of the documentation reads the checkout and does not run it.
    """
    python = venv / "bin" / "python"
    if not has_pip(python):
        say(f"making {venv} with Python {sys.version.split()[0]}")
        create(venv)
    say("installing uv and the build tools (pip, hashes checked)")
    build = str(root / BUILD_LOCK)
    attempt([str(python), "-m", "pip", "install", "--require-hashes", "-r", build])
    locks = [str(root / name) for name in LOCKS[level]]
    say(f"installing the packages of level '{level}' (uv, hashes checked)")
    target = ["--python", str(python)]
    # Without build isolation: a package that must be built uses the build tools of the lock
    # instead of downloading its own, whose hashes nobody would check.
    uv = [str(python), "-m", "uv", "pip"]
    # Compiled once here and not at every start: a worker starts twice as fast, also where Python
    # is told not to write byte code.
    options = ["--require-hashes", "--no-build-isolation", "--compile-bytecode"]
    attempt([*uv, "sync", *target, *options, *locks])
    if level == "docs":
        return
    say("installing late itself from this checkout (editable)")
    attempt([*uv, "install", *target, "--no-deps", "--no-build-isolation", "-e", str(root)])


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in LOCKS:
        print("usage: python3 scripts/environment.py run|dev|docs", file=sys.stderr)
        return 2
    level = arguments[0]
    if sys.version_info < PYTHON_MIN:
        wanted = ".".join(map(str, PYTHON_MIN))
        print(
            f"late needs Python {wanted} or newer and this is {sys.version.split()[0]} "
            f"({sys.executable}). Name another with: make PYTHON=python{wanted} ...",
            file=sys.stderr,
        )
        return 2
    venv = Path(os.environ.get("LATE_VENV", ROOT / ".venv")).absolute()
    if level == "docs":
        venv = ROOT / ".late" / "docs"
    if installed(ROOT, venv, level):
        return 0
    if (venv / ".late-dev").exists():
        level = "dev"  # never take the tests' packages away because the demo asked first
    try:
        for one in LOCKS:
            (venv / f".late-{one}").unlink(missing_ok=True)
        install(ROOT, venv, level)
    except SetupFailed as failed:
        print(f"[setup] failed: {failed}", file=sys.stderr)
        return 1
    (venv / f".late-{level}").write_text(fingerprint(ROOT, level))
    say("ready")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
