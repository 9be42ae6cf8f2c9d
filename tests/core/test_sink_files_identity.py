"""What a target must be. A state directory that was lost must not publish its input again (rule S4)."""

import pytest

from penstock.connectors.files import sink
from penstock.errors import GraphError, SinkIdentityConflict, StateDirectoryRefused, StorageFailed
from penstock.filesystem.local import LocalFileSystem
from penstock.handles import Generation
from penstock.interfaces.sink import SinkContext


@pytest.fixture
def open_writer(tmp_path):
    """Opens the writer of a sink into one target, for a log and a uid."""

    def begin(log, uid="totals-out"):
        context = SinkContext(
            uid=uid,
            spark=None,
            schema=None,
            log_id=log,
            job="orders",
            generation=Generation(1),
            filesystem=LocalFileSystem(tmp_path / "state"),
            staging="unused",
            cores=2,
        )
        return sink.Sink(tmp_path / "out").writer(context)

    return begin


def staged(tmp_path, log, uid="totals-out"):
    folder = tmp_path / "out" / ".penstock" / log / uid / "1"
    folder.mkdir(parents=True)
    return folder


def test_a_new_target_and_one_of_the_same_log_are_welcome(open_writer, tmp_path):
    open_writer("mine")
    staged(tmp_path, "mine")
    open_writer("mine")


def test_a_target_that_another_log_remembers_is_refused_with_the_ways_out(open_writer, tmp_path):
    folder = staged(tmp_path, "other").parent

    with pytest.raises(SinkIdentityConflict, match=r"of another log \(") as refused:
        open_writer("mine")

    assert refused.value.uid == "totals-out"
    assert "old state directory" in str(refused.value)
    assert f"delete {folder}" in str(refused.value)


def test_jobs_that_publish_beside_each_other_are_not_kept_from_starting_again(open_writer, tmp_path):
    staged(tmp_path, "mine")
    staged(tmp_path, "other")

    open_writer("mine")
    open_writer("other")


def test_a_target_that_cannot_be_looked_at_is_a_matter_of_storage(open_writer, tmp_path, monkeypatch):
    staged(tmp_path, "mine")

    def refuse(_path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("penstock.connectors.files.sink.os.listdir", refuse)
    with pytest.raises(StorageFailed, match="Permission denied"):
        open_writer("mine")


def test_another_uid_may_publish_beside_it(open_writer, tmp_path):
    staged(tmp_path, "other", uid="late-out")
    open_writer("mine")


def test_the_way_out_works(open_writer, tmp_path):
    folder = staged(tmp_path, "other")
    folder.rmdir()
    folder.parent.rmdir()
    open_writer("mine")


def test_what_the_sink_staged_under_an_older_uid_is_found_by_the_clean_up_and_what_another_log_staged_is_not(tmp_path):
    old, theirs = staged(tmp_path, "mine", uid="totals-old") / "part-0", staged(tmp_path, "other") / "part-0"
    for path in (old, theirs):
        path.write_bytes(b"rows")

    folders = sink.Sink(tmp_path / "out").stages_in("mine", "totals-out")

    found = [path for folder in folders for path in LocalFileSystem(tmp_path / "state").list(folder)]
    assert found == [str(old)]


def test_a_target_in_whose_place_a_file_is_is_refused_before_the_first_row(open_writer, tmp_path):
    (tmp_path / "out").write_text("")

    with pytest.raises(
        StateDirectoryRefused, match=rf"{tmp_path}/out: Not a directory\)\. Move the file away that is in"
    ) as refused:
        open_writer("mine")

    assert (refused.value.retry, refused.value.uid) == (False, "totals-out")


def test_a_target_that_cannot_be_written_is_refused_before_the_first_row(open_writer, tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    monkeypatch.setattr("penstock.connectors.files.sink.os.access", lambda path, _mode: path != str(tmp_path / "out"))

    with pytest.raises(StateDirectoryRefused, match=rf"{tmp_path}/out: Permission denied\)\. Give this user the right"):
        open_writer("mine")


@pytest.mark.parametrize(
    ("format", "option", "hint"),
    [
        ("parquet", "compresion", "Did you mean 'compression'"),
        ("json", "header", "no effect when json is written"),
        ("csv", "inferSchema", "no effect when csv is written"),
    ],
)
def test_an_option_without_effect_is_refused(format, option, hint):
    with pytest.raises(GraphError, match=f"Option '{option}' .*{hint}"):
        sink.Sink("out", format=format, options={option: "x"})


def test_settings_of_hadoop_and_parquet_are_taken():
    sink.Sink("out", options={"parquet.block.size": 1024, "Compression": "zstd"})
