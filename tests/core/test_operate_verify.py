"""``verify`` finds every damage, says what it breaks and what helps, and takes nothing for damage that is none."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from core.checkpoint_values import CLAIM, manifest, pin
from core.cli_kit import say
from core.looking_kit import GONE, NOON, a_job, layer_in, put, staged_in, taken, write_log
from penstock.admin.verify import Fault, verify
from penstock.checkpoint import paths
from penstock.checkpoint.entries import Rewind, Stopped
from penstock.checkpoint.received import SEAL, ReceivedPosition
from penstock.checkpoint.request_keys import with_keys
from penstock.connectors.receivers.blocks import encode_block
from penstock.control.client import JobDirectory
from penstock.handles import BlockId, Committable, RequestKey, TaskSnapshot

pytestmark = pytest.mark.usefixtures("nobody_answers")

LAYER_B = "state/totals/0/b/part-0.parquet"
LAYER_C = "state/totals/0/c/part-0.parquet"
STAGED = "staged/out/0/2/part-0"


@pytest.fixture
def job(tmp_path):
    return a_job(tmp_path)


def verdict(job, **options):
    return verify(JobDirectory(job.parent, job.name), **options)


def broken(job, **options):
    return [(each.path, each.fault) for each in verdict(job, **options).broken]


def lines(job, *options):
    said = say("verify", "orders", "--state", str(job.parent), *options)
    return said.code, said.out


def test_a_sound_job_is_sound_and_what_is_not_needed_is_only_told(job):
    put(job, "state/totals/0/nobody/part-0.parquet", b"left behind")

    found = verdict(job)

    assert found.is_sound
    assert (found.files, found.bytes) == (3, 26)
    assert found.sound == found.restorable == (1, 2)
    assert found.orphans == ("state/totals/0/nobody/part-0.parquet",)
    assert found.condemned == ("state/totals/0/a/part-0.parquet",), "it belongs to no checkpoint that can be restored"
    assert lines(job)[0] == 0


def test_a_flipped_byte_is_found_but_not_by_a_quick_look(job):
    (job / LAYER_C).write_bytes(b"rows of twO")

    assert broken(job) == [(LAYER_C, Fault.CONTENT)]
    assert broken(job, quick=True) == []
    code, said = lines(job)
    assert code == 1
    assert f"  {LAYER_C}: has other content than was written: sha256 is " in said
    assert "; breaks checkpoint 2\n" in said
    assert "can be restored: 1; the next start continues 2, which is broken" in said
    assert "begin again at checkpoint 1: penstock rewind orders 1\n" in said


def test_the_docs_show_what_is_said_of_a_broken_file(job):
    (job / LAYER_C).write_bytes(b"rows of twO")
    page = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()

    assert f"```\n{lines(job)[1]}```" in page


@pytest.mark.parametrize("quick", [False, True])
def test_a_truncated_file_is_found(job, quick):
    (job / LAYER_B).write_bytes(b"rows")

    found = verdict(job, quick=quick)

    (each,) = found.broken
    assert (each.path, each.fault, each.message) == (LAYER_B, Fault.LENGTH, "has 4 bytes, 9 were written")
    assert each.checkpoints == (1, 2)
    assert each.savepoints == ("before-v2",)
    assert found.sound == ()
    assert found.remedies[1] == "no checkpoint is left; begin with empty state: penstock rewind orders --fresh"


@pytest.mark.parametrize("quick", [False, True])
def test_a_layer_that_is_gone_is_found(job, quick):
    shutil.rmtree(job / "state/totals/0/c")

    assert broken(job, quick=quick) == [(LAYER_C, Fault.MISSING)]


def test_staged_output_that_is_gone_is_found_where_nothing_proves_that_it_was_published(job):
    (job / STAGED).unlink()

    found = verdict(job)

    (each,) = found.broken
    assert (each.path, each.fault) == (STAGED, Fault.MISSING)
    assert [(item.checkpoint, item.uid) for item in each.outputs] == [(2, "out")]
    assert "is not there; breaks output #2 of 'out'\n" in lines(job)[1]
    assert found.sound == (1, 2), "state can be restored"
    assert "penstock rewind orders 2 --discard-unpublished" in found.remedies[1]


def test_a_broken_checkpoint_that_the_next_start_does_not_need_is_told_apart(tmp_path):
    job = tmp_path / "orders"
    one, two = layer_in(job, "a", b"1"), layer_in(job, "b", b"2")
    write_log(tmp_path, GONE, taken(1, None, one), taken(2, 1, two))
    (job / one.files[0].path).unlink()

    found = verdict(job)

    assert found.sound == (2,)
    assert "the next start is not touched" in found.remedies[1]


def test_an_entry_with_a_flipped_bit_is_named_and_so_is_the_way_past_it(job):
    entry = job / paths.entry(4)
    entry.write_bytes(entry.read_bytes().replace(b"totals", b"totalz", 1))

    code, said = lines(job)

    assert code == 1
    assert f"  {paths.entry(4)}: " in said
    assert "content does not match its checksum" in said
    assert "penstock rewind orders 1" in said


def test_an_entry_that_a_rewind_went_past_is_no_fault_any_more(tmp_path):
    job = write_log(tmp_path, GONE, taken(1, None), taken(2, 1), Rewind(to=1, left=None, at=NOON, lost=(2,)))
    damaged = job / paths.entry(2)
    torn = damaged.read_bytes()[:-1] + b" "  # the entry after it was written upon these bytes
    damaged.write_bytes(torn)

    assert [each.path for each in verdict(job).broken] == []


def test_a_savepoint_whose_entry_a_rewind_went_past_is_a_fault_until_it_is_dropped(tmp_path):
    """Its checkpoint is lost, so the name leads nowhere."""
    job = write_log(tmp_path, GONE, taken(0, None), taken(1, 0), pin("good", 1))
    entry = job / paths.entry(2)
    entry.write_bytes(b"junk")
    before = verdict(job)
    said = say("rewind", "orders", "0", "--yes", "--state", str(tmp_path))
    found = verdict(job)
    dropped = say("savepoint", "drop", "orders", "good", "--yes", "--state", str(tmp_path))

    assert before.remedies[0] == "put the files back from a copy, if there is one"
    assert said.code == 0, said.err
    assert [(each.path, each.fault, each.savepoints) for each in found.broken] == [
        (paths.LOG, Fault.REFERENCE, ("good",))
    ]
    assert found.remedies == ("the checkpoint of savepoint good is lost; drop it: penstock savepoint drop orders good",)
    assert dropped.code == 0, dropped.err
    assert verdict(job).is_sound


def test_a_gap_in_the_log_is_found_and_nothing_else_is_believed(job):
    (job / paths.entry(3)).unlink()

    found = verdict(job)
    code, said = lines(job)

    assert [(each.path, each.fault) for each in found.broken] == [(paths.LOG, Fault.MISSING)]
    assert f"{paths.entry(3)} is missing although the log goes on to 5" in said
    assert code == 1
    assert "rewind" not in said


def test_an_entry_of_another_history_is_found(job, tmp_path):
    other = write_log(tmp_path / "other", GONE, taken(7, None))
    shutil.copy(other / paths.entry(1), job / paths.entry(1))

    assert broken(job) == [(paths.entry(1), Fault.UNREADABLE)]


def test_the_json_has_everything_a_script_needs(job):
    (job / LAYER_C).unlink()

    code, said = lines(job, "--json")
    told = json.loads(said)

    assert code == 1
    assert (told["schema"], told["is_sound"], told["sound"]) == ("penstock.verify/1", False, [1])
    assert told["broken"] == [
        {
            "path": LAYER_C,
            "fault": "missing",
            "message": "is not there",
            "needed_by": [2],
            "names": [],
            "outputs": [],
        }
    ]
    assert told["remedies"][1] == "begin again at checkpoint 1: penstock rewind orders 1"


# ------------------------------------------------------------------------------------------- published, or let go


def beside(tmp_path, content=b"rows"):
    """Output of a file sink, staged beside its target; the final name, too."""
    target = tmp_path / "out"
    staged = f"{target}/.penstock/log-1/out/0/2/part-0.json"
    final = f"{target}/part-2.json"
    ref = put(target, staged, content)
    item = Committable(
        uid="out",
        kind="files/1",
        checkpoint=2,
        target=str(target),
        files=(ref,),
        detail={"moves": {staged: final}, "format": "json"},
    )
    job = write_log(tmp_path / "state", GONE, taken(2, None, open=(item,)))
    return job, staged, final


def test_output_that_was_published_but_not_confirmed_is_sound(tmp_path):
    job, staged, final = beside(tmp_path)
    assert verdict(job).is_sound

    shutil.move(staged, final)

    assert verdict(job).is_sound
    assert verdict(job).taken == ()


def test_output_that_a_reader_took_counts_as_published_and_is_named(tmp_path):
    job, staged, _ = beside(tmp_path)
    shutil.move(staged, tmp_path / "elsewhere")

    found = verdict(job)

    assert found.is_sound
    assert found.taken == (staged,)
    assert "counts as published (a reader may have taken it)" in lines(job)[1]


def test_a_target_that_is_not_mounted_is_found(tmp_path):
    job, staged, _ = beside(tmp_path)
    (tmp_path / "out").rename(tmp_path / "away")

    (each,) = verdict(job).broken

    assert (each.path, each.message) == (
        staged,
        "is not there, nor is its folder: the target is not mounted, or was emptied",
    )


def test_orphans_beside_a_target_are_found_too(tmp_path):
    job, staged, _ = beside(tmp_path)
    left = put(tmp_path, staged.replace("part-0", "part-9"), b"of a dead task")

    assert verdict(job).orphans == (left.path,)


def test_G4_what_a_running_job_lets_go_while_it_is_read_is_not_missed(tmp_path):
    """The job condemns checkpoint 1, and deletes its layer, between two files."""
    job = tmp_path / "orders"
    one, two = layer_in(job, "a", b"1" * 10), layer_in(job, "b", b"2" * 10)
    bodies = [GONE, taken(1, None, one), taken(2, 1, two)]
    write_log(tmp_path, *bodies)

    def goes_on(done, total):
        if done == 0:
            three = taken(3, 2, two, condemned=(1,), condemned_files=(one.files[0].path,))
            write_log(tmp_path, *bodies, three)
            (job / one.files[0].path).unlink(missing_ok=True)

    found = verdict(job, progress=goes_on)

    assert found.is_sound
    assert found.sound == (2, 3)


def test_a_layer_that_is_gone_and_still_needed_is_missed_however_much_the_log_moves(tmp_path):
    job = tmp_path / "orders"
    one = layer_in(job, "a", b"1")
    bodies = [GONE, taken(1, None, one)]
    write_log(tmp_path, *bodies)

    def goes_on(done, total):
        write_log(tmp_path, *bodies, taken(2, 1, one))
        (job / one.files[0].path).unlink(missing_ok=True)

    found = verdict(job, progress=goes_on)

    assert found.broken[0].checkpoints == (1, 2)


def test_discarded_output_needs_no_files(tmp_path):
    job = tmp_path / "orders"
    item = staged_in(job, 2)
    write_log(
        tmp_path,
        GONE,
        taken(1, None),
        taken(2, 1, open=(item,)),
        Rewind(to=1, left=2, at=NOON, discard=(item,), condemned=(2,)),
    )
    (job / item.files[0].path).unlink()

    assert verdict(job).is_sound


def test_an_empty_start_is_sound(tmp_path):
    job = write_log(tmp_path, GONE, Stopped(checkpoint=None, at=NOON))

    assert lines(job)[1].splitlines()[1] == "can be restored: none; the next start begins empty"


# ------------------------------------------------------------------------------------------------------ received rows


def received_job(tmp_path, *blocks):
    """A job with a checkpoint of received rows at the second block of generation 0, and these blocks."""
    position = ReceivedPosition(log_id="log-1", uid="in", next=BlockId(0, 1), sealed=0).encode()
    task = TaskSnapshot(task="in", position=position)
    write_log(tmp_path, CLAIM, manifest(1, tasks=(task,)), pin("keep", 1))
    for number, data in blocks:
        put(tmp_path / "orders", paths.block("in", BlockId(0, number)), data)
    return tmp_path / "orders"


ROWS = encode_block(pa.table({"id": [1, 2]}))


def test_blocks_that_a_start_reads_are_checked_and_those_before_them_are_not(tmp_path):
    job = received_job(tmp_path, (0, b"old and broken"), (1, ROWS), (2, ROWS), (3, SEAL))

    assert verdict(job).is_sound


def test_a_damaged_block_is_found_with_the_checkpoints_that_read_it(tmp_path):
    job = received_job(tmp_path, (1, ROWS), (2, ROWS[:-1]))

    (each,) = verdict(job).broken
    assert (each.path, each.fault) == (paths.block("in", BlockId(0, 2)), Fault.CONTENT)
    assert (each.checkpoints, each.savepoints) == ((1,), ("keep",))
    assert verdict(job, quick=True).is_sound
    assert "penstock skip orders BLOCK" in lines(job)[1]


def test_keys_of_requests_are_checked_in_blocks_and_in_files_of_their_own(tmp_path):
    keys = [RequestKey("a", "1f", 2, 0, 7)]
    file = with_keys(b"penstock keys/1\n", keys, BlockId(0, 1))
    job = received_job(tmp_path, (1, with_keys(ROWS, keys)), (2, with_keys(ROWS, keys)[:-1] + b"?"))
    for number, content in ((0, file), (1, file[:-1])):
        (job / paths.key_file("in", BlockId(0, number))).write_bytes(content)

    assert broken(job) == [
        (paths.key_file("in", BlockId(0, 1)), Fault.CONTENT),
        (paths.block("in", BlockId(0, 2)), Fault.CONTENT),
    ]
    assert verdict(job, quick=True).is_sound


def test_a_block_that_is_not_there_is_found_by_a_quick_look_too(tmp_path):
    job = received_job(tmp_path, (1, ROWS), (3, SEAL))

    assert broken(job, quick=True) == [(paths.block("in", BlockId(0, 2)), Fault.MISSING)]
