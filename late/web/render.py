"""Render models as HTML.

Jinja2 escapes in every template, because names, payloads, headers and errors are texts of others.
Only the word `safe` turns that off, and a test looks for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import CodeType
from typing import Any, ClassVar
from urllib.parse import quote

import jinja2
import msgspec
from jinja2.bccache import Bucket

from late.web import formats


class _Compiled(jinja2.BytecodeCache):
    """Compiled templates of this process, by what they were made from."""

    _kept: ClassVar[dict[tuple[str, str], CodeType]] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._kept.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        if bucket.code is not None:
            self._kept[bucket.key, bucket.checksum] = bucket.code


class Renderer:
    """The templates, compiled once in a process.

    Args:
        names: the names of static files as they are sent, by their plain names.
        root: the path at which the page begins, such as `/ui/`.
    """

    def __init__(self, names: Mapping[str, str], root: str) -> None:
        self._templates = jinja2.Environment(
            loader=jinja2.PackageLoader("late.web"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
            bytecode_cache=_Compiled(),
        )
        self._templates.filters |= {
            "age": formats.age,
            "count": formats.count,
            "number": formats.number,
            "size": formats.size,
            "when": formats.when,
            "short": formats.short,
            "segment": lambda text: quote(str(text), safe=""),
            "data": lambda value: msgspec.json.encode(value).decode(),
        }
        self._templates.globals |= {
            "root": root,
            "file": lambda name: f"{root}static/{names[name]}",
        }
        # Compiled now: otherwise the first visitor of a screen would wait for its template. Objects
        # that exist when the process has started are also kept out of garbage collection.
        for name in self._templates.list_templates():
            self._templates.get_template(name)

    def page(self, template: str, **model: Any) -> str:
        """Render one whole page."""
        return self._templates.get_template(template).render(model)
