"""Workbooks, read as a spreadsheet reads them."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from xml.etree import ElementTree


def sheet(path: Path, number: int) -> list[list[tuple[str, str]]]:
    """(kind, value) of the cells: `n` numbers, `s` texts, `f` formulas with their value."""
    space = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
    with zipfile.ZipFile(path) as book:
        texts = [
            "".join(node.itertext())
            for node in ElementTree.fromstring(book.read("xl/sharedStrings.xml"))
        ]
        root = ElementTree.fromstring(book.read(f"xl/worksheets/sheet{number}.xml"))
    found = []
    for line in root.iter(f"{space}row"):
        cells = []
        for cell in line:
            value = cell.findtext(f"{space}v") or ""
            if cell.find(f"{space}f") is not None:
                cells.append(("f", value))
            elif cell.get("t") == "s":
                cells.append(("s", texts[int(value)]))
            else:
                cells.append(("n", value))
        found.append(cells)
    return found


def named(path: Path, name: str) -> list[list[str]]:
    """Return the values of the sheet of that name."""
    with zipfile.ZipFile(path) as book:
        names = re.findall(r'<sheet name="([^"]+)"', book.read("xl/workbook.xml").decode())
    return [[value for _, value in row] for row in sheet(path, names.index(name) + 1)]
