"""The site of `make docs` has every page, and a reference of every public name."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

import penstock as ps

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
NAMED = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
REFERENCES = [
    identifier
    for page in sorted((DOCS / "reference").glob("*.md"))
    for identifier in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
]


def _find(identifier: str) -> object:
    module, _, name = identifier.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError:
        return importlib.import_module(identifier)


def test_the_navigation_names_each_page_once() -> None:
    pages = {str(page.relative_to(DOCS)) for folder in (DOCS, DOCS / "reference") for page in folder.glob("*.md")}
    assert sorted(NAMED) == sorted(pages)


def test_the_readme_links_to_each_page() -> None:
    linked = re.findall(r"\]\(docs/([\w-]+\.md)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert {page.name for page in DOCS.glob("*.md")} - set(linked) == {"index.md"}


@pytest.mark.parametrize("identifier", REFERENCES)
def test_what_the_reference_shows_exists_and_says_what_it_is(identifier: str) -> None:
    assert inspect.getdoc(_find(identifier))


def test_every_public_name_is_in_the_reference() -> None:
    shown = [_find(identifier) for identifier in REFERENCES]
    modules = {each.__name__ for each in shown if inspect.ismodule(each)}

    def is_shown(value: object) -> bool:
        if inspect.ismodule(value):  # a connector's package: its classes are
            return value.__name__ in modules or any(part in shown for part in vars(value).values())
        return any(value is each for each in shown) or getattr(value, "__module__", "") in modules

    assert [name for name in ps.__all__ if not is_shown(getattr(ps, name))] == []


def test_no_docstring_has_a_role_that_the_site_would_show_raw() -> None:
    role = re.compile(r":(?:class|meth|func|attr|data|exc|mod):`")
    files = (ROOT / "src").rglob("*.py")
    assert [str(file) for file in files if role.search(file.read_text(encoding="utf-8"))] == []
