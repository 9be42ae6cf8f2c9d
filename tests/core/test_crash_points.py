"""The page on crashes lists every crash point, as the code has it."""

import crash_points
from penstock.failpoints import FAILPOINTS


def test_every_point_is_in_one_group():
    named = [name for names in crash_points.GROUPS.values() for name in names]
    assert not FAILPOINTS.keys() ^ set(named), "put it into a group of tools/crash_points.py"
    assert len(named) == len(FAILPOINTS)
    assert FAILPOINTS.keys() >= crash_points.REAL_JOBS_ONLY


def test_the_list_on_the_page_is_what_the_code_says():
    text = crash_points.PAGE.read_text(encoding="utf-8")
    assert text == crash_points.page(text), "stale: run python tools/crash_points.py"
    for name, what in FAILPOINTS.items():
        assert f"| `{name}` | {what}" in text


def test_the_tool_mends_a_stale_page(tmp_path, monkeypatch, capsys):
    whole = crash_points.PAGE.read_text(encoding="utf-8")
    stale = tmp_path / "crash-tutorial.md"
    stale.write_text(whole.replace("sink.published", "sink.gone"), encoding="utf-8")
    monkeypatch.setattr(crash_points, "PAGE", stale)

    assert crash_points.main() == 0

    assert crash_points.section() in stale.read_text(encoding="utf-8")
    assert "crash-tutorial.md" in capsys.readouterr().out
