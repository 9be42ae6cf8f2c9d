"""Prints every error message and every help text of the package, so that they can be read in one go.

python tools/messages.py [--errors | --help-texts]

A message is the text that an error is raised with; what is filled in at run time stands in braces. The number of
messages of each class comes last.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "penstock"
BUILT_IN = frozenset({"ValueError", "TypeError", "KeyError", "AttributeError", "RuntimeError", "TimeoutError"})


@dataclass(frozen=True, order=True)
class Message:
    """One text that an error is made with."""

    error: str
    place: str
    text: str


@cache
def _tree_of(path: Path) -> ast.Module:
    """Return what a module is parsed to."""
    return ast.parse(path.read_text(encoding="utf-8"))


def error_classes() -> frozenset[str]:
    """Return the names of all error classes of the package, and of Python's that it raises."""
    classes: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(_tree_of(path)):
            if isinstance(node, ast.ClassDef):
                classes[node.name] = {base.id for base in node.bases if isinstance(base, ast.Name)}
    found = {"PenstockError", "Exception"}
    while more := {name for name, bases in classes.items() if bases & found} - found:
        found |= more
    return frozenset(found | BUILT_IN)


def text_of(node: ast.expr, assigned: dict[str, str]) -> str | None:
    """Return the text of an expression, with braces where a value is filled in; `None` if it is no text.

    >>> text_of(ast.parse("f'file {name!r} ' 'is gone'", mode="eval").body, {})
    'file {name} is gone'
    """
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(text_of(part, assigned) or "" for part in parts)
        case ast.FormattedValue(value=value):
            return "{" + ast.unparse(value) + "}"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            texts = [text_of(part, assigned) for part in (left, right)]
            return "".join(text or "{…}" for text in texts) if any(texts) else None
        case ast.IfExp(body=body, orelse=other):
            texts = [text_of(part, assigned) for part in (body, other)]
            return " | ".join(text for text in texts if text) if all(texts) else None
        case _:
            return assigned.get(node.id) if isinstance(node, ast.Name) else None


def messages_of(path: Path, errors: frozenset[str]) -> Iterator[Message]:
    """Yield the messages of a module, in the order of its lines."""
    functions = [node for node in ast.walk(_tree_of(path)) if isinstance(node, (ast.FunctionDef, ast.Lambda))]
    for function in functions:
        assigned: dict[str, str] = {}
        waiting: dict[str, str] = {}
        for node in sorted(_own_nodes(function), key=lambda node: (node.lineno, node.col_offset)):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    text = text_of(value, assigned)
                    before = waiting.get(name)  # of another branch, if no error was made with it
                    assigned[name] = f"{before} | {text}" if text and before else text or assigned.get(name, "")
                    waiting[name] = assigned[name]
                case ast.AugAssign(target=ast.Name(id=name), value=value):
                    assigned[name] = assigned.get(name, "") + (text_of(value, assigned) or "")
                case ast.Call(func=ast.Name(id=error) | ast.Attribute(attr=error), args=[first, *_]) if error in errors:
                    text = text_of(first, assigned)
                    if isinstance(first, ast.Name):
                        waiting.pop(first.id, None)
                    if text:
                        yield Message(error, f"{path.relative_to(ROOT / 'src')}:{node.lineno}", text)


def _own_nodes(function: ast.FunctionDef | ast.Lambda) -> Iterator[ast.stmt | ast.expr]:
    """Yield the statements and expressions of a function, without those of functions in it."""
    waiting: list[ast.AST] = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            continue
        if isinstance(node, (ast.stmt, ast.expr)):
            yield node
        waiting.extend(ast.iter_child_nodes(node))


def all_messages() -> list[Message]:
    """Return all messages of the package, by class and place."""
    errors = error_classes()
    return sorted(found for path in sorted(PACKAGE.rglob("*.py")) for found in messages_of(path, errors))


def print_messages() -> None:
    """Print each message below its class."""
    last = ""
    found = all_messages()
    for message in found:
        if message.error != last:
            print(f"\n{message.error}\n{'-' * len(message.error)}")
            last = message.error
        print(f"{message.place}\n    {message.text}")
    print("\nMessages by class")
    for error, count in sorted(Counter(message.error for message in found).items()):
        print(f"{count:5} {error}")
    print(f"{len(found):5} together")


def print_help() -> None:
    """Print what each command says when it is asked for help."""
    from penstock.cli.main import COMMANDS, dispatch
    from penstock.cli.output import Output

    for words in ((), *(command.name.split() for command in COMMANDS)):
        print(f"\n$ penstock {' '.join((*words, '--help'))}", flush=True)
        dispatch([*words, "--help"], Output())


def main() -> int:
    """Print what was asked for."""
    asked = sys.argv[1:]
    if asked != ["--help-texts"]:
        print_messages()
    if asked != ["--errors"]:
        print_help()
    return 0


if __name__ == "__main__":
    sys.exit(main())
