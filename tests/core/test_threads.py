"""Workers: in order for each owner, what has begun is waited for, what has not is dropped."""

from __future__ import annotations

import threading

from penstock.runtime.executors import WorkerThreads


def unheard(owner: str, error: BaseException) -> None:
    raise AssertionError(owner) from error


def test_what_has_begun_is_waited_for_and_what_has_not_never_begins():
    workers, begun, go, done = WorkerThreads(unheard), threading.Event(), threading.Event(), []

    def work():
        begun.set()
        go.wait()
        done.append("first")

    workers.submit("clean-up", work)
    workers.submit("clean-up", lambda: done.append("second"))
    begun.wait()
    workers.close()
    workers.submit("other", lambda: done.append("third"))
    assert not workers.join(0.01), "it still runs"
    go.set()
    assert workers.join(60)
    assert done == ["first"]


def test_a_failure_is_told_unless_the_workers_are_closed():
    told, begun, go = [], threading.Event(), threading.Event()
    workers = WorkerThreads(lambda owner, error: told.append((owner, str(error))))

    def fail(said):
        raise OSError(said)

    def fail_late():
        begun.set()
        go.wait()
        fail("late")

    going_on = threading.Event()
    workers.submit("log", lambda: fail("no space"))
    workers.submit("log", going_on.set)
    workers.submit("clean-up", fail_late)
    assert going_on.wait(60), "a failure ends the work, not the worker"
    begun.wait()
    workers.close()
    go.set()
    assert workers.join(60)
    assert told == [("log", "no space")]
