"""``penstock plan`` refuses what ``penstock run`` refuses: for each story the same exit code and the same first line.

These stories need no Spark. Those that a start finds with Spark's analyser are in tests/spark/test_plan_refuses.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import penstock as ps
from core.checkpoint_values import CLAIM, file, keyed, layer, output, pin, wrote
from core.cli_kit import Said, say
from core.plan_kit import NOON, SHOP, STEPS, at, counted, module, shop_folder, story, tree, write_log
from core.test_cli_plan_from import export
from penstock.checkpoint import paths
from penstock.checkpoint.entries import Stopped
from penstock.cli import output as codes
from penstock.cli.output import UsageError, exit_code_of
from penstock.clock import MAX_WATERMARK
from penstock.connectors.counting import CountPosition
from penstock.connectors.files.removal import RemovalRecord
from penstock.errors import (
    CheckpointUnreadable,
    CommitterMissing,
    GraphError,
    LogGap,
    PenstockError,
    PlanOutdated,
    SettingsError,
    SinkIdentityConflict,
    SourceChanged,
    StateDirectoryRefused,
    StateIncompatible,
    UnknownName,
    UserFunctionError,
)
from penstock.handles import Json, Position, TaskSnapshot
from penstock.interfaces.source import KnowsEnd

pytestmark = pytest.mark.usefixtures("nobody_answers")

FILES = """\
import penstock as ps


@ps.pipeline("orders")
def orders(p):
    p.read("in", ps.files.Source("more", format="text")).write("out", ps.files.Sink("out", format="text"))
"""
ENDED = (
    TaskSnapshot(
        task="in", position=Position(kind="rate/1", detail={"next": 9, "started": NOON}), watermarks=(MAX_WATERMARK,)
    ),
    keyed(),
    wrote(),
)


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A story that makes a start refuse.

    Attributes:
        error: the class of the refusal.
        says: a part of its first line.
        story: makes it, in a folder with the state of a job that was stopped.
        source: the pipeline.
        options: of the command line.
    """

    error: type[PenstockError]
    says: str
    story: Callable[[Path], object] = lambda folder: None
    source: str = SHOP
    options: str = ""


def log_of(*bodies: object) -> Callable[[Path], object]:
    return lambda folder: write_log(folder / "state", [*bodies, Stopped(checkpoint=2, at=NOON)])


def of_files(*, ended: bool, **detail: Json) -> Callable[[Path], object]:
    """A job of ``FILES`` that has read nothing yet, drained or not."""
    position = Position(kind="files/1", detail={"done": {}, "partial": None} | detail)
    read = TaskSnapshot(task="in", position=position, watermarks=(MAX_WATERMARK,) if ended else ())
    return log_of(CLAIM, at(0, steps=(STEPS[0], STEPS[2]), tasks=(read, wrote())))


def write(path: str, text: str = "x") -> Callable[[Path], object]:
    def act(folder: Path) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)

    return act


def delete_files_that_were_read(folder: Path) -> None:
    removal = ps.files.Source(folder / "more", format="text", after_read="delete").removal
    removal.write(RemovalRecord(lineage="here", owner="a job", start=0, read=2, seen=2))
    of_files(ended=False, lineage="here", read=1)(folder)


def entry(folder: Path, number: int) -> Path:
    return folder / "state" / "orders" / paths.entry(number)


def lose_the_log(folder: Path) -> None:
    for path in (folder / "state" / "orders" / "log").iterdir():
        path.unlink()
    write("state/orders/state/totals/part-0")(folder)


def lose_the_state(folder: Path) -> None:
    (folder / "out" / ".penstock" / "log-1" / "out" / "0").mkdir(parents=True)
    (folder / "state").rename(folder / "lost")


def damage(*numbers: int) -> Callable[[Path], object]:
    return lambda folder: [entry(folder, number).write_text("{") for number in numbers]


