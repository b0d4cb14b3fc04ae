"""A browser for all tests of this folder, and for each a page of its own on a copy of the scene."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from late.control import Control
from scripts import browser
from tests.web.chromium import Chromium, Person, Tab
from tests.web.scene import Scene, fill
from tests.web.serving import Served

NONE = "no Chromium"


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    program = browser.find()
    if program is None:
        pytest.skip(f"{NONE}: make browser")
    with Chromium(program) as started:
        yield started


@pytest.fixture
def people(chromium: Chromium) -> Iterator[Callable[[], Person]]:
    """Somebody new with each call."""
    came: list[Person] = []

    def come() -> Person:
        came.append(Person(chromium))
        return came[-1]

    yield come
    for each in came:
        each.leave()


@pytest.fixture
def tab(people: Callable[[], Person]) -> Tab:
    return people().tab()


@pytest.fixture(scope="session")
def _filled(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return fill(f"sqlite:///{tmp_path_factory.mktemp('scene')}/page.db")


@pytest.fixture
def scene(_filled: Scene, tmp_path: Path) -> Scene:
    """A copy: what one test changes, no other sees."""
    url = f"sqlite:///{tmp_path}/page.db"
    shutil.copy(_filled.url.removeprefix("sqlite:///"), tmp_path / "page.db")
    return replace(_filled, url=url)


@pytest.fixture
def control(scene: Scene) -> Iterator[Control]:
    with Control(scene.url) as opened:
        yield opened


@pytest.fixture
def served(scene: Scene) -> Iterator[Served]:
    with Served(scene.url) as started:
        yield started
