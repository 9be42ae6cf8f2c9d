"""``penstock run --plan``: a saved plan as the options of a run, and whether it may still be carried out."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.exits import UsageError
from penstock.operate.plan_document import SavedPlan, read_plan, require_unmoved

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
    _refuse_others(fresh=(options.fresh, begin.fresh))
    _refuse_others(allow_non_restored_state=(options.allow_non_restored_state, begin.allow_non_restored_state))
    if options.restore_from is not None or options.discard_unpublished:
        msg = "--from and --discard-unpublished go without --plan: the plan says where to begin"
        raise UsageError(msg)
    if begin.checkpoint is not None or begin.discard_unpublished:
        msg = "a plan that goes back to a checkpoint cannot be run: rewind to it, plan again without --from, run that"
        raise UsageError(msg)
    return replace(options, plan=None, fresh=begin.fresh, allow_non_restored_state=begin.allow_non_restored_state)


def _refuse_others(**given: tuple[object, object]) -> None:
    """Refuse what the command line says otherwise than the plan; what it leaves out is as was planned."""
    for name, (here, planned) in given.items():
        if here and here != planned:
            option = f"--{name.replace('_', '-')}"
            msg = f"{option} was not planned: leave it out, for the plan says where to begin, or plan again with it"
            raise UsageError(msg)


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
    from penstock.operate.planning import read_log

    saved = read_saved(options)
    history = read_log(graph.name, options.state, past_unreadable=saved.beginning.fresh)
    require_unmoved(saved, job=graph.name, history=history, settings=asdict(settings), code=fingerprint(graph))
    return saved.log
