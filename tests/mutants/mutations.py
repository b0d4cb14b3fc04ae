"""Make mutants: `python -m tests.mutants.mutations SEED COUNT AREA...` prints them as JSON lines.

It runs in an environment of its own that has cosmic-ray, whose operators change the code. To these
it adds one that changes comparisons and logic inside of SQL texts, where much of a store is.

A line has one mutant at most. Left out are annotations, assertions, `frozen`, `strict`, and numbers
of two digits and more (sizes that are a matter of tuning), for which no test can be asked; and of
the operators that replace an arithmetic one all but one (`+` by `-`, not by nine others), which any
test finds.
"""

from __future__ import annotations

import ast
import json
import random
import re
import sys
from collections.abc import Iterator
from typing import Any

import cosmic_ray.plugins as plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator

from tests.mutants.areas import ROOT, modules

OPERATORS = [
    *("AddNot", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr"),
    *("ReplaceOrWithAnd", "ReplaceBreakWithContinue", "ReplaceContinueWithBreak"),
    *("NumberReplacer", "RemoveDecorator", "ZeroIterationForLoop"),
    *("ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_USub_UAdd"),
    *(
        f"ReplaceComparisonOperator_{one}"
        for one in ("Eq_NotEq", "NotEq_Eq", "Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Is_IsNot")
    ),
    *("ReplaceComparisonOperator_IsNot_Is", "ReplaceComparisonOperator_Lt_Gt"),
    *(
        f"ReplaceBinaryOperator_{one}"
        for one in ("Add_Sub", "Sub_Add", "Mul_FloorDiv", "Div_Mul", "FloorDiv_Mul", "Mod_Mul")
    ),
    *("ReplaceBinaryOperator_BitOr_BitAnd", "ReplaceBinaryOperator_BitAnd_BitOr"),
]
SQL = re.compile(r"\b(select|insert|update|delete|where|join|order by)\b", re.IGNORECASE)
SWAPS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "=": "<>", "<>": "=", "+": "-", "-": "+",
    "and": "or", "or": "and", "is null": "is not null", "is not null": "is null",
    "min": "max", "max": "min", "least": "greatest", "greatest": "least", "desc": "asc",
    "exists": "not exists", "not exists": "exists",
}  # fmt: skip
_WORDS = re.compile(
    r"(?<= )(<=|>=|<>|<|>|=|\+|-|and|or|is null|is not null|desc|exists|not exists)(?=[\s\"])"
    r"|\b(min|max|least|greatest)(?=\()",
    re.IGNORECASE,
)


class SqlReplacer(Operator):  # type: ignore[misc]
    """Replaces a word of an SQL text by its opposite or its neighbour."""

    @staticmethod
    def _words(node: Any) -> list[re.Match[str]]:
        leaf = node.type in ("string", "fstring_string")
        if not leaf or not _in_sql(node):
            return []
        return [word for word in _WORDS.finditer(node.value) if not _assigns(node.value, word)]

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        for word in self._words(node):
            line = node.start_pos[0] + node.value.count("\n", 0, word.start())
            yield (line, 0), (line, 0)

    def mutate(self, node: Any, index: int) -> Any:
        word = self._words(node)[index]
        new = SWAPS[word[0].lower()]
        node.value = node.value[: word.start()] + new + node.value[word.end() :]
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        return ()


def _assigns(text: str, word: re.Match[str]) -> bool:
    """Tell whether a word is none of a condition: `set a = b`, `insert or replace`."""
    line = text[text.rfind("\n", 0, word.start()) + 1 :].partition("\n")[0]
    sets = word[0] == "=" and re.search(r"\bset\b|excluded\.|^\s+\w+ = ", line) is not None
    return sets or text[word.end() :].lstrip().startswith("replace")


def _in_sql(leaf: Any) -> bool:
    """Tell whether a leaf is of an SQL text: of its statement's strings one has a keyword."""
    statement = leaf.search_ancestor("expr_stmt", "simple_stmt", "return_stmt")
    texts = [each.value for each in ast_nodes(statement or leaf) if hasattr(each, "value")]
    # A docstring is a statement of its own, without a name for its text.
    documentation = statement is not None and statement.type == "simple_stmt"
    return not documentation and any(SQL.search(text) for text in texts)


def hidden(source: str) -> set[int]:
    """Return the lines of annotations and assertions."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.Assert) or (
            isinstance(node, ast.keyword) and node.arg in ("frozen", "strict")
        ):
            parts = [node]
        elif isinstance(node, ast.AnnAssign | ast.arg):
            parts = [node.annotation]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            parts = [node.returns]
        for part in parts:
            if isinstance(part, ast.expr | ast.stmt | ast.keyword):
                lines.update(range(part.lineno, (part.end_lineno or part.lineno) + 1))
    return lines


def operators() -> list[tuple[str, Any]]:
    named = [(name, plugins.get_operator(f"core/{name}")()) for name in OPERATORS]
    return [*named, ("SqlReplacer", SqlReplacer())]


def positions(source: str) -> dict[int, list[tuple[str, Any, int]]]:
    """Map each line to what can be changed in it: operator and number of the occurrence."""
    tree, lines, left_out = get_ast(source), source.splitlines(), hidden(source)
    found: dict[int, list[tuple[str, Any, int]]] = {}

    def large(start: tuple[int, int]) -> bool:
        return re.match(r"\d[\d_]", lines[start[0] - 1][start[1] :]) is not None

    for name, operator in operators():
        places = (place for node in ast_nodes(tree) for place in operator.mutation_positions(node))
        for occurrence, (start, _) in enumerate(places):
            if start[0] not in left_out and not (name == "NumberReplacer" and large(start)):
                found.setdefault(start[0], []).append((name, operator, occurrence))
    return found


def compiles(code: str) -> bool:
    """Tell whether a changed module is Python: any test finds one that is not."""
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return True


def mutants(seed: str, count: int, area: str) -> Iterator[dict[str, Any]]:
    """Yield `count` mutants of an area, or fewer if it has fewer lines."""
    rng = random.Random(f"{seed} {area}")
    sources = {module: (ROOT / module).read_text() for module in modules(area)}
    places = [
        (module, line, choices)
        for module, source in sources.items()
        for line, choices in sorted(positions(source).items())
    ]
    rng.shuffle(places)
    made = 0
    for module, line, choices in places:
        if made == count:
            return
        name, operator, occurrence = rng.choice(choices)
        code = mutate_code(sources[module], operator, occurrence)
        if code is None or code == sources[module] or not compiles(code):
            continue
        made += 1
        lines = zip(sources[module].splitlines(), code.splitlines(), strict=False)
        before, after = next((a.strip(), b.strip()) for a, b in lines if a != b)
        yield {
            "area": area, "module": module, "line": line, "operator": name,
            "before": before, "after": after, "code": code,
        }  # fmt: skip


if __name__ == "__main__":
    for chosen in sys.argv[3:]:
        for mutant in mutants(sys.argv[1], int(sys.argv[2]), chosen):
            print(json.dumps(mutant))
