"""A command of an operator stays short: few functions of ours, statements and transactions."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Engine, event, insert
from typer.testing import CliRunner

from late.cli.main import app
from late.model.ids import new_id
from late.schema.engine import make_engine, writing
from late.schema.tables import dead
from tests.support import sqlite
from tests.support.paths import Trace


def test_a_redrive_of_three_letters_is_one_change_and_few_steps(tmp_path: Path) -> None:
    url = sqlite.database(tmp_path / "late.db")
    with writing(make_engine(url)) as connection:
        for number in range(3):
            connection.execute(
                insert(dead).values(
                    consumer_group="default",
                    shard_id=number % 2,
                    dead_at_us=1_000 + number,
                    task_id=new_id(number % 2),
                    reason="failed",
                    position=number + 1,
                    sequence=0,
                    queue="mail",
                    name="send",
                    payload=b"{}",
                    created_at_us=1,
                    attempts=1,
                    deaths=0,
                )
            )
    command = ["dead", "redrive", "--all", "--url", url]
    runner = CliRunner()
    assert runner.invoke(app, [*command, "--dry-run"]).exit_code == 0, "what is imported is loaded"
    texts: list[str] = []

    def read(_c: object, _k: object, text: str, *_: object) -> None:
        texts.append(text)

    event.listen(Engine, "before_cursor_execute", read)
    try:
        with Trace() as trace:
            result = runner.invoke(app, command)
    finally:
        event.remove(Engine, "before_cursor_execute", read)
    assert (result.exit_code, result.output) == (0, "redriven 3 dead letters\n")
    begun = [text for text in texts if text.startswith("BEGIN")]
    assert begun == ["BEGIN", "BEGIN", "BEGIN IMMEDIATE"], "the schema, the plan, one change"
    assert len(trace.functions) <= 65
    assert len(trace.files) <= 20
    assert len(texts) <= 26
