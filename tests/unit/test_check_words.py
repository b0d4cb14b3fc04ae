"""The check of words finds what it is there for, and nothing in plain prose."""

from __future__ import annotations

import ast

import pytest

from scripts import check_words


@pytest.mark.parametrize(
    "text",
    [
        '"""What was read."""',
        'def f():\n    """Whether it holds."""',
        'class A:\n    """A thing."""\n\n    x = 1\n    """How many."""',
        'async def f():\n    """\n    Where it is."""',
    ],
)
def test_a_fragment_is_found(text: str) -> None:
    [found] = check_words.fragments("a.py", ast.parse(text))
    assert found.startswith("a.py:")
    assert "fragment" in found


@pytest.mark.parametrize(
    "text",
    [
        '"""Read the next page of each shard."""',
        'class Lease:\n    """The right to one shard."""',
        'def f():\n    x = "What is this"\n    return x',
        'def f():\n    """If it is late, wait."""',
    ],
)
def test_plain_words_pass(text: str) -> None:
    assert list(check_words.fragments("a.py", ast.parse(text))) == []


def test_two_rows_of_the_glossary_for_one_word_are_found() -> None:
    text = "| **page** | of a log |\n| **pool, page** | slots |\n"
    assert list(check_words.glossary_problems(text)) == ["docs/glossary.md: 'page' has 2 meanings"]
