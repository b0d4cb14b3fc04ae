"""Fields that a class within the arguments does not have, and what the refusal names."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest
from pydantic import BaseModel, ConfigDict

import late
from late.errors import DecodeError


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    sku: str


class StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid")

    sku: str


@dataclasses.dataclass
class Loose:
    sku: str


@pytest.fixture
def app(tmp_path: Path) -> late.App:
    app = late.App(f"sqlite:///{tmp_path}/x.db")

    @app.task
    def strict(item: Strict) -> None: ...

    @app.task
    def several(items: list[Strict]) -> None: ...

    @app.task
    def model(item: StrictModel) -> None: ...

    @app.task
    def loose(item: Loose) -> None: ...

    return app


@pytest.mark.parametrize(
    ("name", "payload", "parameter"),
    [
        ("strict", b'{"item":{"sku":"a","gift":true}}', "item"),
        ("strict", b'{"item":{}}', "item"),
        ("several", b'{"items":[{"sku":"a","gift":true}]}', "items"),
        ("model", b'{"item":{"sku":"a","gift":true}}', "item"),
        ("loose", b'{"item":{"sku":"a"},"gift":true}', "gift"),
        ("loose", b"{}", "item"),
    ],
)
def test_what_a_strict_class_refuses_is_for_another_worker(
    app: late.App, name: str, payload: bytes, parameter: str
) -> None:
    with pytest.raises(DecodeError) as raised:
        app.tasks[name].arguments(payload, "json")
    assert raised.value.elsewhere
    assert f"{name}, parameter {parameter!r}: " in str(raised.value)


def test_a_dataclass_leaves_out_what_it_does_not_know(app: late.App) -> None:
    found = app.tasks["loose"].arguments(b'{"item":{"sku":"a","gift":true}}', "json")
    assert found == {"item": Loose("a")}
