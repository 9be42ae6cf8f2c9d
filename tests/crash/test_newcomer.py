"""What the README promises a new user, from the built wheel on, in less than five minutes."""

import sys
from pathlib import Path

import pytest

from crash.newcomer import LIMIT, first_minutes, interpreter, newcomer, tell

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_a_new_user_gets_from_the_wheel_to_exact_sums_after_a_kill_in_five_minutes():
    with newcomer() as user:
        first_minutes(user)
        assert tell(user) < LIMIT


def test_a_python_that_a_version_manager_hides_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shim = tmp_path / "python3.10"
    shim.write_text(f'#!/bin/sh\n[ "$PYENV_VERSION" = 3.10 ] || exit 127\nexec {sys.executable} "$@"\n')
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("PYENV_VERSION", raising=False)

    assert interpreter("3.10") == sys.executable
    with pytest.raises(SystemExit, match=r"python3\.10 does not run"):
        interpreter(str(shim))
