"""The stop button of a notebook: a kernel is interrupted while a cell trains, as its server does it."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import uuid
from pathlib import Path

import pytest

import fastsft
from launched_runs import FLAGS, processes_with

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

CELL = """
import json, fastsft
fastsft.launch(json.loads({flags!r}), num_processes=2, env={{"FASTSFT_TEST_MARK": {mark!r}}})
"""


def wait_for(condition, seconds=90):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


@pytest.mark.chaos
def test_stopping_a_cell(tmp_path: Path) -> None:
    mark, output = uuid.uuid4().hex, tmp_path / "out"
    flags = json.dumps({**FLAGS, "output_dir": str(output), "max_steps": 100_000})
    train = nbformat.v4.new_code_cell(CELL.format(flags=flags, mark=mark))
    train.metadata["tags"] = ["raises-exception"]
    alive = nbformat.v4.new_code_cell("print(6 * 7)")
    notebook = nbformat.v4.new_notebook(cells=[train, alive])
    paths = os.pathsep.join([str(Path(fastsft.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    client = nbclient.NotebookClient(notebook, timeout=120)
    env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    thread = threading.Thread(target=client.execute, kwargs={"env": env})
    thread.start()
    wait_for(lambda: "<polyline" in str(train.get("outputs")))
    assert len(processes_with(mark)) == 2
    os.killpg(os.getpgid(client.km.provisioner.pid), signal.SIGINT)
    thread.join(timeout=90)
    assert not thread.is_alive() and processes_with(mark) == []
    *_, error = train.outputs
    assert error.ename == "KeyboardInterrupt" and "the same call resumes" in error.evalue
    printed = "".join(each.text for each in train.outputs if each.output_type == "stream")
    assert "the same command resumes from it" in printed
    (checkpoint,) = output.glob("checkpoint-*")
    assert (checkpoint / "manifest.json").is_file()
    assert alive.outputs[0].text == "42\n"  # the kernel lives
