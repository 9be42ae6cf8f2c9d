"""Spark's configuration: what the command line, the environment and ``[tool.penstock]`` say, and which counts."""

from __future__ import annotations

import io
import json
import shlex
import sys
import zipfile
from pathlib import Path

import pytest

from core.cli_kit import say
from core.plan_kit import SHOP, story, write_log
from page_kit import blocks, command_lines
from penstock.admin.doctor import configuration_of
from penstock.admin.doctor_checks import Status
from penstock.cli.output import Output, UsageError
from penstock.cli.project_file import KEYS, find_project
from penstock.cli.run import RunCommand
from penstock.cli.spark_options import SparkOptions, note_ignored
from penstock.errors import SettingsError
from penstock.job.start import FROM_LATEST
from penstock.spark import session
from penstock.spark.configuration import SQL_SETTINGS, read_configuration
from penstock.spark.session import _own_settings


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, made the current one; what a command puts into the environment is taken back."""
    for name in ("PYSPARK_SUBMIT_ARGS", "PENSTOCK_MASTER", "PENSTOCK_RETAINED"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "no-conf"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def project(home: Path, text: str) -> Path:
    path = home / "pyproject.toml"
    path.write_text(f"[project]\nname = 'shop'\n\n[tool.penstock]\n{text}")
    return path


def settings(**options: object) -> dict[str, str]:
    return SparkOptions(**options).read().settings  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------- which place counts


def test_the_command_line_counts_more_than_the_environment_that_more_than_the_file_and_that_more_than_sparks_defaults(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "no-conf").mkdir()
    names = [f"spark.executorEnv.{each}" for each in "abcd"]
    (home / "no-conf" / "spark-defaults.conf").write_text("".join(f"{name} defaults\n" for name in names))
    project(home, "conf = {" + ", ".join(f'"{name}" = "file"' for name in names[1:]) + "}")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "".join(f"--conf {name}=environment " for name in names[2:]))
    found = SparkOptions(conf=(f"{names[3]}=option",)).read()
    assert [found.settings[name] for name in names] == ["defaults", "file", "environment", "option"]
    assert [found.origins[name].rpartition("/")[2] for name in names] == [
        "spark-defaults.conf",
        "pyproject.toml",
        "PYSPARK_SUBMIT_ARGS",
        "command line",
    ]


def test_a_master_and_the_drivers_memory_are_of_one_place_however_they_are_written(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project(home, 'master = "local[1]"\ndriver-memory = "1g"\npackages = ["a:b:1"]\n')
    assert settings() == {"spark.master": "local[1]", "spark.driver.memory": "1g", "spark.jars.packages": "a:b:1"}
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master local[2] --driver-memory 2g --packages=c:d:2 pyspark-shell")
    assert settings() == {"spark.master": "local[2]", "spark.driver.memory": "2g", "spark.jars.packages": "c:d:2"}
    monkeypatch.setenv("PENSTOCK_MASTER", "local[3]")
    assert settings()["spark.master"] == "local[3]"
    given = settings(master="local[4]", conf=("spark.driver.memory=4g",), packages=("e:f:4,g:h:5", "i:j:6"))
    assert given == {
        "spark.master": "local[4]",
        "spark.driver.memory": "4g",
        "spark.jars.packages": "e:f:4,g:h:5,i:j:6",
    }


def test_a_process_below_reads_the_same_from_its_environment(home: Path) -> None:
    project(home, 'conf."spark.executorEnv.A" = "b c"\nmaster = "local[2]"\n')
    options = SparkOptions(conf=("spark.driver.extraJavaOptions=-Da='x y' -Db=c",), driver_memory="2g")
    environment = options.use().to_environment()
    assert environment["PENSTOCK_MASTER"] == "local[2]"
    assert read_configuration(environment).settings == options.read().settings
    assert environment["PYSPARK_SUBMIT_ARGS"].endswith("pyspark-shell")


def test_without_options_the_environment_stays_as_it_is(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--verbose pyspark-shell")
    SparkOptions().use()
    assert __import__("os").environ["PYSPARK_SUBMIT_ARGS"] == "--verbose pyspark-shell"


def test_words_of_spark_submit_that_are_no_settings_stay(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--verbose --proxy-user ann --jars a.jar pyspark-shell")
    found = SparkOptions(driver_memory="2g").use().to_environment()["PYSPARK_SUBMIT_ARGS"]
    assert found == "--conf spark.jars=a.jar --conf spark.driver.memory=2g --verbose --proxy-user ann pyspark-shell"


def test_the_process_of_the_job_gets_the_options_of_its_parent(home: Path) -> None:
    conf = ("spark.a=b", "spark.c=d")
    options = SparkOptions(master="local[2]", conf=conf, packages=("a:b:1",), driver_memory="2g")
    command = RunCommand(pipeline="shop:orders", state="s", start=FROM_LATEST, spark=options)
    words = command.child_command(begins=True, take_over=False, traceback=False)
    assert words[words.index("--master") :] == (
        [
            "--master",
            "local[2]",
            "--conf",
            "spark.a=b",
            "--conf",
            "spark.c=d",
            "--packages",
            "a:b:1",
            "--driver-memory",
            "2g",
        ]
    )


# --------------------------------------------------------------------------------------- what a session is made with


def test_executors_of_other_machines_are_not_told_that_the_driver_is_on_theirs() -> None:
    assert _own_settings("shop", "local[2]", {})["spark.driver.host"] == "127.0.0.1"
    assert not {"spark.driver.host", "spark.driver.bindAddress"} & _own_settings("shop", "spark://far:7077", {}).keys()


def test_what_is_configured_counts_more_than_our_defaults_but_not_than_what_state_relies_on() -> None:
    configured = {"spark.locality.wait": "1s", "spark.driver.host": "10.0.0.1", "spark.sql.adaptive.enabled": "true"}
    ours = _own_settings("shop", "local[2]", configured)
    assert not {"spark.locality.wait", "spark.driver.host"} & ours.keys()
    assert ours["spark.sql.adaptive.enabled"] == "false"


def test_a_cluster_on_this_machine_has_as_many_partitions_as_its_executors_have_cores() -> None:
    ours = _own_settings("shop", "local-cluster[2, 3, 1024]", {})
    assert (ours["spark.default.parallelism"], ours["spark.sql.shuffle.partitions"]) == ("6", "6")


class Context:
    """A context whose executors come one by one, each with two cores, as far as it is asked."""

    def __init__(self, executors: list[int]) -> None:
        self.left, self.now, self.kept = executors, 0, {}
        self._jsc = self._conf = self

    def sc(self) -> Context:
        return self

    def getExecutorMemoryStatus(self) -> Context:
        self.now = self.left.pop(0) if self.left else self.now
        return self

    def size(self) -> int:
        return 1 + self.now

    @property
    def defaultParallelism(self) -> int:
        return max(2, 2 * self.now)

    def set(self, name: str, value: str) -> None:
        self.kept[name] = value


@pytest.mark.parametrize(
    ("executors", "partitions", "said"),
    [([0, 0, 0, 1, 1, 3], "6", 0), ([4], "8", 0), ([], "2", 1)],
    ids=["one by one", "at once", "none"],
)
def test_state_has_a_partition_for_each_core_that_has_come_and_a_start_without_any_is_told(
    executors: list[int], partitions: str, said: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(session, "EXECUTOR_PAUSE", 0.0)
    context = Context(executors)
    session._keep_parallelism(context, "spark://host:7077")  # type: ignore[arg-type]
    assert context.kept == {"spark.default.parallelism": partitions}
    assert [record.getMessage().partition(" in ")[0] for record in caplog.records] == (
        ["No executor of spark://host:7077 came"] * said
    )


class Session:
    """A session that the pipeline's module has made, as far as it is asked."""

    _jsparkSession = None

    def __init__(self, **settings: str) -> None:
        self.settings = settings
        self.sparkContext = self

    def getConf(self) -> Session:
        return self

    def get(self, name: str, otherwise: str | None) -> str | None:
        return self.settings.get(name.replace(".", "_"), otherwise)


