"""A child for tests of the parent: does what its script says, one word for each start.

Words: a number ends with that code; ``killed`` kills itself; ``unborn`` does so before it tells that it runs; ``wait``
tells that it runs and ends with 0 when asked to stop, with 130 when asked twice; ``deaf`` waits and does not listen.
A line for each start goes into the file.
"""

import os
import signal
import sys
import threading
from pathlib import Path

from penstock.cli.process import StopListener


class Child:
    def __init__(self, record, script, *words):
        self.record = Path(record)
        self.words = words
        before = self.record.read_text().splitlines() if self.record.exists() else []
        script = script.split(",")
        self.word = script[min(sum(line.startswith("start") for line in before), len(script) - 1)]
        self.over = threading.Event()

    def note(self, text):
        with self.record.open("a", encoding="utf-8") as file:
            file.write(text + "\n")

    def run(self):
        if self.word == "deaf":
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
            self.note(f"start {os.getpid()}")
            self.over.wait()
        requests = StopListener(at_once=lambda: os._exit(130), notify=self.note)
        if self.word != "unborn":
            requests.report_running()
        self.note(" ".join(["start", str(os.getpid()), *self.words]))
        if self.word == "wait":
            requests.bind((lambda: self.note("asked")) if "slow" in self.words else self.over.set)
            self.over.wait()
            self.note("ended in order")
            return 0
        if self.word in {"killed", "unborn"}:
            os.kill(os.getpid(), signal.SIGKILL)
        return int(self.word)


if __name__ == "__main__":
    sys.exit(Child(*sys.argv[1:]).run())
