"""A traceback of the user's own mistake has the user's lines and one of penstock's; the whole of it can be had."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest

import penstock as ps
from penstock.errors import EngineFailed, PenstockError, UserFunctionError
from penstock.user_code import PACKAGE, short_path, short_tracebacks

SPARK = """
def fail():
    raise ValueError("[UNRESOLVED] a plan of fifty lines")
"""
OURS = """
def analyse(fail, explained):
    try:
        fail()
    except ValueError as error:
        raise explained from error
"""


def frames(error: BaseException) -> list[str]:
    """The file and function of each frame that Python would print, those of a shown cause first."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    names = [f"{frame.filename.rpartition('/')[2]}:{frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
    return [*(frames(cause) if cause is not None else []), *names]


def caught(function, *arguments, **options) -> BaseException:
    with pytest.raises(PenstockError) as raised:
        function(*arguments, **options)
    return raised.value


def analyse(explained):
    """Explain a failure in Spark's code, raised and explained without a line of the user's."""
    names: dict[str, Callable[..., None]] = {}
    exec(compile(SPARK, "/lib/python3/site-packages/pyspark/sql/frame.py", "exec"), names)
    exec(compile(OURS, f"{PACKAGE}compiler/made.py", "exec"), names)
    return short_tracebacks(names["analyse"])(names["fail"], explained)


def test_a_function_of_a_pipeline_that_raises_shows_its_own_line_and_the_call_of_the_job(tmp_path):
    @ps.pipeline("orders")
    def orders(p: ps.Pipeline) -> None:
        _ = 1 / 0

    error = caught(ps.Job, orders, state=tmp_path)

    here = "test_user_code.py"
    assert frames(error) == [f"{here}:orders", f"{here}:caught", "user_code.py:short"]
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert "in _call\n" in error.full_traceback()
    assert "ZeroDivisionError: division by zero" in error.full_traceback()


def test_a_mistake_in_a_step_is_shown_where_the_step_is_made(tmp_path):
    @ps.pipeline("orders")
    def orders(p: ps.Pipeline) -> None:
        p.read("n", ps.rate.Source(rows_per_second=1)).select()

    error = caught(ps.Job, orders, state=tmp_path)

    here = "test_user_code.py"
    assert frames(error) == [f"{here}:caught", "user_code.py:short", f"{here}:orders"]
    assert "in check_columns\n" in error.full_traceback()


def test_a_cause_that_has_no_line_of_the_users_is_not_shown_but_kept():
    error = caught(analyse, UserFunctionError("shop.py:3: there is no column 'amout'"))

    assert error.__cause__ is None
    assert error.__suppress_context__
    assert isinstance(error.__context__, ValueError)
    assert "a plan of fifty lines" not in "".join(traceback.format_exception(error))
    assert "a plan of fifty lines" in error.full_traceback()
    assert 'pyspark/sql/frame.py", line 3, in fail' in error.full_traceback()


def test_a_failure_that_is_not_the_users_keeps_every_frame_and_cause():
    error = caught(analyse, EngineFailed("a Spark job failed"))

    assert "frame.py:fail" in frames(error)


def test_each_wait_for_a_failed_job_shows_the_same_few_frames(tmp_path):
    @ps.pipeline("orders")
    def orders(p: ps.Pipeline) -> None:
        p.read("n", ps.rate.Source(rows_per_second=1)).write("out", ps.memory.Sink("x"))

    job = ps.Job(orders, state=tmp_path, restore_from="no-such-savepoint")
    job.start()

    first = caught(job.wait)
    once = frames(first)
    again = frames(caught(job.wait))

    assert once == again == ["test_user_code.py:caught", "user_code.py:short"]
    assert "in decide_start\n" in first.full_traceback(), "what happened on the thread of the job"
    assert str(first) in repr(job)


def test_what_the_user_was_handling_when_it_happened_is_still_shown_as_such(tmp_path):
    @ps.pipeline("orders")
    def orders(p: ps.Pipeline) -> None:
        p.read("n", ps.rate.Source(rows_per_second=1)).select()

    def handling() -> None:
        try:
            {}["key"]
        except KeyError:
            ps.Job(orders, state=tmp_path)

    error = caught(handling)

    assert isinstance(error.__context__, KeyError)
    assert error.__cause__ is None
    assert not error.__suppress_context__


def test_errors_of_the_user_in_a_recursion_are_shown_as_python_does(tmp_path):
    @ps.pipeline("orders")
    def orders(p: ps.Pipeline) -> None:
        orders.function(p)

    error = caught(ps.Job, orders, state=tmp_path)

    assert isinstance(error.__cause__, RecursionError)


def test_a_path_below_the_current_folder_is_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert short_path(str(tmp_path / "shop.py")) == "shop.py"
    assert short_path("/else/shop.py") == "/else/shop.py"
