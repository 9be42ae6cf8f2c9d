"""``penstock run --plan``: a saved plan as the options of a run, and whether it may still be carried out."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.exits import UsageError
from penstock.cli.renames import renames_of
from penstock.errors import PenstockError
from penstock.operate.plan.document import SavedPlan, read_plan, require_unmoved

if TYPE_CHECKING:
    from penstock.checkpoint.history import History, LogMark
    from penstock.cli.run import RunOptions
    from penstock.graph.nodes import Graph
    from penstock.job.beginning import SeenExport
    from penstock.operate.plan.steps import FromExport
    from penstock.settings import Settings


def as_planned(options: RunOptions) -> RunOptions:
    """The options with which the plan was made, and none of a plan any more.

    Raises:
        UsageError: there is no such file, or the command line says otherwise how to begin.
        SettingsError: it holds no plan.
    """
    begin = read_saved(options).beginning
    place = None if begin.checkpoint is None else str(begin.checkpoint)
    if begin.export is not None:
        place = begin.export.folder
    claim = begin.export is not None and begin.export.claim
    for name, here, planned in (
        ("--fresh", options.fresh, begin.fresh),
        ("--from", _place(options.restore_from), place),
        ("--claim", options.claim, claim),
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
        restore_from=place,
        claim=claim,
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


def _place(restore_from: str | None) -> str | None:
    """As a plan has it: an exported folder by its absolute path."""
    from penstock.job.beginning import read_beginning

    asked = read_beginning(fresh=False, restore_from=restore_from, claim=False, discard_unpublished=False)
    return asked.folder or asked.checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a start has to find for a plan to be carried out.

    Attributes:
        log: where the log has to be.
        export: the exported checkpoint that it has to begin with, if the plan was to begin with one.
    """

    log: LogMark
    export: SeenExport | None


def expected(options: RunOptions, graph: Graph, settings: Settings) -> Expected:
    """What the start looks at again, under its claim; everything else is compared here.

    Raises:
        PlanOutdated: something has moved.
        CheckpointError: the log cannot be read.
    """
    from penstock.graph.fingerprint import fingerprint
    from penstock.job.beginning import SeenExport
    from penstock.operate.plan.planning import read_log

    saved = read_saved(options)
    history = read_log(graph.name, options.state, past_unreadable=saved.beginning.is_rewind)
    require_unmoved(
        saved,
        job=graph.name,
        history=history,
        settings=asdict(settings),
        code=fingerprint(graph),
        export=_moved(saved.beginning.export, history),
    )
    export = saved.beginning.export
    seen = None if export is None else SeenExport(folder=export.folder, sha256=export.sha256)
    return Expected(log=saved.log, export=seen)


def _moved(export: FromExport | None, history: History) -> str | None:
    """What has become of the exported checkpoint since the plan was made, if anything has."""
    from penstock.job.beginning import changed_since
    from penstock.job.importing import open_export

    if export is None:
        return None
    try:
        return changed_since(open_export(export.folder, log_id=history.log_id), export.folder, export.sha256)
    except PenstockError as error:
        return str(error)
