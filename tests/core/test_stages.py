"""How far a shadow run, or a restore, is: told from its facts."""

from core.checkpoint_values import keyed, layer, read_to, wrote
from core.copies_kit import layer as longer
from penstock.admin.shadow import ProgressListener, Stage
from penstock.facts import Counted, Restoring, RowsRead, SourceLag
from penstock.job.wiring import RestoreReporter


def lag(task, rows):
    return SourceLag(task=task, rows=rows, seconds=None, eta_seconds=None, partitions={})


def test_a_run_whose_rows_are_not_known_tells_what_it_has_read_and_what_its_sources_say_waits():
    told, facts = [], []
    teller = ProgressListener("old", None, told.append, facts.append)
    for fact in (
        RowsRead(task="a", rows=5),
        lag("a", 10),
        lag("b", 7),
        lag("a", 3),
        Counted(task="a", name="late", amount=1),
        RowsRead(task="b", rows=2),
    ):
        teller(fact)

    assert told == [
        Stage(doing="old"),
        Stage(doing="old", done=5),
        Stage(doing="old", done=5, behind=10),
        Stage(doing="old", done=5, behind=17),
        Stage(doing="old", done=5, behind=10),
        Stage(doing="old", done=7, behind=10),
    ]
    assert len(facts) == 6, "every fact is passed on"


def test_a_run_to_where_another_has_come_tells_of_how_many_rows():
    told = []
    teller = ProgressListener("new", 12, told.append, None)
    teller(RowsRead(task="a", rows=5))
    teller(lag("a", 100))

    assert told == [Stage(doing="new", of=12), *[Stage(doing="new", done=5, of=12)] * 2]


def test_a_restore_tells_the_bytes_of_state_before_each_step_that_has_any():
    told = []
    snapshots = {
        "in": read_to(1),
        "first": keyed(layer("a"), task="first"),
        "none": keyed(task="none"),
        "second": keyed(longer("b"), task="second"),
        "out": wrote(),
    }
    restores = RestoreReporter(snapshots, told.append)
    for uid in ("in", "first", "new", "none", "second", "out"):
        restores.begins(uid)

    total = 3 + sum(file.length for file in longer("b").files)
    assert told == [
        Restoring(doing="restoring", task="first", done=0, total=total),
        Restoring(doing="restoring", task="second", done=3, total=total),
    ]
