"""Real processes and threads race for one log on a local disk: one owner at a time, no entry lost or shared."""

import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from core.checkpoint_values import CLAIM, log_on, manifest, pin
from penstock.errors import GenerationFenced
from penstock.filesystem.local import LocalFileSystem

ROUNDS = 8


def race(root, name, gate, results):
    """Claim whenever possible, append until fenced; tell which entries counted."""
    log, _ = log_on(LocalFileSystem(root), ids=name)
    owned = []
    for _ in range(ROUNDS):
        gate.wait(30)
        try:
            owner = log.claim(replace(CLAIM, host=name), take_over=False)
        except GenerationFenced:
            owned.append(None)
            continue
        numbers = [owner.generation]
        try:
            numbers += [owner.append(pin(f"{name}-{count}", 1)) for count in range(3)]
        except GenerationFenced:
            numbers.append(None)
        owned.append(tuple(numbers))
    results.put((name, owned))


def check(root, results):
    """Every number counted for at most one, whoever was not fenced has an unbroken run, and the log holds it all."""
    log, _ = log_on(LocalFileSystem(root))
    found = log.read()
    counted = [
        number for _, owned in results for numbers in owned if numbers for number in numbers if number is not None
    ]
    assert len(counted) == len(set(counted))
    assert set(counted) <= {entry.number for entry in found.entries}
    assert [entry.number for entry in found.entries] == list(range(found.tail + 1))
    assert any(numbers for _, owned in results for numbers in owned)
    for name, owned in results:
        for numbers in filter(None, owned):
            assert {found.entries[number].token.partition("-")[0] for number in numbers if number is not None} == {name}


@pytest.mark.mission("S3")
def test_two_processes_racing_for_claims_never_own_the_same_number(tmp_path):
    """L1, L4, L5, L9 across processes: link and listing of a real disk."""
    context = multiprocessing.get_context("spawn")
    gate, results = context.Barrier(2), context.Queue()
    racers = [context.Process(target=race, args=(str(tmp_path), name, gate, results)) for name in ("a", "b")]
    for racer in racers:
        racer.start()
    told = [results.get(timeout=60) for _ in racers]
    for racer in racers:
        racer.join(30)
        assert racer.exitcode == 0

    check(tmp_path, told)


def test_many_threads_racing_for_claims_never_own_the_same_number(tmp_path):
    import queue

    gate, results = threading.Barrier(6), queue.Queue()
    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(race, tmp_path, f"t{number}", gate, results) for number in range(6)]:
            done.result()

    check(tmp_path, [results.get_nowait() for _ in range(6)])


def test_one_owner_may_append_from_several_threads(tmp_path):
    log, _ = log_on(LocalFileSystem(tmp_path))
    owner = log.claim(CLAIM)
    owner.append(manifest(1))

    with ThreadPoolExecutor(4) as pool:
        numbers = list(pool.map(lambda count: owner.append(pin(f"p{count}", 1)), range(20)))

    assert sorted(numbers) == list(range(2, 22))
    assert log.read() == owner.history
