"""Two processes start a job for the first time: the slower one is fenced, and is not told that the log was lost."""

from collections.abc import Sequence

import pytest

from penstock.checkpoint.entries import Claim
from penstock.checkpoint.log import Log
from penstock.clock import WallTime
from penstock.errors import GenerationFenced
from penstock.testing.filesystem import MemoryFileSystem

CLAIM = Claim(host="h", pid=1, started=WallTime(0), version="0")


class Overtaken(MemoryFileSystem):
    """While the slower one looks at the log, the faster one claims it and writes a layer."""

    is_due = True

    def list(self, prefix: str) -> Sequence[str]:
        found = super().list(prefix)
        if prefix == "log" and self.is_due:
            self.is_due = False
            claim(self, "faster")
            self.create("state/count/0/1/part-0", b"a layer")
        return found


def claim(filesystem: MemoryFileSystem, token: str) -> None:
    Log(filesystem, job="j", new_id=lambda: token, pause=lambda _: None).claim(CLAIM)


def test_L2_a_start_that_is_overtaken_by_the_first_claim_is_fenced() -> None:
    with pytest.raises(GenerationFenced, match="was faster"):
        claim(Overtaken(), "slower")
