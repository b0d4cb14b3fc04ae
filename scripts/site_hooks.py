"""Bring to the site what lies outside of `docs/`, for mkdocs.

- `README.md` is the first page; the other documents in the root, and every file that a page links
  to, are pages below `repo/`. Links are written for the tree, and are changed for the site here.
- A name in the navigation that ends in `/*` stands for the pages of that folder.
- Mermaid's diagrams become pictures while the site is built: a reader needs no script for them.
"""

from __future__ import annotations

import base64
import html
import posixpath
import re
from pathlib import Path
from typing import Any

import mmdr
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pymdownx.superfences import SuperFencesException

ROOT = Path(__file__).resolve().parent.parent
ALWAYS = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
FENCE = re.compile(r"(^ *```.*?^ *```)", re.M | re.S)
LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?(\))")
LANGUAGES = {".mjs": "js", ".py": "python", ".ts": "ts", ".go": "go", ".proto": "proto"}


def site_of(path: str) -> str:
    """Return the place on the site of a path in the tree."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"repo/{path}" if path.endswith(".md") else f"repo/{path}.md"


def target_of(path: str, link: str) -> str:
    """Return the path in the tree to which a link of the document at `path` leads."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def moved(path: str, text: str) -> str:
    """Return a document with the links that it needs on the site; code is left as it is."""
    folder = posixpath.dirname(site_of(path))

    def relative(found: re.Match[str]) -> str:
        link = posixpath.relpath(site_of(target_of(path, found[2])), folder or ".")
        return f"{found[1]}{link}{found[3] or ''}{found[4]}"

    parts = FENCE.split(text)
    return "".join(
        part if number % 2 else LINK.sub(relative, part) for number, part in enumerate(parts)
    )


def links_out(path: str, text: str) -> set[str]:
    """Return the paths outside of `docs/` to which a document links."""
    plain = FENCE.sub("", text)
    targets = {target_of(path, found[2]) for found in LINK.finditer(plain)}
    return {each for each in targets if not each.startswith("docs/") and (ROOT / each).exists()}


def listing(path: str) -> str:
    """Return the page of a file that is no document, or of a folder of such files."""
    place = ROOT / path
    files = [place] if place.is_file() else sorted(filter(Path.is_file, place.iterdir()))
    parts = [f"# `{path}`\n"]
    for each in files:
        if place.is_dir():
            parts.append(f"## {each.name}\n")
        language = LANGUAGES.get(each.suffix, each.suffix.lstrip("."))
        parts.append(f"````{language}\n{each.read_text().rstrip()}\n````\n")
    return "\n".join(parts)


def outside() -> dict[str, str]:
    """Return the pages from outside of `docs/`: path in the tree -> text for the site."""
    found: dict[str, str] = {}
    inside = [
        (str(path.relative_to(ROOT)), path.read_text()) for path in (ROOT / "docs").rglob("*.md")
    ]
    todo = {*ALWAYS}.union(*(links_out(path, text) for path, text in inside))
    while todo:
        path = todo.pop()
        if path.endswith(".md"):
            text = (ROOT / path).read_text()
            todo |= links_out(path, text) - found.keys()
            found[path] = moved(path, text)
        else:
            found[path] = listing(path)
    return found


def expanded(nav: Any, pages: list[str]) -> Any:
    """Return the navigation with each `folder/*` replaced by the pages that no other entry has."""
    if isinstance(nav, dict):
        return {title: expanded(inner, pages) for title, inner in nav.items()}
    if isinstance(nav, list):
        flat: list[Any] = []
        for each in nav:
            if isinstance(each, str) and each.endswith("/*"):
                flat += [page for page in pages if page.startswith(each[:-1])]
            else:
                flat.append(expanded(each, pages))
        return flat
    return nav


def named(nav: Any) -> set[str]:
    """Return every page that the navigation names."""
    if isinstance(nav, dict):
        return named(list(nav.values()))
    return set().union(*map(named, nav)) if isinstance(nav, list) else {nav}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, text in outside().items():
        files.append(File.generated(config, site_of(path), content=text))
    pages = sorted(each.src_uri for each in files.documentation_pages())
    # The index of a folder comes first.
    pages.sort(key=lambda page: (posixpath.dirname(page), not page.endswith("README.md"), page))
    config.nav = expanded(config.nav, [page for page in pages if page not in named(config.nav)])
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if page.file.generated_by:  # It was changed when it was made.
        return markdown
    return moved(f"docs/{page.file.src_uri}", markdown)


def diagram(source: str, *_: Any, **__: Any) -> str:
    """Return a picture of Mermaid's text. As an address with its data, for Markdown reads HTML."""
    try:
        picture = mmdr.render(source).svg()
    except Exception as error:  # Any other one makes the extension show the source instead.
        raise SuperFencesException(f"Mermaid cannot be drawn: {source}") from error
    data = base64.b64encode(picture.encode()).decode()
    words = html.escape(" ".join(source.split()), quote=True)
    return f'<div class="diagram"><img src="data:image/svg+xml;base64,{data}" alt="{words}"></div>'
