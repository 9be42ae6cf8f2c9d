"""Every path below a job's directory, spelled once."""

import pytest

from penstock.checkpoint import paths


def test_each_kind_of_file_has_its_place():
    assert paths.entry(42) == "log/00000000000000000042.json"
    assert paths.state_folder("totals", 7) == "state/totals/7"
    assert paths.staged_folder("out", 7) == "staged/out/7"
    assert paths.wal_folder("socket", 7) == "wal/socket/7"
    assert paths.request("r1") == "control/r1.request.json"
    assert paths.answer("r1") == "control/r1.answer.json"


@pytest.mark.parametrize("path", ["log/42.json", "log/x", "log/00000000000000000042.json.bak", "state/0/1/2"])
def test_what_is_no_entry_has_no_number(path):
    assert paths.entry_number(path) is None


def test_entries_are_found_by_their_name():
    assert paths.entry_number(paths.entry(10**19)) == 10**19


def test_L7_every_layer_and_staged_file_tells_its_generation():
    assert paths.generation_of("state/totals/7/layer/part-0") == 7
    assert paths.generation_of("staged/out/12/3/part-0") == 12
    assert paths.generation_of("wal/socket/7/0") is None
    assert paths.generation_of("state/totals/seven/a") is None


@pytest.mark.parametrize(
    ("path", "ours"),
    [
        ("state/totals/7/layer/part-0.parquet", True),
        ("staged/out/7/3/part-0", True),
        ("wal/socket/7/0", False),
        ("log/00000000000000000000.json", False),
        ("control/r.request.json", False),
        ("/out/_penstock/7/part-0", True),
        ("/out/.penstock-7-3-part-0", True),
        ("s3://lake/out/_penstock/7/part-0", True),
        ("/lake/table/part-0.parquet", False),
        ("/lake/pens/part-0.parquet", False),
        ("state/totals/7/../../../../etc/passwd", False),
        ("/out/_penstock/../table/part-0", False),
    ],
)
def test_G2_only_what_bears_our_folders_or_our_prefix_can_be_condemned(path, ours):
    assert paths.is_ours(path) == ours
