"""The link to the last cost report: which one it is, what is no report, and its sandbox."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from late.api.settings import ServeSettings
from late.errors import ConfigError
from late.model.access import tokens
from late.model.access.tokens import Token
from late.web.usage import cost_report as reports
from late.web.usage.cost_report import Reports
from tests.unit.web_kit import HOSTILE, page


def written(folder: Path, at_s: int, text: str = "<h1>What it cost</h1>", **about: str) -> Path:
    """A report's folder as `late report cost --out` leaves it."""
    folder.mkdir(parents=True)
    manifest = folder / "report.json"
    told = {"report": "cost", "from": "2026-06-01", "to": "2026-06-30", "currency": "EUR"}
    manifest.write_text(json.dumps({**told, **about}))
    os.utime(manifest, (at_s, at_s))
    (folder / "index.html").write_text(text)
    return folder


async def test_the_newest_cost_report_is_linked_and_shown(tmp_path: Path) -> None:
    root = tmp_path / "reports"
    root.mkdir()
    async with page(tmp_path, reports=root) as it:
        assert "there is none in the folder yet" in await it.shown("cost")
        assert (await it.get("cost/report")).status_code == 404
        written(root / "june", 2_000, currency=HOSTILE)
        written(root / "may", 1_000, "<h1>Old</h1>")
        written(root / "capacity", 3_000, "<h1>Other</h1>", report="capacity")
        written(root / ".july.x1", 4_000, "<h1>Half</h1>")
        (root / "broken").mkdir()
        (root / "broken" / "report.json").write_text("{")
        shown = (await it.get("cost")).text
        assert 'href="/ui/cost/report"' in shown
        assert "<script>alert" not in shown
        assert "2026-06-01 to 2026-06-30" in shown
        answer = await it.get("cost/report")
        assert (answer.status_code, answer.text) == (200, "<h1>What it cost</h1>")
    async with page(tmp_path / "reports") as it:
        assert "late serve --reports" in await it.shown("cost")
        assert (await it.get("cost/report")).status_code == 404


async def test_a_report_is_in_a_sandbox_and_takes_what_the_page_takes(tmp_path: Path) -> None:
    root = tmp_path / "reports"
    written(root / "june", 2_000, "<script>fetch('/ui/')</script>")
    text, digest = tokens.make("eve")
    may = [Token("eve", digest, ("view",), ("*",))]
    async with page(tmp_path, reports=root, tokens=may) as it:
        assert (await it.get("cost/report")).status_code == 303
        answer = await it.get("cost/report", headers={"authorization": f"Bearer {text}"})
        policy = answer.headers["content-security-policy"]
        assert answer.status_code == 200
        assert policy.startswith("sandbox; default-src 'none';")
        assert "allow-" not in policy
        assert "script-src" not in policy
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert (await it.client.post("/ui/cost/report")).status_code == 405
        screen = await it.get("cost", headers={"authorization": f"Bearer {text}"})
        assert "sandbox" not in screen.headers["content-security-policy"]


async def test_no_address_leads_to_a_file(tmp_path: Path) -> None:
    root = tmp_path / "reports"
    written(root / "june", 2_000)
    (tmp_path / "secret").write_text("secret")
    async with page(tmp_path, reports=root) as it:
        for path in ("cost/report/../../secret", "cost/report/june", "cost/june/index.html",
                     "cost/report/%2e%2e/%2e%2e/secret", "cost/report/..%2f..%2fsecret",
                     "cost/report//etc/passwd"):  # fmt: skip
            answer = await it.get(path)
            assert answer.status_code == 404, path
            assert "secret" not in answer.text
        again = await it.get("cost/report?name=../../secret&folder=..")
        assert "What it cost" in again.text


def test_what_leads_out_of_the_folder_is_no_report(tmp_path: Path) -> None:
    root, outside = tmp_path / "reports", written(tmp_path / "outside", 9_000, "outside")
    inside = written(root / "june", 2_000)
    found = Reports(root)
    (root / "link").symlink_to(outside)  # the newest, and somewhere else
    assert found.page() == b"<h1>What it cost</h1>"
    (root / "alias").symlink_to(inside)  # the same as another name for it
    assert found.page() == b"<h1>What it cost</h1>"
    (inside / "index.html").unlink()
    (inside / "index.html").symlink_to(outside / "index.html")
    assert found.newest() is not None
    assert found.page() is None
    (inside / "index.html").unlink()
    os.mkfifo(inside / "index.html")
    assert found.page() is None


@pytest.mark.parametrize("name", ["report.json", "index.html"])
def test_what_is_no_file_is_no_report_and_leaves_nothing_open(tmp_path: Path, name: str) -> None:
    written(tmp_path / "may", 1_000, "<h1>Old</h1>")
    odd = written(tmp_path / "june", 2_000) / name
    odd.unlink()
    odd.mkdir()
    os.utime(odd, (3_000, 3_000))
    found = Reports(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        assert found.page() == (b"<h1>Old</h1>" if name == "report.json" else None)
    assert len(os.listdir("/proc/self/fd")) == before
    odd.rmdir()
    odd.symlink_to(odd)
    assert found.page() == (b"<h1>Old</h1>" if name == "report.json" else None)
    with pytest.raises(ConfigError, match="--reports"):
        Reports(odd)


@pytest.mark.parametrize(
    "text",
    [b'{"report": "cost", "from": "\xff"}', b'{"report": "cost", "odd": ' + b"[" * 60_000, b"[]"],
    ids=["not UTF-8", "deep", "a list"],
)
def test_a_manifest_that_cannot_be_read_is_passed_over(tmp_path: Path, text: bytes) -> None:
    written(tmp_path / "may", 1_000, "<h1>Old</h1>")
    odd = written(tmp_path / "june", 2_000) / "report.json"
    odd.write_bytes(text)
    os.utime(odd, (3_000, 3_000))
    assert Reports(tmp_path).page() == b"<h1>Old</h1>"


def test_a_page_that_is_too_long_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "june", 2_000, "x" * 20)
    monkeypatch.setattr(reports, "PAGE_BYTES", 20)
    assert Reports(tmp_path).page() == b"x" * 20
    monkeypatch.setattr(reports, "PAGE_BYTES", 19)
    assert Reports(tmp_path).page() is None


def test_a_folder_that_is_none_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name, why in (("never", "No such file"), ("file", "Not a directory")):
        with pytest.raises(ConfigError, match=f"--reports .*{name}: {why}"):
            ServeSettings(reports=str(tmp_path / name)).checked()
    with pytest.raises(ConfigError, match="role web"):
        ServeSettings(reports=str(tmp_path), roles=("api",)).checked()
    assert ServeSettings(reports=str(tmp_path)).checked() is None
