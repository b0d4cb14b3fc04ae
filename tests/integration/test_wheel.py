"""What is installed without the checkout has everything that it needs."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_wheel_carries_migrations_the_demo_and_the_type_marker(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
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
