"""The column `open`: short, read back as it was written, and refused when it is damaged."""

from __future__ import annotations

import base64
import uuid

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from late.model.ids import IdFactory
from late.model.task import OpenTask, TaskId
from late.store.common.open_tasks import (
    PREFIX,
    Outline,
    open_of,
    open_text,
    outline_of,
    outline_text,
)

UUIDS = st.uuids().map(str)
SHARED = st.integers(0, 2**20).map(lambda n: f"0199aaaa-{n >> 16:04x}-7003-8000-{n:012x}")
IDS = st.one_of(UUIDS, SHARED, st.text(max_size=40), UUIDS.map(str.upper))
POSITIONS = st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1))


def tasks_of(ids: st.SearchStrategy[str]) -> st.SearchStrategy[list[OpenTask]]:
    return st.lists(st.builds(OpenTask, POSITIONS, ids.map(TaskId), st.booleans()), max_size=40)


@given(st.one_of(tasks_of(IDS), tasks_of(UUIDS), tasks_of(SHARED)), st.booleans())
def test_what_was_written_is_read(tasks: list[OpenTask], ascending: bool) -> None:
    if ascending:
        tasks.sort(key=lambda task: task.position)
    text = open_text(tasks)
    assert open_of(text) == tuple(tasks)
    assert text.isascii()


def test_ids_of_another_form_are_kept_as_they_are() -> None:
    one = str(uuid.uuid4())
    others = ["", "a00001", one.upper(), one.replace("-", ""), one[:-1] + " ", "é" * 36, "-" * 36]
    for other in others:
        tasks = (OpenTask(1, TaskId(one)), OpenTask(2, TaskId(other), True))
        assert open_of(open_text(tasks)) == tasks


@pytest.mark.parametrize("size", [34, 35, 38])
def test_ids_that_only_together_look_like_uuids(size: int) -> None:
    """36 characters on average, and their dashes where two UUIDs have them."""
    one = str(uuid.uuid4()) + str(uuid.uuid4())
    tasks = (OpenTask(1, TaskId(one[:size])), OpenTask(2, TaskId(one[size:])))
    assert open_of(open_text(tasks)) == tasks


def test_an_empty_list_reads_as_ever() -> None:
    assert open_text([]) == "[]"
    assert open_of("[]") == ()


def test_rows_of_older_versions_are_read() -> None:
    assert open_of('[[7,"a"],[9,"b"]]') == (OpenTask(7, TaskId("a")), OpenTask(9, TaskId("b")))


def test_it_is_short() -> None:
    make = IdFactory().make
    tasks = [OpenTask(10**9 + 8 * n, make(3), n % 2 == 0) for n in range(200)]
    assert len(open_text(tasks)) < 14 * 200


def test_an_older_worker_cannot_read_it() -> None:
    text = open_text([OpenTask(1, TaskId(str(uuid.uuid4())))])
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(text, type=tuple[OpenTask, ...])


def coded(body: bytes) -> str:
    return PREFIX + base64.urlsafe_b64encode(body).rstrip(b"=").decode()


def body_of(*tasks: OpenTask) -> bytes:
    text = open_text(tasks).removeprefix(PREFIX)
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


GOOD = body_of(*[OpenTask(n, TaskId(str(uuid.uuid4()))) for n in (5, 600, 70_000)])


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("1:", id="nothing after the prefix"),
        pytest.param("2:AAAA", id="a newer version"),
        pytest.param("1:AAA", id="no tasks"),
        pytest.param("1:A", id="an impossible length"),
        pytest.param("1:AA=A", id="padding inside"),
        pytest.param("1:AAAA AAAA", id="a space"),
        pytest.param("1:AA+A", id="the other base64"),
        pytest.param("1:é", id="not ascii"),
        pytest.param('[[7,"a"', id="broken JSON"),
        pytest.param('[[7,8]]', id="JSON of another form"),
        pytest.param("{}", id="no list"),
        pytest.param(coded(b"\2" + GOOD[1:]), id="a newer form"),
        pytest.param(coded(GOOD[:-1]), id="cut"),
        pytest.param(coded(GOOD + b"\0"), id="too long"),
        pytest.param(coded(GOOD[:4] + b"\xff" + GOOD[5:]), id="more bits than tasks"),
        pytest.param(coded(GOOD[:5] + b"\x09" + GOOD[6:]), id="a position that is too long"),
        pytest.param(coded(b"\1" + msgspec.msgpack.encode([[1, 2]])), id="msgpack of another form"),
        pytest.param(coded(b"\1"), id="no msgpack"),
    ],
)  # fmt: skip
def test_what_is_damaged_is_refused(text: str) -> None:
    with pytest.raises(msgspec.MsgspecError):
        open_of(text)


def test_what_a_newer_version_wrote_says_so() -> None:
    with pytest.raises(msgspec.DecodeError, match="a newer version of late wrote"):
        open_of("2:AAAA")


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    try:
        found = open_of(coded(body))
    except msgspec.DecodeError:
        return
    assert all(isinstance(task.task_id, str) for task in found)


@given(st.one_of(tasks_of(IDS), tasks_of(UUIDS), tasks_of(SHARED)), st.booleans())
def test_the_outline_has_the_number_and_the_lowest_position(
    tasks: list[OpenTask], ascending: bool
) -> None:
    if ascending:
        tasks.sort(key=lambda task: task.position)
    whole = open_text(tasks)
    lowest = min((task.position for task in tasks), default=None)
    assert outline_of(whole) == Outline(len(tasks), lowest)
    assert outline_of(outline_text(tasks)) == Outline(len(tasks), lowest)


def test_an_outline_is_not_taken_for_no_tasks() -> None:
    short = outline_text([OpenTask(9, TaskId("a")), OpenTask(7, TaskId("b"))])
    assert short == "0:2 7"
    with pytest.raises(msgspec.DecodeError):
        open_of(short)


@pytest.mark.parametrize("text", ["0:", "0:2", "0:2 7 8", "0:a 7", "1:AAAAAA"])
def test_a_damaged_outline_is_refused(text: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        outline_of(text)
