"""Build what people install, prove it, and try it: `make dist`.

1. The files that git knows are copied to two places. In the second one everything that may differ
   between machines differs: times, modes, umask, time zone, hash seed. There the wheel is built
   from the unpacked source distribution. A byte that differs is an error.
2. `twine` reads the metadata, `check-wheel-contents` what is in the wheel.
3. Each Python that is here makes an empty environment, installs the wheel with what it needs, and
   runs the fifteen lines of the README until their task has run.

`--python NAME` tries these Pythons only, and fails if one is missing. A name is looked for on PATH,
then among pyenv's versions.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from scripts.check_tree import tracked

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")
ELSEWHERE = {"TZ": "Asia/Kathmandu", "PYTHONHASHSEED": "7", "LC_ALL": "C"}
WORKER_S = 60
"""A worker that has not run the task of the README by then will not."""


def run(
    command: Sequence[str | Path],
    folder: Path,
    more: Mapping[str, str] | None = None,
    *,
    umask: int = -1,
) -> str:
    """Return what a command wrote.

    Raises:
        SystemExit: it failed; with its output.
    """
    done = subprocess.run(
        [str(word) for word in command], cwd=folder, env=os.environ | (more or {}), umask=umask,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}:\n{done.stdout}")
    return done.stdout


def copy(target: Path, *, other: bool) -> None:
    """Copy the checkout; the other copy has other times, and files that nobody else may read."""
    for name in tracked(ROOT):
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, path)
        if other:
            os.utime(path, (1_000_000_000, 1_000_000_000))
            path.chmod(0o700 if os.access(path, os.X_OK) else 0o600)


def build(folder: Path, kind: str, *, other: bool = False) -> Path:
    """Return the built file: `sdist` or `wheel`."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", "built"]
    run(command, folder, ELSEWHERE if other else None, umask=0o077 if other else -1)
    (built,) = (folder / "built").glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built


def unpack(sdist: Path, target: Path) -> Path:
    """Return the one folder that a source distribution holds."""
    shutil.unpack_archive(sdist, target)  # `tarfile` has no filters before Python 3.11.4.
    (folder,) = target.iterdir()
    return folder


def build_twice(scratch: Path) -> tuple[Path, Path]:
    """Return the source distribution and the wheel, which are the same from both copies."""
    here, there = scratch / "here", scratch / "there"
    copy(here, other=False)
    copy(there, other=True)
    sdist, wheel = build(here, "sdist"), build(here, "wheel")
    again = build(there, "sdist", other=True)
    unpacked = unpack(again, scratch / "unpacked")
    for first, second in ((sdist, again), (wheel, build(unpacked, "wheel", other=True))):
        if first.read_bytes() != second.read_bytes():
            raise SystemExit(f"{first.name}: two builds differ: {first} {second}")
    return sdist, wheel


def check(files: Sequence[Path]) -> None:
    """Refuse metadata that an index would refuse, and a wheel that holds what it should not."""
    run([sys.executable, "-m", "twine", "check", "--strict", *files], ROOT)
    wheels = [path for path in files if path.suffix == ".whl"]
    config = ["--config", ROOT / "pyproject.toml"]
    run([sys.executable, "-m", "check_wheel_contents", *config, *wheels], ROOT)


def fetch(command: Sequence[str | Path]) -> None:
    """Run a command that needs packages: those that the project's own environment was made of, and
    from the network if they are not kept; there it has three tries.

    Raises:
        SystemExit: all have failed; with the output of the last.
    """
    last = {"UV_SYSTEM_CERTS": "true"}
    for more in ({"UV_OFFLINE": "true"}, {}, last):
        with suppress(SystemExit):
            run(command, ROOT, more)
            return
    run(command, ROOT, last)


