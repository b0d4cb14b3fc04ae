"""How templates become pages: `late/web/render.py`."""

from __future__ import annotations

import pytest

from late.web.render import Renderer


def test_templates_are_compiled_once_and_rendered_for_each_root(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A deployment has other names of files and another root."""
    model = dict.fromkeys(("live", "caller", "below", "done", "problem", "trouble", "sections"))
    model |= dict.fromkeys(("seen_us", "form", "title", "version"), "")
    names = {name: f"1.{name}" for name in ("late.svg", "late.css", "htmx.min.js", "late.js")}
    Renderer(names, "/ui/")
    monkeypatch.delattr("jinja2.Environment.compile")
    other = Renderer({name: f"2.{name}" for name in names}, "/other/")
    text = other.page("problem.html", **model)
    assert "/other/static/2.late.css" in text
    assert "/ui/" not in text
