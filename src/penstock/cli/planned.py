"""``penstock run --plan``: a saved plan as the options of a run, and whether it may still be carried out."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.exits import UsageError
from penstock.cli.renames import renames_of
from penstock.operate.plan.document import SavedPlan, read_plan, require_unmoved

if TYPE_CHECKING:
    from penstock.checkpoint.history import LogMark
    from penstock.cli.run import RunOptions
    from penstock.graph.nodes import Graph
    from penstock.settings import Settings


def as_planned(options: RunOptions) -> RunOptions:
    """The options with which the plan was made, and none of a plan any more.

    Raises:
        UsageError: there is no such file, or the command line says otherwise how to begin.
        SettingsError: it holds no plan.
    """
    begin = read_saved(options).beginning
    checkpoint = None if begin.checkpoint is None else str(begin.checkpoint)
    for name, here, planned in (
        ("--fresh", options.fresh, begin.fresh),
        ("--from", options.restore_from, checkpoint),
        ("--claim", options.claim, False),
        ("--discard-unpublished", options.discard_unpublished, begin.discard_unpublished),
        ("--allow-non-restored-state", options.allow_non_restored_state, begin.allow_non_restored_state),
        ("--rename", renames_of(options.rename), dict(begin.rename)),
    ):
        if here and here != planned:
            msg = f"{name} was not planned so: leave it out, for the plan says where to begin, or plan again with it"
            raise UsageError(msg)
    return replace(
        options,
        plan=None,
        fresh=begin.fresh,
        restore_from=checkpoint,
        discard_unpublished=begin.discard_unpublished,
        allow_non_restored_state=begin.allow_non_restored_state,
        rename=tuple(f"{old}={new}" for old, new in begin.rename.items()),
    )


def read_saved(options: RunOptions) -> SavedPlan:
    """The plan that was saved.

    Raises:
        UsageError: there is no such file.
        SettingsError: it holds no plan.
    """
    assert options.plan is not None  # only asked of a run with a plan
    try:
        text = Path(options.plan).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"--plan {options.plan} cannot be read ({error}): name what penstock plan --out has written"
        raise UsageError(msg) from error
    return read_plan(text, options.plan)


def expected(options: RunOptions, graph: Graph, settings: Settings) -> LogMark:
    """Where the log has to be for the plan to be carried out; everything else is compared here.

    Raises:
        PlanOutdated: something has moved.
        CheckpointError: the log cannot be read.
    """
    from penstock.graph.fingerprint import fingerprint
    from penstock.operate.plan.planning import read_log

    saved = read_saved(options)
    history = read_log(graph.name, options.state, past_unreadable=saved.beginning.is_rewind)
    require_unmoved(saved, job=graph.name, history=history, settings=asdict(settings), code=fingerprint(graph))
    return saved.log
