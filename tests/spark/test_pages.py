"""Pages that are whole programs: programs.md, tables.md and pages of connectors. Each prints what it says it prints."""

from __future__ import annotations

import re

import pytest

from page_kit import DOCS

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("page", ["programs.md", "tables.md", "small-connectors.md", "sources-files.md"])
@pytest.mark.usefixtures("spark")
def test_a_page_prints_what_it_says(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (DOCS / page).read_text(encoding="utf-8")
    names: dict[str, object] = {"__name__": "page"}
    pairs = re.findall(r"```python\n(.*?)```\n\nIt prints:\n\n```\n(.*?)```", text, flags=re.DOTALL)
    assert len(pairs) == text.count("```python")
    for code, printed in pairs:
        exec(compile(code, page, "exec"), names)
        said = "\n".join(line.rstrip() for line in capsys.readouterr().out.strip().splitlines())
        assert said.endswith(printed.strip()), said
