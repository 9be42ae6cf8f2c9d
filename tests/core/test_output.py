"""How a task's batches go along branches: kept for those that run them, and only then."""

from __future__ import annotations

import pytest

from penstock.elements import Batch, ObservedMetrics, RefCount
from penstock.runtime.channels import Channel, OutputPath, TaskOutput

BAD = ("bad:1", "bad")


class Branches:
    """An output with a main branch and one for bad rows, and who kept what."""

    def __init__(self, *conditions: tuple[str, str] | None) -> None:
        self.kept: list[int] = []
        self.freed = 0
        self.channels = [Channel(capacity=2) for _ in conditions]
        branches = tuple(
            OutputPath(rewrite=None, channel=channel, only_if=only_if)
            for channel, only_if in zip(self.channels, conditions, strict=True)
        )
        self._output = TaskOutput({"out": OutputPath(rewrite=None, branches=branches)}, keep=self._keep)

    def _keep(self, batch: Batch, readers: int) -> Batch:
        self.kept.append(readers)
        return batch

    def _free(self) -> None:
        self.freed += 1

    def emit(self, **measures: ObservedMetrics) -> list[Batch]:
        named = {name.replace("_", ":"): measure for name, measure in measures.items()}
        self._output.emit(Batch(frame="rows", sequence=1, metrics=named, ref_counts=(RefCount(self._free),)))
        taken = [channel.take() for channel in self.channels]
        assert all(isinstance(batch, Batch) for batch in taken)
        return [batch for batch in taken if isinstance(batch, Batch)]


@pytest.mark.parametrize("told", [None, ObservedMetrics(lambda: {"bad": 0}), ObservedMetrics.known({"bad": 2})])
def test_a_batch_is_kept_for_branches_that_may_run_it(told: ObservedMetrics | None) -> None:
    branches = Branches(None, BAD)
    branches.emit(**{} if told is None else {"bad_1": told})
    assert branches.kept == [2]


def test_a_batch_that_one_branch_will_run_is_not_kept_and_freed_when_all_have_let_go_of_it() -> None:
    branches = Branches(None, BAD)
    main, side = branches.emit(bad_1=ObservedMetrics.known({"bad": 0}))
    assert branches.kept == []
    assert main.frame == side.frame == "rows"
    side.release()
    assert branches.freed == 0
    main.release()
    assert branches.freed == 1


def test_with_several_main_branches_it_is_kept_for_all_that_release_it() -> None:
    branches = Branches(None, None, BAD)
    branches.emit(bad_1=ObservedMetrics.known({"bad": 0}))
    assert branches.kept == [3]