def test_options_that_come_too_late_for_a_session_are_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = Session(spark_master="local[2]", spark_driver_memory="1g")
    monkeypatch.setattr("penstock.spark.session.current_session", lambda: there)
    err = io.StringIO()
    note_ignored(SparkOptions(master="local[2]", driver_memory="2g", conf=("spark.a=b",)).read(), Output(err=err))
    assert " ".join(err.getvalue().split()).startswith(
        "penstock: a Spark session runs already, made by the pipeline's module, without spark.a=b, "
        "spark.driver.memory=2g: "
    )
    err = io.StringIO()
    note_ignored(SparkOptions(master="local[2]").read(), Output(err=err))
    assert err.getvalue() == ""


# ------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"conf": ("spark.sql.adaptive.enabled=true",)}, "always false in penstock, for layers of state are put"),
        ({"conf": ("spark.sql.shuffle.partitions=7",)}, "Set spark.default.parallelism instead"),
        ({"conf": ("spark.master=local[2]",)}, "Write 'penstock run … --master M'"),
        ({"conf": ("spark.submit.deployMode=cluster",)}, "only client works"),
        ({"conf": ("spark.remote=sc://x",)}, "Spark Connect gives no access"),
        ({"conf": ("spark.api.mode=connect",)}, "Spark Connect gives no access"),
        ({"conf": ("executor.memory=2g",)}, "Write for example spark.executor.memory"),
        ({"conf": ("spark.executor.memory",)}, "Write it as KEY=VALUE"),
        ({"driver_memory": "2048"}, "whole number with its unit"),
        ({"driver_memory": "2g", "conf": ("spark.driver.memory=3g",)}, "contradict each other"),
        ({"packages": ("spark-avro",)}, "GROUP:ARTIFACT:VERSION"),
        ({"py_files": ("gone.zip",)}, "There is no such file"),
        ({"py_files": ("folder",)}, "is a folder. Zip what is in it."),
        ({"py_files": ("wheel.whl",)}, "is none of .py, .zip and .egg"),
        ({"master": "nonsense"}, "Spark has no master"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_spark_or_penstock_would_not_follow_is_refused_with_the_reason(
    home: Path, options: dict[str, object], reason: str
) -> None:
    (home / "folder").mkdir()
    with pytest.raises((UsageError, SettingsError)) as error:
        settings(**options)
    assert reason in str(error.value)


def test_a_file_of_a_near_name_is_offered(home: Path) -> None:
    (home / "shop.zip").write_bytes(b"")
    with pytest.raises(UsageError, match=r"Did you mean 'shop\.zip'\?"):
        settings(py_files=("shopp.zip",))


def test_what_penstock_sets_itself_may_be_said_again(home: Path) -> None:
    given = tuple(f"{name}={value}" for name, value in SQL_SETTINGS.items())
    assert settings(conf=given) == SQL_SETTINGS


def test_a_refused_setting_of_the_file_is_told_with_the_files_name(home: Path) -> None:
    path = project(home, 'conf = {"spark.sql.adaptive.enabled" = true}')
    with pytest.raises(SettingsError) as error:
        settings()
    assert str(error.value).startswith(f"{path}: [tool.penstock] conf spark.sql.adaptive.enabled=true: It is always")


def test_run_refuses_before_it_starts_a_process(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cli.run.ChildWatcher", None)
    said = say("run", "shop:orders", "--conf", "spark.sql.shuffle.partitions=7")
    assert said.code == 64
    assert "Set spark.default.parallelism instead" in said.err


# ------------------------------------------------------------------------------------------- [tool.penstock]


def test_the_file_is_that_of_the_nearest_folder_that_has_the_section(home: Path) -> None:
    path = project(home, 'master = "local[1]"\n')
    (home / "a" / "b").mkdir(parents=True)
    (home / "a" / "pyproject.toml").write_text("[project]\nname = 'another'\n")
    found = find_project(home / "a" / "b")
    assert found is not None
    assert (found.path, found.keys) == (path, ["master"])
    assert find_project(Path("/")) is None


def test_parts_of_a_setting_need_no_quotes(home: Path) -> None:
    project(home, "[tool.penstock.conf]\nspark.executorEnv.A = 1\nspark.ui.enabled = true\n")
    assert settings() == {"spark.executorEnv.A": "1", "spark.ui.enabled": "true"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("py_files = []", "has an unknown key 'py_files'. Did you mean 'py-files'?"),
        ("colour = 1", f"has an unknown key 'colour'. The keys are {', '.join(sorted(KEYS))}"),
        ("master = 1", "master of [tool.penstock] is 1, but must be a text"),
        ('retained = "3"', "retained of [tool.penstock] is '3', but must be a whole number"),
        ('packages = "a:b:c"', "but must be a list of texts"),
        ('conf = "spark.a=b"', "but must be a table"),
        ('conf = {"spark.a" = [1]}', "spark.a of [tool.penstock] conf is [1]"),
        ("master = ", "cannot be read: "),
    ],
)
def test_what_it_cannot_mean_is_refused_by_every_command_with_the_files_name(home: Path, text: str, said: str) -> None:
    path = project(home, text)
    answer = say("list")
    assert answer.code == 64
    assert str(path) in answer.err
    assert said in " ".join(answer.err.split())


def test_help_and_version_need_no_file(home: Path) -> None:
    project(home, "colour = 1")
    assert say("--version").code == say("run", "--help").code == 0


def test_the_state_folder_is_that_of_the_file_also_in_a_folder_below(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project(home, 'state = "there"\n')
    write_log(home / "there", story())
    (home / "below").mkdir()
    monkeypatch.chdir(home / "below")
    assert json.loads(say("list", "--json").out)["jobs"][0]["job"] == "orders"
    assert json.loads(say("list", "--json", "--state", "elsewhere").out)["jobs"] == []


def test_a_setting_of_a_job_counts_less_than_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project(home, "retained = 0\n")
    (home / "file_shop.py").write_text(SHOP)
    refused = say("plan", "file_shop:orders", "--no-schemas")
    assert refused.code == 64
    assert "retained is 0, but must be a whole number" in refused.err
    assert say("plan", "file_shop:orders", "--no-schemas", "--retained", "2").code == 2
    monkeypatch.setenv("PENSTOCK_RETAINED", "4")
    assert say("plan", "file_shop:orders", "--no-schemas").code == 2


def test_a_pipeline_may_be_in_a_zip_that_the_file_names_from_its_own_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "dist").mkdir()
    with zipfile.ZipFile(home / "dist" / "shop.zip", "w") as archive:
        archive.writestr("zipped_shop.py", SHOP)
    project(home, 'py-files = ["dist/shop.zip"]\n')
    (home / "below").mkdir()
    monkeypatch.chdir(home / "below")
    assert settings()["spark.submit.pyFiles"] == str(home / "dist" / "shop.zip")
    assert say("plan", "zipped_shop:orders", "--no-schemas").code == 2
    sys.modules.pop("zipped_shop")


def test_the_page_shows_a_section_and_command_lines_that_are_taken(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (toml,) = blocks("clusters.md", "toml")
    (home / "pyproject.toml").write_text(toml)
    (home / "dist").mkdir()
    for name in ("dist/shop.zip", "shop.py"):
        (home / name).write_bytes(b"")
    found = find_project(home)
    assert found is not None
    assert sorted(found.keys) == ["checkpoint-every", "conf", "driver-memory", "master", "py-files", "state"]
    assert settings()["spark.executor.cores"] == "2"
    commands: list[RunCommand] = []
    monkeypatch.setattr("penstock.cli.run.run_as_parent", lambda command, _output: commands.append(command) or 0)
    lines = command_lines("clusters.md")
    assert [say(*shlex.split(line)[1:]).code for line in lines] == [0, 0]
    assert {command.state for command in commands} == {"state"}
    masters = [command.spark.read().settings["spark.master"] for command in commands]
    assert masters == ["spark://host:7077", "spark://host:7077"]


# ---------------------------------------------------------------------------------------------------------- doctor


def test_doctor_says_what_it_found_where_and_no_secret(home: Path) -> None:
    path = project(home, 'master = "local[2]"\nstate = "there"\nconf = {"spark.hadoop.fs.s3a.secret.key" = "abc"}\n')
    said = say("doctor", "--no-spark", "--driver-memory", "2g", "--json")
    (found,) = [each for each in json.loads(said.out)["findings"] if each["name"] == "configuration"]
    assert found["verdict"] == "ok"
    assert found["message"] == (
        "master local[2] (pyproject.toml); spark.hadoop.fs.s3a.secret.key=(hidden) (pyproject.toml); "
        f"spark.driver.memory=2g (command line); {path} has state, master, conf"
    )


def test_doctor_warns_of_what_the_environment_says_in_vain(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf spark.sql.adaptive.enabled=true pyspark-shell")
    found = configuration_of(read_configuration(), None)
    assert found.status is Status.WARN
    assert str(found.fix).startswith("leave out spark.sql.adaptive.enabled: ")
