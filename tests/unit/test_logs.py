"""Log lines: structured, on one line, without passwords, payloads or control characters."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from late import events
from late.events import Emitter
from late.model.task import Attempt, Outcome, Record, TaskId
from late.observability.logs import TEXT_MAX, clean, configure, escape, fields, log_events, redact
from late.scheduler import settlement_events
from tests.conformance.kit import record


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger("late")
    before = (root.level, root.propagate, root.handlers[:])
    last_resort = logging.lastResort
    yield io.StringIO()
    logging.lastResort = last_resort
    root.setLevel(before[0])
    root.propagate = before[1]
    root.handlers[:] = before[2]


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://late:hunter2@db.example/app",
        "postgresql+psycopg://late:hunter2@db.example:5432/app?sslmode=require",
        "redis://:hunter2@cache",
        "cannot connect to postgresql://late:hunt@er2@db, giving up",
        "postgresql://late:hunter2/with/slashes@db/app",
        "postgresql://late:hunter2?x=1@db/app",
        "host=db user=late password=hunter2 dbname=app",
        "host=db password='hunter2 with spaces' dbname=app",
        'password="hunter2 with spaces"',
        "postgresql://db/app?user=late&password=hunter2&sslmode=require",
        "sslpassword=hunter2",
        "PASSWORD: hunter2",
        "api_key=hunter2, client-secret=hunter2; access_token=hunter2",
    ],
)
def test_no_password_survives(text: str) -> None:
    shown = redact(text)
    assert "hunt" not in shown
    assert "spaces" not in shown
    assert "***" in shown
    assert redact(shown) == shown


def test_what_is_no_secret_is_left_alone() -> None:
    for text in [
        "postgresql://late@db.example:5432/app",
        "sqlite:////var/lib/late.db",
        "mail a@b.c at 12:30, ratio 3:4",
        "see https://example.org/a:b",
    ]:
        assert redact(text) == text


def test_user_host_and_the_rest_of_a_connection_stay_visible() -> None:
    assert redact("postgresql://late:x@db:5432/app") == "postgresql://late:***@db:5432/app"
    assert redact("user=late password=x dbname=app") == "user=late password=*** dbname=app"


@given(st.text(st.characters(), max_size=80))
def test_escaped_text_is_one_printable_line_that_can_be_encoded(text: str) -> None:
    shown = escape(text)
    assert len(shown.splitlines()) <= 1
    assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in shown)
    shown.encode("utf-8")


def test_control_characters_are_shown_and_not_sent() -> None:
    assert escape("a\r\nb\x1b[31m\x00\u2028\u202e\ud800") == (
        r"a\r\nb\x1b[31m\x00\u2028\u202e\ud800"
    )


def test_a_password_at_the_cut_is_gone_too() -> None:
    shown = clean("x" * (TEXT_MAX - 20) + " postgresql://late:hunter2@db/app")
    assert "hunter2" not in shown
    assert len(shown) < TEXT_MAX + 60


@pytest.mark.timeout(20)
@pytest.mark.parametrize("unit", ["a", "a-", "a://:", "password", "token=", "'", "x@:/"])
def test_a_hostile_text_of_ten_megabytes_takes_no_time(unit: str) -> None:
    assert len(clean(unit * (10_000_000 // len(unit)))) < 4 * TEXT_MAX


def test_human_lines(stream: io.StringIO) -> None:
    configure("info", stream=stream)
    logging.getLogger("late.tailer").warning(
        "read %s", "failed", extra=fields(group="default", retry_in_s=0.25, error='say "no"\n')
    )
    logging.getLogger("late.tailer").debug("not shown")
    line = stream.getvalue()
    assert line.endswith(
        ' WARNING tailer: read failed group=default retry_in_s=0.25 error="say \\"no\\"\\n"\n'
    )
    assert line.count("\n") == 1


def test_json_lines(stream: io.StringIO) -> None:
    configure(json=True, stream=stream)
    logging.getLogger("late.core").error(
        "bad", extra=fields(shard=3, open=["a", 1], time="forged", none=None, level="forged")
    )
    line = json.loads(stream.getvalue())
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "error",
        "logger": "late.core",
        "message": "bad",
        "shard": 3,
        "open": ["a", 1],
        "none": None,
    }


def test_a_reader_of_json_gets_line_breaks_back(stream: io.StringIO) -> None:
    configure(json=True, stream=stream)
    try:
        raise ValueError("deep\nsecond\r\x1b\u2028line")
    except ValueError as failure:
        logging.getLogger("late.core").exception(
            "one\ntwo",
            extra=fields(
                # The first as `classify.describe` makes it, the others as they are.
                error="ValueError: deep\\nsecond line",
                why=failure,
                hint="a\n\tb",
                several=["c\nd"],
            ),
        )
    [text] = stream.getvalue().splitlines()
    line = json.loads(text)
    assert line["message"] == "one\ntwo"
    assert line["error"] == "ValueError: deep\nsecond line"
    assert line["why"] == "ValueError: deep\nsecond\\r\\x1b\\u2028line"
    assert (line["hint"], line["several"]) == ("a\n\tb", ["c\nd"])
    head, *_, last, end = line["traceback"].split("\n")
    assert head == "Traceback (most recent call last):"
    assert (last, end) == ("ValueError: deep", "second\\r\\x1b\\u2028line")


def test_what_other_libraries_warn_of_has_the_same_form(stream: io.StringIO) -> None:
    root = logging.Logger("root")  # pytest's own has handlers
    other = logging.Logger("psycopg")
    other.parent = root
    configure(json=True, stream=stream, process=2)
    other.info("connected")
    other.warning("closing a connection of postgresql://late:secret@host/shop")
    [line] = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (line["logger"], line["level"], line["process"]) == ("psycopg", "warning", 2)
    assert "secret" not in line["message"]


@pytest.mark.parametrize("as_json", [False, True])
def test_no_payload_gets_through(stream: io.StringIO, as_json: bool) -> None:
    record = Record(1, 2, TaskId("t"), "q", "n", b"card 4111", '{"auth":"card"}', None, 0, 0)
    configure(json=as_json, stream=stream)
    logging.getLogger("late.core").info(
        "ran",
        extra=fields(
            record=record,
            records=[record],
            payload="card 4111",
            Headers={"auth": "card"},
            body=b"card 4111",
            options={"card": 1},
            nested=[["card"]],
        ),
    )
    line = stream.getvalue()
    assert "card" not in line
    assert "<9 bytes>" in line
    assert "<Record>" in line


@pytest.mark.parametrize("as_json", [False, True])
def test_a_traceback_is_cleaned_and_cannot_forge_a_record(
    stream: io.StringIO, as_json: bool
) -> None:
    configure(json=as_json, stream=stream)
    try:
        raise ValueError("postgresql://u:hunter2@h/d\n12:00:00.000 INFO    core: all is well\x1b")
    except ValueError:
        logging.getLogger("late.core").exception("failed")
    text = stream.getvalue()
    assert "hunter2" not in text
    assert "\x1b" not in text
    assert "ValueError" in text
    _, *rest = text.splitlines()
    assert not as_json or not rest
    assert all(line.startswith("    ") for line in rest)


def test_a_wrong_format_string_costs_no_record(stream: io.StringIO) -> None:
    configure(stream=stream)
    logging.getLogger("late.core").info("%d tasks", "many")
    assert "core: %d tasks" in stream.getvalue()


def test_long_lists_are_cut(stream: io.StringIO) -> None:
    configure(stream=stream)
    logging.getLogger("late.core").info("x", extra=fields(shards=list(range(100))))
    assert '15,"<84 more>"]' in stream.getvalue()


def test_configuring_twice_writes_once(stream: io.StringIO) -> None:
    configure(stream=stream)
    configure(stream=stream)
    logging.getLogger("late.core").info("once")
    assert stream.getvalue().count("once") == 1


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="LOUD"):
        configure("loud", stream=io.StringIO())


def test_events_become_lines_at_their_level(stream: io.StringIO) -> None:
    configure("info", stream=stream)
    emitter = Emitter()
    leave = log_events(emitter)
    assert not emitter.wants(events.PAGE_READ), "a debug event costs nothing at level info"
    emitter.emit(events.FENCED, group="default", shard=3, epoch=7)
    leave()
    emitter.emit(events.FENCED, group="default", shard=4, epoch=7)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 1
    assert "WARNING worker: settlement refused" in lines[0]
    assert "event=fenced group=default shard=3 epoch=7" in lines[0]


def test_a_formatter_of_a_service_shows_the_fields_of_an_event() -> None:
    """Django's `LOGGING` shows the message alone: a failure needs its task there."""
    found = io.StringIO()
    handler, logger = logging.StreamHandler(found), logging.getLogger("late.of-a-service")
    handler.setFormatter(logging.Formatter("{levelname} {name} {message}", style="{"))
    logger.addHandler(handler)
    logger.propagate = False
    try:
        emitter = Emitter()
        leave = log_events(emitter, logger.name)
        error = "100 % at postgresql://a:hunter2@db/x\nWARN x"
        one = dict.fromkeys(("group", "queue", "task", "attempt"), "-")
        emitter.emit(events.ATTEMPT_FAILED, **one | {"name": "pay", "error": error})
        leave()
    finally:
        logger.removeHandler(handler)
    [line] = found.getvalue().splitlines()
    assert line.startswith("WARNING late.of-a-service attempt failed event=attempt_failed ")
    assert " name=pay " in line
    assert 'error="100 % at postgresql://a:***@db/x\\nWARN x"' in line


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
def test_a_line_for_each_attempt_has_a_logger_of_its_own(level: int, stream: io.StringIO) -> None:
    """Who wants them need not read of each page and each heartbeat as well."""
    configure("info", stream=stream)
    tasks = logging.getLogger("late.tasks")
    tasks.setLevel(level)
    try:
        emitter = Emitter()
        leave = log_events(emitter)
        attempt = Attempt("g", record(queue="q", name="pay"), 1, 0, 2, 1)
        settlement_events.ended(emitter, [Outcome(attempt, "done", 1, 1_500_000)])
        leave()
    finally:
        tasks.setLevel(logging.NOTSET)
    lines = stream.getvalue().splitlines()
    assert len(lines) == (level == logging.DEBUG)
    for line in lines:
        assert f"task={attempt.record.task_id}" in line
        assert "tasks: attempt ended event=attempt_ended attempt=" in line
        assert "took_s=1.5 group=g queue=q name=pay outcome=done" in line


def test_the_json_of_a_line_is_utf_8(stream: io.StringIO) -> None:
    configure(json=True, stream=stream)
    logging.getLogger("late.core").info("Zürich \ud800 naïve")
    assert msgspec.json.decode(stream.getvalue().encode())["message"] == "Zürich \\ud800 naïve"
