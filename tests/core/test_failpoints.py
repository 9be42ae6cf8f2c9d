"""Failpoints: declared names only, no-ops until armed, in this process and by the environment of another."""

import errno
import os
import subprocess
import sys
import threading

import pytest

from penstock import failpoints
from penstock.errors import InternalError, SettingsError
from penstock.failpoints import FAILPOINTS, FailpointCrash, arm, armed, disarm, failpoint, load, record_to

PLACE = "log.claim.before"


@pytest.fixture(autouse=True)
def nothing_armed():
    yield
    disarm()
    record_to(None)


def test_a_place_does_nothing_until_it_is_armed():
    for name in FAILPOINTS:
        failpoint(name)


def test_every_place_is_declared_with_a_sentence():
    assert all(sentence and not sentence.endswith(".") for sentence in FAILPOINTS.values())
    with pytest.raises(TypeError):
        FAILPOINTS["new"] = "x"


def test_an_undeclared_place_is_a_bug_armed_or_not():
    with pytest.raises(InternalError, match=r"Failpoint 'nowhere' is not declared"):
        failpoint("nowhere")


def test_every_hit_acts_without_a_number_and_one_hit_with_it():
    with armed(PLACE, "raise"):
        for _ in range(2):
            with pytest.raises(FailpointCrash):
                failpoint(PLACE)
    failpoint(PLACE)
    with armed(PLACE, "raise", hit=2):
        failpoint(PLACE)
        with pytest.raises(FailpointCrash, match=PLACE):
            failpoint(PLACE)
        failpoint(PLACE)


def test_hits_are_counted_from_the_arming():
    arm("log.trim.before", "raise")
    failpoint(PLACE)
    arm(PLACE, "raise", hit=1)

    with pytest.raises(FailpointCrash):
        failpoint(PLACE)


def test_a_crash_is_not_caught_as_an_error():
    assert not issubclass(FailpointCrash, Exception)


@pytest.mark.parametrize("name", ["ENOSPC", "EIO", "EROFS"])
def test_an_operating_systems_error_is_raised_by_name(name):
    with armed(PLACE, f"error:{name}"), pytest.raises(OSError, match=PLACE) as raised:
        failpoint(PLACE)
    assert raised.value.errno == getattr(errno, name)


def test_a_pause_lasts_until_its_file_is_gone(tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    passed = threading.Event()
    with armed(PLACE, f"pause:{gate}"):
        thread = threading.Thread(target=lambda: (failpoint(PLACE), passed.set()))
        thread.start()
        assert not passed.wait(0.05)
        gate.unlink()
        assert passed.wait(10)
        thread.join()


def test_recording_appends_the_name_of_each_hit(tmp_path):
    record_to(tmp_path / "hits")
    failpoint(PLACE)
    failpoint("log.trim.before")
    failpoint(PLACE)
    record_to(None)
    failpoint(PLACE)

    assert (tmp_path / "hits").read_text().split() == [PLACE, "log.trim.before", PLACE]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PLACE, "is not name=action"),
        (f"{PLACE}=raise@x", "is not name=action"),
        (f"{PLACE}=raise@0", "cannot act at hit 0. Hits count from 1"),
        (f"{PLACE}=explode", "has no action 'explode'. Use kill, killpg, raise, pause:FILE or error:ERRNO"),
        (f"{PLACE}=error:EVERYTHING", "has no action"),
        (f"{PLACE}=error:PATH", "has no action"),
        (f"{PLACE}=pause", "has no action"),
        (f"{PLACE}=kill:now", "has no action"),
        ("sink.publish=kill", "Failpoint 'sink.publish' does not exist. Did you mean 'sink.published'?"),
        ("nowhere=raise", "Failpoint 'nowhere' does not exist. Failpoints: checkpoint.manifest.before, "),
    ],
)
def test_what_cannot_be_understood_is_refused(text, message):
    with pytest.raises(SettingsError, match=message):
        load({"PENSTOCK_FAILPOINTS": text})


def test_the_environment_arms_several_places_and_records(tmp_path):
    hits = str(tmp_path / "hits")
    load({"PENSTOCK_FAILPOINTS": f" {PLACE} = raise @2 ; log.trim.before=raise;", "PENSTOCK_FAILPOINTS_RECORD": hits})

    failpoint(PLACE)
    for name in (PLACE, "log.trim.before"):
        with pytest.raises(FailpointCrash):
            failpoint(name)


def test_disarming_one_place_leaves_the_others():
    arm(PLACE, "raise")
    arm("log.trim.before", "raise")
    disarm(PLACE)

    failpoint(PLACE)
    with pytest.raises(FailpointCrash):
        failpoint("log.trim.before")


@pytest.mark.parametrize("action", ["kill", "killpg"])
def test_a_process_is_killed_where_its_environment_says(action):
    code = (
        f"from penstock.failpoints import failpoint\nfailpoint({PLACE!r})\nprint(1, flush=True)\nfailpoint({PLACE!r})"
    )
    environment = os.environ | {"PENSTOCK_FAILPOINTS": f"{PLACE}={action}@2"}

    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, start_new_session=True, check=False
    )

    assert (done.returncode, done.stdout) == (-9, b"1\n")


def test_nothing_is_active_when_nothing_is_armed():
    assert not failpoints._active
    arm(PLACE, "raise")
    assert failpoints._active
    disarm(PLACE)
    assert not failpoints._active
