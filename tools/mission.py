"""Which tests prove which behaviour: reads the marks in tests/ without importing them, and prints a table.

A test names the rows of tests/mission.toml that it proves: `@pytest.mark.mission("D1", "D4")`. The mark may stand on
a test, on its class, on one of its parameters, or on the whole module (`pytestmark = …`).
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TESTS = Path(__file__).resolve().parent.parent / "tests"

Proofs: TypeAlias = "dict[str, list[str]]"
"""The tests that name a row, by the row's id."""


def rows(tests: Path = TESTS) -> dict[str, str]:
    """The text of every row, by its id."""
    return tomllib.loads((tests / "mission.toml").read_text(encoding="utf-8"))


def proofs(tests: Path = TESTS) -> Proofs:
    """The tests that name each id, also ids that do not exist."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(tests.rglob("test_*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        for test, row in _marked_tests(module.body, prefix=path.relative_to(tests).as_posix(), inherited=()):
            found[row].append(test)
    return dict(found)


def _marked_tests(body: list[ast.stmt], prefix: str, inherited: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    marks = (*inherited, *_ids(statement for statement in body if _is_pytestmark(statement)))
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            own = (*marks, *_ids(node.decorator_list))
            yield from _marked_tests(node.body, f"{prefix}::{node.name}", own)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            for row in dict.fromkeys((*marks, *_ids(node.decorator_list))):
                yield f"{prefix}::{node.name}", row


def _is_pytestmark(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets
    )


def _ids(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The arguments of every `….mission(…)` inside the nodes."""
    for outer in nodes:
        for node in ast.walk(outer):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "mission":
                yield from (argument.value for argument in node.args if isinstance(argument, ast.Constant))


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 if an unknown row is named, or a required one has no test."""
    parser = argparse.ArgumentParser(description="Print which tests prove which behaviour, and the gaps.")
    parser.add_argument("--require", default="", metavar="D1,D4", help="fail if one of these rows has no test")
    required = [row for row in parser.parse_args(arguments).require.replace(",", " ").split() if row]

    texts, tests = rows(), proofs()
    for row, text in texts.items():
        print(f"{row:4} {text}")
        for test in tests.get(row, ()):
            print(f"       {test}")

    gaps = [row for row in texts if row not in tests]
    unknown = sorted({*tests, *required} - {*texts})
    missing = [row for row in required if row in gaps]
    print(f"\n{len(texts) - len(gaps)} of {len(texts)} rows have a test. Without one: {' '.join(gaps) or 'none'}")
    if unknown:
        print(f"no such row: {' '.join(unknown)}")
    if missing:
        print(f"required, but without a test: {' '.join(missing)}")
    return 1 if missing or unknown else 0


if __name__ == "__main__":
    sys.exit(main())
