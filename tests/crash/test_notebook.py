"""The example notebook runs in a kernel of its own, from the first cell to the last, and shows what it promises."""

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from crash.driver import LIGHT

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"
COLOURS = re.compile(r"\x1b\[[\d;]*m")

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(600)]


def ran(folder):
    """The outputs of each cell of code, by the cell's id, and which number each cell had."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}})
    own = {name: str(folder / name.lower()) for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR")}
    client.execute(env=os.environ | own | {"TMPDIR": str(folder), "SPARK_SUBMIT_OPTS": LIGHT})
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return {cell.id: cell.outputs for cell in cells}, {cell.id: cell.execution_count for cell in cells}


def shown(outputs, kind="text/plain"):
    """What a cell shows as its value."""
    return "".join(each.data.get(kind, "") for each in outputs if each.output_type == "execute_result")


def printed(outputs, name="stdout"):
    """What a cell printed."""
    return "".join(each.text for each in outputs if each.output_type == "stream" and each.name == name)


def test_the_example_notebook_runs_two_jobs_at_once_and_shows_a_mistake_in_a_few_lines(tmp_path_factory):
    cells, numbers = ran(tmp_path_factory.mktemp("nb"))

    assert {name: said for name, outputs in cells.items() if (said := printed(outputs, "stderr"))} == {}
    assert "|48 |user-0|48    |" in printed(cells["look"])
    assert "|47 " not in printed(cells["look"])
    job = shown(cells["watch"], "text/html")
    assert re.search(r"<b>Job large</b> on .*<b>running; \d+ checkpoints.*<td>large-out</td><td>[1-9]", job), job
    report = shown(cells["report"], "text/html")
    assert re.search(r"<b>running; .*<td>totals</td><td>event time 1970-01-01", report), report
    assert re.search(r"(?s)<Job large on .*: stopped; .*<Job totals on .*: stopped; ", shown(cells["stop"]))
    assert "('user-0', '00:00', 420)" in shown(cells["rows"])
    assert re.search(r"<b>stopped; .*continued from checkpoint \d+", shown(cells["go-on"], "text/html"))

    (mistake,) = cells["mistake"]
    place = f"In[{numbers['mistake']}]:3"
    assert mistake.ename == "SchemaMismatch"
    meant = "Column 'amuont' does not exist. Did you mean 'amount'? Columns: id, user, amount, at."
    assert mistake.evalue == f"{place}: where amuont > 40: {meant}"
    lines = COLOURS.sub("", "\n".join(mistake.traceback)).splitlines()
    assert len(lines) <= 20, "\n".join(lines)
    assert not [line for line in lines if "py4j" in line or "site-packages" in line]
    whole = printed(cells["whole"])
    assert "py4j" in whole
    assert mistake.evalue in whole
