"""What is installed without the checkout is complete, the same wherever it is built, and alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.version import Version

from scripts import dist

ROOT = Path(__file__).resolve().parents[2]
ANOTHER = "__all__ = ['latebinding']\n\n\ndef latebinding(function):\n    return function\n"
"""The package `late` of another project, as far as it matters here."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source distribution and the wheel; `build_twice` refuses builds that differ."""
    return dist.build_twice(tmp_path_factory.mktemp("dist"))


def test_the_wheel_carries_migrations_the_demo_and_the_type_marker(
    built: tuple[Path, Path],
) -> None:
    names = set(zipfile.ZipFile(built[1]).namelist())
    assert "late/py.typed" in names
    for source, target in (
        ("migrations", "late/_migrations"),
        ("examples/fulfilment", "late/_examples/fulfilment"),
        ("late", "late"),
    ):
        wanted = {
            f"{target}/{path.relative_to(ROOT / source)}" for path in (ROOT / source).rglob("*.py")
        }
        assert wanted
        assert wanted <= names
    page = {
        str(path.relative_to(ROOT))
        for folder in ("static", "templates")
        for path in (ROOT / "late/web" / folder).rglob("*")
        if path.is_file()
    }
    assert len(page) > 15
    assert page <= names


def test_an_index_would_take_both_files(built: tuple[Path, Path]) -> None:
    dist.check(built)


def test_a_build_that_differs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(folder: Path, kind: str, *, other: bool = False) -> Path:
        path = folder / kind
        path.write_text(f"{kind} {other}")
        return path

    monkeypatch.setattr(dist, "build", forgetful)
    monkeypatch.setattr(dist, "copy", lambda target, **_: target.mkdir())
    monkeypatch.setattr(dist, "unpack", lambda archive, target: archive.parent)
    with pytest.raises(SystemExit, match="sdist: two builds differ"):
        dist.build_twice(tmp_path)


def test_in_an_empty_environment_the_readme_works(built: tuple[Path, Path], tmp_path: Path) -> None:
    programs = dist.install(sys.executable, built[1], tmp_path / "environment")
    dist.try_out(programs, tmp_path / "try")


def test_the_version_is_the_newest_release_of_the_changelog_or_the_next() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    released = re.findall(r"^## \[(\d[^\]]*)\] - \d{4}-\d\d-\d\d$", text, re.M)
    version = Version(dist.version())
    newest = Version(released[0])
    assert version > newest if version.is_devrelease else version == newest


def beside_another(built: tuple[Path, Path], site: Path, *, last: bool) -> None:
    """Install late-queue and another `late` into one folder, the other one last or first."""
    zipfile.ZipFile(built[1]).extractall(site)
    (site / "Late-1.2.2.dist-info").mkdir()
    if last:
        (site / "late" / "__init__.py").write_text(ANOTHER)


def python(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], env=os.environ | {"PYTHONPATH": str(site)}, cwd=site,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (False, ("-c", "import late")),
        (False, ("-m", "late", "--version")),
        (True, ("-m", "late", "--version")),
        (True, ("-c", "from late.cli import main")),
    ],
)
def test_beside_another_late_it_says_what_to_do(
    built: tuple[Path, Path], tmp_path: Path, last: bool, words: tuple[str, ...]
) -> None:
    beside_another(built, tmp_path, last=last)
    ended = python(tmp_path, *words)
    assert ended.returncode == 1
    said = ended.stderr.splitlines()[-1]
    assert said.startswith("ImportError: two distributions are installed")
    assert said.endswith("Run: pip uninstall -y late late-queue; pip install late-queue")


def test_alone_it_says_nothing(built: tuple[Path, Path], tmp_path: Path) -> None:
    zipfile.ZipFile(built[1]).extractall(tmp_path)
    (tmp_path / "late_bound_arguments-0.1.2.dist-info").mkdir()  # a name that only begins so
    ended = python(tmp_path, "-m", "late", "--version")
    assert (ended.returncode, ended.stdout) == (0, f"late {dist.version()}\n")