def move_to_another_job(folder: Path) -> None:
    (folder / "state" / "orders").rename(folder / "state" / "others")


def lose_a_file_of_the_export(folder: Path) -> None:
    next((export(folder) / "state").rglob("*.parquet")).unlink()


def claim_the_export(folder: Path) -> None:
    from core import copies_kit

    copies_kit.Start(folder / "elsewhere", export(folder), claim=True, steps=STEPS)


def open_beside_a_foreign_file(folder: Path) -> None:
    staged, final = folder / "out" / ".penstock" / "log-1" / "out" / "0" / "part-0", folder / "out" / "part-0"
    staged.parent.mkdir(parents=True)
    staged.write_text("ours")
    final.write_text("of others")
    item = replace(
        output(0), target=str(folder / "out"), files=(file(str(staged)),), detail={"moves": {str(staged): str(final)}}
    )
    write_log(folder / "state", [CLAIM, at(0, open=(item,))])


def change(before: str, after: str) -> str:
    assert before in SHOP
    return SHOP.replace(before, after)


SUMS = change('"totals", ps.agg', '"sums", ps.agg')

STORIES = {
    # the command line and the settings
    "no such module": Refusal(error=UsageError, says="There is no module", source="", options="nowhere:orders"),
    "fresh and a checkpoint": Refusal(
        error=SettingsError, says="A start is either fresh or from '1'", options="--fresh --from 1"
    ),
    "fresh and a rename": Refusal(
        error=SettingsError, says="rename restores the state", options="--fresh --rename totals=sums", source=SUMS
    ),
    "a claim of no folder": Refusal(error=SettingsError, says="claim takes", options="--claim"),
    "a discard that goes nowhere": Refusal(
        error=SettingsError, says="is for going back", options="--discard-unpublished"
    ),
    "no rename": Refusal(error=UsageError, says="is not OLD=NEW", options="--rename totals"),
    "a setting": Refusal(error=SettingsError, says="retained is 0", options="--retained 0"),
    # the pipeline
    "code that raises": Refusal(error=GraphError, says="ZeroDivisionError", source="1 / 0\n" + SHOP),
    "a function that raises": Refusal(
        error=UserFunctionError,
        says="raised ZeroDivisionError",
        source=change("    numbers =", "    1 / 0\n    numbers ="),
    ),
    "a uid twice": Refusal(error=GraphError, says="'in'", source=change('"totals", ps.agg', '"in", ps.agg')),
    "a source that is none": Refusal(
        error=GraphError, says="Give it a source such as", source=change("ps.rate.Source(10)", "ps.console.Sink()")
    ),
    # the state folder
    "a file for a state folder": Refusal(
        error=StateDirectoryRefused,
        says="Folder taken of --state cannot be written in: File exists",
        story=write("taken"),
        options="--state taken",
    ),
    "a folder below a file": Refusal(
        error=StateDirectoryRefused, says="Not a directory", story=write("taken"), options="--state taken/state"
    ),
    "a file for the job's folder": Refusal(
        error=StateDirectoryRefused, says="Not a directory", story=write("other/orders"), options="--state other"
    ),
    "an address that no file system has": Refusal(
        error=StateDirectoryRefused,
        says="of the file system 's3', which is not supported",
        options="--state s3://bucket/state",
    ),
    # the log
    "a log that was lost": Refusal(error=StateDirectoryRefused, says="but no log", story=lose_the_log),
    "a damaged entry": Refusal(error=CheckpointUnreadable, says=paths.entry(4), story=damage(4)),
    "no entry that can be read": Refusal(
        error=CheckpointUnreadable, says="No entry is left", story=damage(*range(6)), options="--fresh"
    ),
    "a gap in the log": Refusal(error=LogGap, says=paths.entry(2), story=lambda folder: entry(folder, 2).unlink()),
    "the log of another job": Refusal(
        error=StateDirectoryRefused,
        says="holds the log of job 'orders', not of 'others'",
        story=move_to_another_job,
        source=change('"orders"', '"others"'),
    ),
    # where it begins
    "no such checkpoint": Refusal(error=UnknownName, says="Checkpoint 9 is not in the log", options="--from 9"),
    "no such savepoint": Refusal(error=UnknownName, says="Did you mean 'before-v2'?", options="--from befor-v2"),
    "a checkpoint of a job without state": Refusal(
        error=UnknownName, says="has no state here", options="--from 1 --state elsewhere"
    ),
    "a discard of what a savepoint holds": Refusal(
        error=GraphError,
        says="Discarding would condemn checkpoints that have names",
        story=lambda folder: write_log(folder / "state", [*story(), pin("keep", 2)]),
        options="--from 1 --discard-unpublished",
    ),
    "no export": Refusal(error=UnknownName, says="There is no exported checkpoint", options="--from ./nowhere"),
    "an export that another has": Refusal(
        error=StateDirectoryRefused, says="which has taken them over", story=claim_the_export, options="--from ./export"
    ),
    "an export that was changed": Refusal(
        error=CheckpointUnreadable,
        says="export.json",
        story=write("export/export.json", "{"),
        options="--from ./export",
    ),
    "an export that misses a file": Refusal(
        error=CheckpointUnreadable, says="is not whole", story=lose_a_file_of_the_export, options="--from ./export"
    ),
    # the steps and their state
    "a step that is gone": Refusal(error=StateIncompatible, says="holds state of 'totals'", source=SUMS),
    "a step of another kind": Refusal(
        error=StateIncompatible,
        says="recorded a step of kind 'window/9'",
        story=log_of(CLAIM, at(0, steps=(STEPS[0], replace(STEPS[1], kind="window/9"), STEPS[2]))),
    ),
    "a position of another kind": Refusal(
        error=StateIncompatible,
        says="The position is of kind 'kafka/1'",
        story=log_of(
            CLAIM,
            at(
                0, tasks=(replace(counted(1), position=Position(kind="kafka/1", detail={})), keyed(layer("a")), wrote())
            ),
        ),
    ),
    "a rename to nothing": Refusal(
        error=UnknownName, says="The pipeline has no step 'sums'", options="--rename totals=sums"
    ),
    "a rename of nothing": Refusal(
        error=UnknownName, says="has no step 'tot'. Did you mean 'totals'?", source=SUMS, options="--rename tot=sums"
    ),
    "a rename of what is still there": Refusal(
        error=StateIncompatible, says="The pipeline still has a step 'out'", options="--rename out=totals"
    ),
    # sources that have ended
    "a drained source of files": Refusal(
        error=StateIncompatible, says="ended in an earlier run", story=of_files(ended=True), source=FILES
    ),
    "a drained source without an end": Refusal(
        error=StateIncompatible, says="ended in an earlier run", story=log_of(CLAIM, at(0, tasks=ENDED))
    ),
    # sources whose rows are gone
    "a checkpoint before files were deleted": Refusal(
        error=SourceChanged,
        says="1 files that were read after this checkpoint were archived or deleted",
        story=delete_files_that_were_read,
        source=FILES.replace('"more", ', '"more", after_read="delete", '),
    ),
    # sinks
    "a sink that remembers a lost state directory": Refusal(
        error=SinkIdentityConflict, says="of another log (", story=lose_the_state, source=FILES
    ),
    "a file of others under the name of open output": Refusal(
        error=SinkIdentityConflict, says="is there already, with other content", story=open_beside_a_foreign_file
    ),
    "output of another version": Refusal(
        error=StateIncompatible,
        says="names no final file",
        story=lambda folder: write_log(folder / "state", [CLAIM, at(0, open=(output(0),))]),
    ),
    "output of an unknown kind": Refusal(
        error=CommitterMissing,
        says="of kind 'sqlite/1' waits to be published to there. The log names no committer",
        story=lambda folder: write_log(folder / "state", [CLAIM, at(0, open=(output(0, kind="sqlite/1"),))]),
    ),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return shop_folder(tmp_path, monkeypatch)


def first_line(said: Said) -> str:
    """The first line of an error: progress of a start does not begin so."""
    return next((line for line in said.err.splitlines() if line.startswith("penstock: ")), "nothing was refused")


@pytest.mark.mission("D7")
@pytest.mark.parametrize("case", STORIES)
def test_a_plan_refuses_what_a_start_refuses_with_the_same_code_and_words(folder: Path, case: str) -> None:
    refusal = STORIES[case]
    refusal.story(folder)
    name = module(folder, refusal.source)
    words = refusal.options.split()
    target = [] if ":" in refusal.options and not refusal.options.startswith("-") else [f"{name}:orders"]
    state = [] if "--state" in words else ["--state", "state"]
    before = tree(folder)

    planned = say("plan", *target, *words, *state, "--no-schemas")
    assert {name for name in tree(folder) if "__pycache__" not in name} == {
        name for name in before if "__pycache__" not in name
    }
    started = say("run", *target, *words, *state, "--no-parent", "--until", "caught-up")

    assert refusal.says in first_line(started)
    assert started.code == exit_code_of(refusal.error("so"))
    assert (planned.code, first_line(planned)) == (started.code, first_line(started))


def test_every_kind_of_refusal_has_a_story() -> None:
    told = {refusal.error for refusal in STORIES.values()}

    # Only a start with a saved plan finds it outdated.
    assert told >= {*codes._REFUSED, UsageError, SettingsError, UnknownName} - {PlanOutdated}


@pytest.mark.parametrize(
    ("source", "has_more"),
    [
        (ps.rate.Source(1), True),
        (ps.rate.Source(1, limit=10), True),
        (ps.rate.Source(1, limit=9), False),
        (ps.generator.Source(lambda frame: frame), True),
        (ps.generator.Source(lambda frame: frame, rows=9), False),
    ],
)
def test_a_source_that_counts_knows_whether_rows_follow_a_position(source: KnowsEnd, has_more: bool) -> None:
    position = CountPosition(next=9, started=NOON).encode("rate/1" if "rate" in source.describe() else "generator/1")

    assert source.has_more(position) is has_more


def test_a_source_of_files_that_has_not_ended_goes_on(folder: Path) -> None:
    of_files(ended=False)(folder)

    assert say("plan", f"{module(folder, FILES)}:orders", "--state", "state", "--no-schemas").code == 0


def test_a_drained_source_that_has_no_more_rows_goes_on(folder: Path) -> None:
    of_files(ended=True)(folder)
    (folder / "more" / "a.txt").unlink()

    assert say("plan", f"{module(folder, FILES)}:orders", "--state", "state", "--no-schemas").code == 0


def test_a_drained_source_that_cannot_say_whether_it_has_more_rows_is_a_warning(folder: Path) -> None:
    log_of(CLAIM, at(0, tasks=ENDED))(folder)
    source = "from core.graphs import NoSource\n" + change(
        "ps.rate.Source(10)", 'type("Own", (NoSource,), {"guarantee": ps.rate.Source(10).guarantee})()'
    )

    said = say("plan", f"{module(folder, source)}:orders", "--state", "state", "--no-schemas")

    assert said.code != 65
    assert "source 'in' ended in an earlier run, or was drained: a start is refused if it has more rows" in said.out


def test_a_refused_plan_prints_its_parts_and_its_document_all_the_same(folder: Path) -> None:
    lose_the_state(folder)
    command = ["plan", f"{module(folder, FILES)}:orders", "--state", "state", "--no-schemas"]

    text, document = say(*command), say(*command, "--json")

    assert text.out.splitlines()[0] == "orders: a start would be refused"
    assert "of another log (" in text.out
    assert json.loads(document.out)["verdict"] == "refused"
