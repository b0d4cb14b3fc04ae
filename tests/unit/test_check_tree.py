"""The repository's own checks: each finds what it is for, and passes what it must pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
try:
    import check_tree
    import environment
    import lock
finally:
    sys.path.remove(str(ROOT / "scripts"))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.lock", "https://files" + ".pythonhosted" + ".org/x", "registry's host"),
        ("docs/a.md", "see pypi" + ".org", "registry's host"),
        ("README.md", "cd /ro" + "ot/late", "path of one machine"),
        ("Makefile", "cd /home" + "/ada/late", "path of one machine"),
        ("late/a.py", "x = 1  # TO" + "DO: more", "unfinished"),
        ("late/a.py", "\n" * 501, "501 lines"),
        ("late/a.py", "def long() -> None:\n" + "    x = 1\n" * 70, "long has 71 lines"),
        ("late/a.py", "async def long() -> None:\n" + "    x = 1\n" * 70, "71 lines"),
    ],
)
def test_each_slip_is_found_and_named(name: str, text: str, message: str) -> None:
    found = check_tree.problems(name, text.encode())
    assert len(found) == 1
    assert message in found[0]
    assert found[0].startswith(name)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("late/a.py", b"def fine() -> None:\n" + b"    x = 1\n" * 69),
        ("tests/a.py", b"def scenario() -> None:\n" + b"    x = 1\n" * 200),
        ("docs/a.md", b"mount -t tmpfs none /tmp/late; ls /usr/bin/work"),
        ("data.bin", b"\0 pypi" + b".org"),
    ],
)
def test_what_is_allowed_passes(name: str, content: bytes) -> None:
    assert check_tree.problems(name, content) == []


def test_exit_code_follows_the_findings() -> None:
    script = str(ROOT / "scripts" / "check_tree.py")
    clean = subprocess.run([sys.executable, script, "pyproject.toml"], capture_output=True)
    assert clean.returncode == 0, clean.stdout


@pytest.mark.parametrize("name", [name for name, _ in lock.LOCKS])
def test_locks_hold_names_versions_and_hashes_only(name: str) -> None:
    lines = (ROOT / name).read_text().splitlines()
    assert [line for line in lines if not lock.CLEAN.match(line)] == []
    pinned = [line for line in lines if line[:1].isalnum()]
    assert pinned
    assert all("==" in line for line in pinned)


@pytest.mark.parametrize(
    "line",
    ["--index-url https://example.test/simple", "late @ file:///srv/late", "-e .", "/srv/a.whl"],
)
def test_a_lock_with_an_address_is_refused(line: str) -> None:
    assert not lock.CLEAN.match(line)


def checkout(path: Path) -> Path:
    """A folder with just the files that decide the fingerprint."""
    for name in ("pyproject.toml", "scripts/environment.py", *environment.LOCKS["run"]):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("same")
    (path / "requirements-dev.lock").write_text("same")
    return path


def test_a_stamp_is_good_until_a_lock_changes(tmp_path: Path) -> None:
    root, venv = checkout(tmp_path / "root"), tmp_path / "venv"
    venv.mkdir()
    assert not environment.installed(root, venv, "run")
    (venv / ".late-run").write_text(environment.fingerprint(root, "run"))
    assert environment.installed(root, venv, "run")
    assert not environment.installed(root, venv, "dev")
    (root / "requirements.lock").write_text("other")
    assert not environment.installed(root, venv, "run")


def test_the_development_environment_serves_the_demo_too(tmp_path: Path) -> None:
    root, venv = checkout(tmp_path / "root"), tmp_path / "venv"
    venv.mkdir()
    (venv / ".late-dev").write_text(environment.fingerprint(root, "dev"))
    assert environment.installed(root, venv, "run")


def test_a_step_that_fails_once_is_tried_again(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    flaky = (
        "import pathlib, sys; p = pathlib.Path(sys.argv[1]); first = not p.exists(); p.touch();"
        "print('WARNING: noise', file=sys.stderr); sys.exit(first)"
    )
    environment.attempt([sys.executable, "-c", flaky, str(seen)])
    with pytest.raises(environment.SetupFailed, match="failed 2 times"):
        environment.attempt([sys.executable, "-c", "raise SystemExit(3)"])
