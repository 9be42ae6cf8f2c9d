"""What a start does when the newest checkpoint cannot be read: it stops, and only an operator's act goes past it."""

import pytest

from core.checkpoint_values import CLAIM, STEPS, entries, log_on, manifest
from penstock.checkpoint import paths
from penstock.checkpoint.entry_codec import encode
from penstock.checkpoint.recovery import decide_recovery
from penstock.errors import CheckpointUnreadable
from penstock.filesystem.base import UnknownOutcome
from penstock.testing.filesystem import MemoryFileSystem


def log_of(*bodies):
    filesystem = MemoryFileSystem()
    for entry in entries(*bodies):
        filesystem.create(paths.entry(entry.number), encode(entry))
    return filesystem


def start(filesystem, *, past_unreadable=False, **options):
    """What a job's start does with its log; returns what it restores, and the log under its claim."""
    owned = log_on(filesystem, ids="start")[0].claim(CLAIM, take_over=True, past_unreadable=past_unreadable)
    decided = decide_recovery(owned.history, STEPS, at=9, **options)
    if decided.rewind is not None:
        owned.append(decided.rewind)
    return decided, owned


@pytest.mark.mission("D3")
@pytest.mark.parametrize("left", ["nothing", "a part under another name"])
def test_an_entry_whose_creation_never_completed_does_not_exist(left):
    filesystem = log_of(CLAIM, manifest(1))
    filesystem.delay("create", path="log/*")
    with pytest.raises(UnknownOutcome):
        filesystem.create(paths.entry(2), encode(entries(CLAIM, manifest(1), manifest(2, 1))[2]))
    filesystem.crash()
    if left != "nothing":
        filesystem.corrupt("log/.00000000000000000002.json.x7", b'{"body": {"kind": "checkp')

    decided, owned = start(filesystem)

    assert (decided.restored, decided.next_checkpoint, owned.generation) == (1, 2, 2), "its number is free"


@pytest.mark.mission("D2", "D3")
def test_a_complete_newest_that_cannot_be_read_stops_the_start_which_leaves_everything_as_it_was():
    filesystem = log_of(CLAIM, manifest(1), manifest(2, 1))
    filesystem.corrupt(paths.entry(2), encode(entries(CLAIM)[0])[:-7])
    before = filesystem.files

    for _ in range(2):
        with pytest.raises(CheckpointUnreadable, match=rf"{paths.entry(2)}.*--fresh"):
            start(filesystem)
        with pytest.raises(CheckpointUnreadable):
            start(filesystem, fresh=True)  # what cannot be read is not even gone past to begin anew, unless it is said

    assert filesystem.files == before, "no claim, no fresh start, no second try at the one before it"


@pytest.mark.mission("D2")
@pytest.mark.parametrize("older", [(), (manifest(1),)], ids=["the only one", "with an older one"])
def test_a_fresh_start_past_it_is_an_entry_that_names_what_was_lost_and_later_starts_follow_it(older):
    filesystem = log_of(CLAIM, *older, manifest(2, 1 if older else None))
    lost = 1 + len(older)
    filesystem.corrupt(paths.entry(lost), b"rotten")

    decided, owned = start(filesystem, past_unreadable=True, fresh=True)

    assert (decided.restored, decided.initial) == (None, True)
    assert (decided.rewind.to, decided.rewind.lost) == (None, (lost,))
    assert decided.next_checkpoint > 2, "no id of an entry that nobody can read is used again"
    again, _ = start(filesystem)
    assert (again.restored, again.rewind) == (None, None), "a plain start now, and it says nothing more"
    assert list(owned.history.restorable) == [body.checkpoint for body in older], "what is readable can be rewound to"


def test_a_rewind_to_what_was_lost_later_does_not_keep_an_operator_from_beginning_anew_or_elsewhere():
    filesystem = log_of(CLAIM, manifest(0), manifest(1, 0), manifest(2, 1))
    gone_back, owned = start(filesystem, rewind_to=1)
    assert gone_back.restored == 1
    filesystem.corrupt(paths.entry(2), b"rotten")

    with pytest.raises(CheckpointUnreadable):
        start(filesystem, past_unreadable=True)
    decided, _ = start(filesystem, past_unreadable=True, rewind_to=2)
    assert (decided.restored, decided.rewind.left) == (2, None)
    decided, _ = start(filesystem, past_unreadable=True, fresh=True)
    assert (decided.restored, decided.rewind.to) == (None, None)
    del owned
