"""A child for tests of the parent: does what its script says, one word for each start.

Words: a number ends with that code; ``killed`` kills itself; ``wait`` tells that it runs and ends with 0 when asked to
stop, with 130 when asked twice; ``deaf`` waits and does not listen. A line for each start goes into the file.
"""

import os
import signal
import sys
import threading
from pathlib import Path

from penstock.cli.lifeline import StopRequests

record, script = Path(sys.argv[1]), sys.argv[2].split(",")
over = threading.Event()


def note(text):
    with record.open("a", encoding="utf-8") as file:
        file.write(text + "\n")


if script[0] == "deaf":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    note(f"start {os.getpid()}")
    over.wait()

requests = StopRequests(at_once=lambda: os._exit(130), tell=note)
starts = len([line for line in record.read_text().splitlines() if line.startswith("start")]) if record.exists() else 0
word = script[min(starts, len(script) - 1)]
if word != "unborn":
    requests.running()
note(f"start {os.getpid()} {' '.join(sys.argv[3:])}".rstrip())
if word == "wait":
    requests.bind(over.set if "slow" not in sys.argv else lambda: note("asked"))
    over.wait()
    note("ended in order")
    sys.exit(0)
if word in {"killed", "unborn"}:
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(int(word))
