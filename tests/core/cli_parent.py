"""A parent for tests: watches ``cli_child`` with short pauses, and ends as it does."""

import faulthandler
import signal
import sys
from pathlib import Path

from penstock.cli.process import ChildWatcher
from penstock.runtime.lifecycle import ExponentialDelay

CHILD = str(Path(__file__).with_name("cli_child.py"))

if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)  # a test that waits in vain can ask where it stands
    parent = ChildWatcher(
        lambda has_run: [sys.executable, CHILD, *sys.argv[1:], *(["again"] if has_run else [])],
        notify=lambda text: print(text, flush=True),  # noqa: T201 - what the test reads
        strategy=ExponentialDelay(initial=1_000),
    )
    sys.exit(parent.run())
