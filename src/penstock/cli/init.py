"""``penstock init``: says what was made and what comes next. Makes nothing itself."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from penstock.cli.exits import ExitCode
from penstock.operate.starter import Starter, plan_starter, write_starter

if TYPE_CHECKING:
    from penstock.cli.output import Output


def run_init(output: Output, *, folder: str, name: str) -> int:
    """Make the project, and tell the next steps.

    Raises:
        SettingsError: the name cannot be one, or a file is there already.
    """
    starter = plan_starter(name)
    write_starter(starter, Path(folder))
    output.result(Text(f"made in {os.path.abspath(folder)}: {', '.join(starter.files)}"))
    output.result(Text("next:", style="bold"))
    for step in next_steps(starter, folder):
        output.result(Text(f"  {step}"))
    return ExitCode.ENDED


def next_steps(starter: Starter, folder: str) -> list[str]:
    """Command lines for the reader, in order."""
    return [
        *([f"cd {shlex.quote(folder)}"] if Path(folder) != Path() else []),
        "penstock test",
        "python sample.py make 60",
        f"penstock run {starter.module}:{starter.module} --until caught-up",
        "python sample.py check",
        f"penstock state query {starter.name} totals",
    ]
