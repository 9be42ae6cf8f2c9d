"""The jars of the broker are fetched once, whole, and exactly as listed, or their absence is explained."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from integration import broker_jars
from integration.broker_jars import JarsUnavailable, cache_folder, jars_folder

CLIENT = """\
#!/bin/sh
echo once >> "{calls}"
mkdir libs
printf '{content}' > libs/one-1.0.jar
"""


@pytest.fixture
def fetched(tmp_path, monkeypatch):
    """A Maven that brings whatever it is told to, and counts how often it was asked."""
    calls = tmp_path / "calls"
    calls.touch()
    programs = tmp_path / "bin"
    programs.mkdir()

    def bring(content):
        maven = programs / "mvn"
        maven.write_text(CLIENT.format(calls=calls, content=content))
        maven.chmod(0o755)
        return lambda: len(calls.read_text().splitlines())

    monkeypatch.setattr(broker_jars, "_spark_ivy", lambda: None)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return bring


@pytest.fixture
def listed(tmp_path):
    """A list of one jar."""
    path = tmp_path / "jars.txt"
    path.write_text(f"# a comment\norg.example:one:1.0 {hashlib.sha256(b'right').hexdigest()}\n")
    return path


def test_whoever_asks_at_once_gets_what_one_of_them_fetched(fetched, listed):
    calls = fetched("right")
    with ThreadPoolExecutor(4) as threads:
        found = {future.result() for future in [threads.submit(jars_folder, listed) for _ in range(4)]}
    (folder,) = found
    assert [each.name for each in folder.iterdir()] == ["one-1.0.jar"]
    assert calls() == 1


def test_other_bytes_than_listed_are_refused_and_nothing_of_them_is_kept(fetched, listed, tmp_path):
    fetched("wrong")
    with pytest.raises(JarsUnavailable) as refused:
        jars_folder(listed)
    assert "Maven: missing, surplus, or not the bytes that are listed: one-1.0.jar" in str(refused.value)
    assert "Ivy: not installed" in str(refused.value)
    assert str(tmp_path / "cache" / "penstock") in str(refused.value)
    assert [each.suffix for each in (tmp_path / "cache" / "penstock").iterdir()] == [".lock"]
    calls = fetched("right")
    assert jars_folder(listed).is_dir()
    assert calls() == 2


def test_the_cache_is_where_the_user_keeps_caches(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert str(cache_folder({"XDG_CACHE_HOME": "/var/cache/me"})) == "/var/cache/me/penstock"
    assert str(cache_folder({"XDG_CACHE_HOME": "relative, so ignored"})) == "/home/me/.cache/penstock"
    assert str(cache_folder({})) == "/home/me/.cache/penstock"