def install(python: str, wheel: Path, place: Path) -> Path:
    """Return the `bin` of an empty environment with the wheel, and what it needs, in it."""
    uv = [sys.executable, "-m", "uv"]
    run([*uv, "venv", "--python", python, place], ROOT)
    target = ["--python", place / "bin" / "python"]
    # The versions of the lock, and not a package more: `check` says if one were missing.
    fetch([*uv, "pip", "sync", *target, "--require-hashes", "requirements.lock"])
    run([*uv, "pip", "install", *target, "--no-deps", wheel], ROOT)
    run([*uv, "pip", "check", *target], ROOT)
    return place / "bin"


def readme(language: str) -> list[str]:
    """Return the blocks of this language in the README."""
    text = (ROOT / "README.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def try_out(programs: Path, folder: Path) -> None:
    """Run the fifteen lines of the README with the programs of an environment.

    Raises:
        SystemExit: a command failed, or the task did not run.
    """
    alone = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": ""}
    folder.mkdir()
    (folder / "shop.py").write_text(readme("python")[0])
    said = run([programs / "late", "--version"], folder, alone)
    if said != f"late {version()}\n":
        raise SystemExit(f"late --version says {said!r}, pyproject.toml {version()}")
    run([programs / "late", "migrate", "sqlite:///shop.db"], folder, alone)
    run([programs / "python", "shop.py"], folder, alone)
    with subprocess.Popen(
        [programs / "python", "-u", programs / "late", "worker", "shop:app"], cwd=folder,
        env=os.environ | alone, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as worker:  # fmt: skip
        try:
            line = first_line(worker)
        finally:
            worker.terminate()
    if line != "receipt for order 1 to ada@example.org\n" or worker.returncode:
        raise SystemExit(f"the worker said {line!r} and ended with {worker.returncode}")


def first_line(worker: subprocess.Popen[str]) -> str:
    """Return the worker's first line; it is killed, and the line empty, when none comes."""
    import threading

    assert worker.stdout is not None
    timer = threading.Timer(WORKER_S, worker.kill)
    timer.start()
    try:
        return worker.stdout.readline()
    finally:
        timer.cancel()


def version() -> str:
    """Return the version that pyproject.toml has, the one place of it."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        found: str = tomllib.load(file)["project"]["version"]
    return found


def runs(python: str) -> bool:
    """Return whether this Python is here; a name may be a shim of nothing."""
    try:
        done = subprocess.run([python, "-c", ""], capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


def find(python: str) -> str | None:
    """Return the path or name of a Python that runs: this one, else pyenv's newest of that name.

    A version that is no release (`3.14.0rc1`), or without the GIL (`3.13.0t`), is not looked at.
    """
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    releases = {
        tuple(map(int, path.name.split("."))): str(path / "bin" / python)
        for path in (versions.iterdir() if versions.is_dir() else ())
        if re.fullmatch(r"\d+\.\d+\.\d+", path.name) and "/" not in python
    }
    newest_first = [path for _, path in sorted(releases.items(), reverse=True)]
    return next(filter(runs, [python, *newest_first]), None)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make dist", description="Build, compare, check, try.")
    parser.add_argument("--python", action="append", help="try this one only (repeat for more)")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="late-dist-") as name:
        scratch = Path(name)
        files = build_twice(scratch)
        check(files)
        for wanted in given.python or PYTHONS:
            python = find(wanted)
            if python is None:
                if given.python:
                    raise SystemExit(f"{wanted} does not run here")
                print(f"not here, so not tried: {wanted}")
                continue
            programs = install(python, files[1], scratch / python.replace("/", "_"))
            try_out(programs, scratch / f"try-{python.replace('/', '_')}")
            said = run([programs / "python", "--version"], ROOT).strip()
            print(f"installed into an empty environment and tried: {said}")
        (ROOT / "dist").mkdir(exist_ok=True)
        for path in files:
            shutil.copyfile(path, ROOT / "dist" / path.name)
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            print(f"dist/{path.name}: {path.stat().st_size:,} bytes, sha256 {digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
