"""Makes docs/rules.md: each rule of the protocol, where the product keeps it, and which planted bugs it catches.

`python tools/rules.py` writes the page; a test fails while it is stale.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections import defaultdict
from functools import cache, cached_property
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "rules.md"
GROUPS = {
    "L": "The log and its owner",
    "C": "Checkpoints and requests",
    "S": "Sinks",
    "R": "Rewind",
    "G": "What is deleted",
}
INTRO = """\
# The rules

Each line is a promise that the protocol rests on, with the one place that keeps it. Next to it stand the bugs that
`make planted` puts in its place, one at a time, to see that the suite notices. Made of `docs/rules.toml` by
`tools/rules.py`; do not edit.
"""


def rules() -> dict[str, dict[str, Any]]:
    """Every rule by its name."""
    return tomllib.loads((ROOT / "docs" / "rules.toml").read_text(encoding="utf-8"))


@cache
def bugs() -> dict[str, str]:
    """What each planted bug does instead, by its name; read without importing the tests."""
    found = {}
    for path in sorted((ROOT / "tests" / "planted").glob("of_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "bug":
                name, what = (ast.literal_eval(argument) for argument in node.args[:2])
                found[name] = what
    return found


def bugs_of(rule: str) -> dict[str, str]:
    """The bugs that are planted against a rule: ``L5`` and ``L5-target`` against L5."""
    return {name: what for name, what in bugs().items() if re.fullmatch(rf"{rule}(-.+)?", name)}


def follow(place: str) -> object:
    """What ``module:Qualified.name`` names.

    Raises:
        ImportError: there is no such module.
        AttributeError: it has no such name.
    """
    module, _, path = place.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    if isinstance(found, property):
        return found.fget
    return found.func if isinstance(found, cached_property) else found


def page() -> str:
    """The whole page."""
    grouped: defaultdict[str, list[str]] = defaultdict(list)
    for name, rule in rules().items():
        places = [f"`{place.partition(':')[2]}` in `{place.partition(':')[0]}`" for place in rule.get("where", ())]
        kept = ", ".join(places) or f"comes {rule['later']}"
        planted = "; ".join(f"`{bug}`: {what}" for bug, what in sorted(bugs_of(name).items()))
        grouped[name[0]].append(f"| **{name}** | {rule['says']} | {kept} | {planted or '—'} |")
    lines = [INTRO]
    for letter, title in GROUPS.items():
        lines += [f"## {title}", "", "| rule | it says | kept by | planted against it |", "| --- | --- | --- | --- |"]
        lines += [*grouped[letter], ""]
    return "\n".join(lines)


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
