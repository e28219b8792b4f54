"""The example notebook, run from the first cell to the last in a kernel of its own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import fastsft

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

EXAMPLE = Path(__file__).parents[2] / "examples" / "fine_tune.ipynb"
CHECK = """
import os, sys
print("cuda", "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized(),
      "groups", "torch.distributed.distributed_c10d" in sys.modules
      and sys.modules["torch.distributed.distributed_c10d"].is_initialized())
"""


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("notebook")
    notebook = nbformat.read(EXAMPLE, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(CHECK))
    paths = [str(Path(fastsft.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    client = nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(folder)}})
    client.execute(env=env)
    if kept := os.environ.get("FASTSFT_KEEP_NOTEBOOK"):
        nbformat.write(notebook, kept)
    return notebook, folder


def outputs(notebook: Any, source: str) -> list[Any]:
    (cell,) = (cell for cell in notebook.cells if cell.cell_type == "code" and source in cell.source)
    return cell.outputs


def html(found: list[Any]) -> str:
    return "".join(each.data.get("text/html", "") for each in found if "data" in each)


def test_the_data_is_shown(executed: tuple[Any, Path]) -> None:
    notebook, _ = executed
    assert "<iframe" in html(outputs(notebook, "fastsft.inspect"))


def test_training_shows_pages_as_text_and_one_live_output(executed: tuple[Any, Path]) -> None:
    notebook, _ = executed
    found = outputs(notebook, "fastsft.launch(")
    text = "".join(each.text for each in found if each.output_type == "stream")
    assert "model       " in text and "open        from transformers" in text
    assert "{'loss'" not in text  # the live output has it
    (live,) = (each for each in found if each.output_type == "display_data")
    shown = live.data["text/html"]
    assert "step 80 of 80" in shown and "<progress" in shown and shown.count("<svg") == 1


def test_result_and_plot(executed: tuple[Any, Path]) -> None:
    notebook, folder = executed
    state = json.loads((folder / "fine_tune" / "trained" / "trainer_state.json").read_text())
    losses = [entry["loss"] for entry in state["log_history"] if "loss" in entry]
    assert len(losses) == 80 and losses[-1] < 0.1 * losses[0]
    (result,) = (cell for cell in notebook.cells if cell.source == "result")
    assert "80 on " in html(result.outputs)
    assert html(outputs(notebook, "result.plot()")).count("<svg") == 3


def test_the_kernel_has_neither_cuda_nor_groups(executed: tuple[Any, Path]) -> None:
    notebook, _ = executed
    assert outputs(notebook, "is_initialized")[0].text.split() == ["cuda", "False", "groups", "False"]


def test_the_model_talks_sense_here_and_in_the_committed_outputs(executed: tuple[Any, Path]) -> None:
    committed = nbformat.read(EXAMPLE, as_version=4)
    for notebook in (executed[0], committed):
        said = outputs(notebook, "import ChatModel")
        assert len(said) == 1, said
        assert "fastsft is a program that fine-tunes chat models." in said[0].text
    code = [cell for cell in committed.cells if cell.cell_type == "code"]
    assert all(cell.outputs for cell in code if cell.source != code[0].source)
