"""Runs a `penstock` command line and writes which modules of the package were entered, in order.

`tools/ways.py` starts it: `python tools/ways_probe.py FOLDER COMMAND…`. A file `FOLDER/mark-NAME` asks for what was
entered since the last mark. The answer is `FOLDER/NAME.json`, a list of [module, function, thread].
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import threading
from pathlib import Path
from types import FrameType

PACKAGE = str(Path(__file__).resolve().parent.parent / "src" / "penstock") + os.sep
LOOK_EVERY = 0.05  # seconds


class Probe:
    """Notes the first call into each module since the last mark."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._entered: dict[str, tuple[str, str]] = {}

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """The profile function of every thread."""
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE) or code.co_filename in self._entered:
            return
        # Modules and class bodies run when they are loaded, and so do the calls in them: nothing passes through there.
        if code.co_flags & inspect.CO_OPTIMIZED and not _is_loading(frame):
            self._entered[code.co_filename] = code.co_qualname, threading.current_thread().name

    def serve(self) -> None:
        """Answer marks until the process ends."""
        pause = threading.Event()
        while not pause.wait(LOOK_EVERY):
            for mark in self._folder.glob("mark-*"):
                self.write(mark.name.removeprefix("mark-"))
                mark.unlink()

    def write(self, name: str) -> None:
        """Write what was entered, and begin again."""
        entered, self._entered = self._entered, {}
        rows = [
            (file.removeprefix(PACKAGE).removesuffix(".py"), function, thread)
            for file, (function, thread) in entered.items()
        ]
        made = self._folder / f"{name}.new"
        made.write_text(json.dumps(rows), encoding="utf-8")
        made.rename(self._folder / f"{name}.json")


def _is_loading(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(PACKAGE):
            return True
        frame = frame.f_back
    return False


def main() -> None:
    """Run the command under the probe."""
    folder, *arguments = sys.argv[1:]
    probe = Probe(Path(folder))
    from penstock.cli import main as command_line  # loaded before anything is noted

    threading.Thread(target=probe.serve, name="probe", daemon=True).start()
    sys.argv = ["penstock", *arguments]
    threading.setprofile(probe)
    sys.setprofile(probe)
    try:
        command_line.main()
    finally:
        sys.setprofile(None)
        probe.write("end")


if __name__ == "__main__":
    main()
