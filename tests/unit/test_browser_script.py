"""How the tests of the page come to a browser: found, installed where that is for us to do, or
asked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scripts import browser


def program(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only one in which programs are looked for."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(browser.VARIABLE, raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return tmp_path


def test_what_is_there_is_taken_and_nothing_installed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program(folder, "apt-get", "exit 1")
    program(folder, "google-chrome", "")
    assert browser.main(["--install"]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "google-chrome")
    program(folder, "mine", "")
    monkeypatch.setenv(browser.VARIABLE, str(folder / "mine"))
    assert browser.find() == str(folder / "mine")
    monkeypatch.setenv(browser.VARIABLE, str(folder / "never"))
    assert browser.find() is None, "one that was named is not replaced by another"


def test_root_gets_one_by_apt_after_fresh_lists(folder: Path) -> None:
    log = folder / "log"
    program(folder, "apt-get", f'echo "$@" >> {log}')
    assert browser.main(["--install"]) == 1, "apt said that it did, and there is none"
    program(folder, "ready", "")
    come = f"[ $1 = update ] || /bin/cp -p {folder}/ready {folder}/chromium"
    program(folder, "apt-get", f'echo "$@" >> {log}\n{come}')
    log.unlink()
    assert browser.main(["--install"]) == 0
    first, second = log.read_text().splitlines()
    assert first == "update"
    assert second.startswith("install --yes")
    assert "chromium" in second.split()


def test_others_are_told_how(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program(folder, "apt-get", f"echo called > {folder}/called")
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    assert browser.main(["--install"]) == 1
    assert "apt-get install chromium" in capsys.readouterr().err
    assert not (folder / "called").exists()
    assert browser.main([]) == 1
    assert browser.main(["--now"]) == 2
