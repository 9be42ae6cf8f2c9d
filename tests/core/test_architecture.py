"""The page on the architecture names only what is there, and every folder of the package; names are defined once."""

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "penstock"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
FILES = sorted(set(re.findall(r"`([a-z_/]+\.py)`", PAGE)))
CLASSES = sorted(set(re.findall(r"`([A-Z][a-z]\w+)`", PAGE)))
INTERNALS = {"_jvm", "_jdf", "_jsparkSession", "_jsc", "_jc", "_jo", "_gateway"}

TREES = {path.relative_to(PACKAGE): ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}


def defined() -> dict[str, list[Path]]:
    """Public classes and type aliases of the whole package, and where they are."""
    found = defaultdict(list)
    for path, tree in TREES.items():
        for node in tree.body:
            is_alias = isinstance(node, ast.AnnAssign) and "TypeAlias" in ast.unparse(node.annotation)
            name = node.name if isinstance(node, ast.ClassDef) else node.target.id if is_alias else "_"
            if not name.startswith("_"):
                found[name].append(path)
    return found


def test_each_file_that_the_page_names_is_there() -> None:
    assert [file for file in FILES if not (PACKAGE / file).is_file()] == []


def test_a_class_that_the_page_names_is_there() -> None:
    assert [name for name in CLASSES if name not in defined()] == []


def test_each_folder_of_the_package_is_in_the_table() -> None:
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}

    assert set(re.findall(r"^\| `([a-z_]+)` \|", PAGE, re.MULTILINE)) == folders


def test_a_class_or_an_alias_is_defined_once_in_the_package() -> None:
    # Users write ps.kafka.Source, so each connector has its own next to the protocol; a command's options are its own.
    own = {
        name: [path for path in paths if not path.is_relative_to("cli")]
        for name, paths in defined().items()
        if name not in ("Source", "Sink")
    }

    assert {name: paths for name, paths in own.items() if len(paths) > 1} == {}


def test_only_the_spark_folder_touches_the_internals_of_spark() -> None:
    touched = {
        f"{path}: {node.attr}"
        for path, tree in TREES.items()
        if not path.is_relative_to("spark")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in INTERNALS
    }

    assert touched == set()


def test_classes_of_the_jvm_are_looked_up_by_their_full_names() -> None:
    # Attribute by attribute, the JVM searches every jar for a class named like each package.
    found = [
        f"{path}:{node.lineno}"
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in {"java", "org", "scala"} and "jvm" in ast.unparse(node)
    ]
    assert found == []
