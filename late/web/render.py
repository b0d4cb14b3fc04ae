"""Models become HTML.

Jinja2 with escaping for every template and no way around it but the word `safe`, which a test
looks for: names, payloads, headers and errors are all other people's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import jinja2
import msgspec

from late.web import formats as shape


class Renderer:
    """The templates, compiled once.

    Args:
        names: the files' names as they are sent, by their plain ones.
        root: where the page begins, such as `/ui/`.
    """

    def __init__(self, names: Mapping[str, str], root: str) -> None:
        self._templates = jinja2.Environment(
            loader=jinja2.PackageLoader("late.web"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._templates.filters |= {
            "age": shape.age,
            "count": shape.count,
            "number": shape.number,
            "size": shape.size,
            "when": shape.when,
            "short": shape.short,
            "segment": lambda text: quote(str(text), safe=""),
            "data": lambda value: msgspec.json.encode(value).decode(),
        }
        self._templates.globals |= {
            "root": root,
            "file": lambda name: f"{root}static/{names[name]}",
        }
        # Now: the first visitor of a screen would wait for its template, and what they become
        # stays out of collections of garbage, as all that is there when the process has started.
        for name in self._templates.list_templates():
            self._templates.get_template(name)

    def page(self, template: str, **model: Any) -> str:
        """One whole page."""
        return self._templates.get_template(template).render(model)
