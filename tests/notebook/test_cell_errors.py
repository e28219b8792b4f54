"""What a cell shows of an error that a user can fix: the cell's line and the words."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import fastsft

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

CELLS = {
    "launch": "import fastsft\nfastsft.launch(data_path='not_there.json', output_dir='out', learning_rat=1)",
    "inspect": "fastsft.inspect('no/model', 'not_there.json')",
    "train": "from fastsft.train import train\ntrain(data_path='no.json', model_name_or_path='no/model')",
}
OWN = """
from fastsft.runtime.interactive import short_in_cells

def of_a_script(record):
    raise ValueError("of the script")

@short_in_cells(ValueError)
def called():
    of_a_script({})

called()
"""


def test_errors_are_short_in_cells(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in (*CELLS.values(), OWN)]
    )
    place = {"metadata": {"path": str(tmp_path)}}
    paths = os.pathsep.join([str(Path(fastsft.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    client = nbclient.NotebookClient(notebook, timeout=120, allow_errors=True, resources=place)
    client.execute(env={**os.environ, "PYTHONPATH": paths})
    shown = {}
    for name, cell in zip((*CELLS, "own"), notebook.cells, strict=True):
        (error,) = [each for each in cell.outputs if each.output_type == "error"]
        shown[name] = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback))
        assert error.ename == "ValueError"
    for name in CELLS:
        files = [line for line in shown[name].splitlines() if line.startswith("File ")]
        assert len(files) == 1 and "interactive.py" in files[0], shown[name]
        assert "During handling" not in shown[name] and "direct cause" not in shown[name]
    assert "of_a_script" in shown["own"] and "ValueError: of the script" in shown["own"]
