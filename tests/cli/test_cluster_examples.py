"""The jobs under examples/ parse, and training knows every flag that they give."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from fastsft.arguments import DataArguments, ModelArguments, TrainingArguments
from fastsft.arguments.parsing.parser import DataclassParser

EXAMPLES = Path(__file__).parents[2] / "examples"
KINDS = (ModelArguments, DataArguments, TrainingArguments)


def flags_of(command: str) -> list[str]:
    """The words after the module's name."""
    words = shlex.split(command.replace("\\\n", " "))
    return words[words.index("fastsft.train") + 1 :]


def command_of(name: str) -> list[str]:
    yaml = pytest.importorskip("yaml")
    text = (EXAMPLES / name).read_text()
    if name.startswith("slurm"):
        return flags_of(text[text.index("srun --kill") : text.index("\nstatus=")])
    content = yaml.safe_load(text)
    if name.startswith("skypilot"):
        assert content["num_nodes"] == 1 and re.fullmatch(r"\w+:\d+", content["resources"]["accelerators"])
        return flags_of(content["run"])
    pod = content["spec"]["template"]["spec"]
    box = pod["containers"][0]
    assert {mount["name"] for mount in box["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    return box["args"][box["args"].index("fastsft.train") + 1 :]


@pytest.mark.parametrize("name", ["slurm/train.sbatch", "skypilot/train.yaml", "kubernetes/train.yaml"])
def test_flags_are_known(name: str) -> None:
    flags = command_of(name)
    assert "--use_cpu" not in flags
    model, data, training = DataclassParser(KINDS).parse_args_into_dataclasses([*flags, "--use_cpu", "True"])
    assert model.model_name_or_path == "model" and data.data_path == "conversations.json"
    assert training.save_steps == 500 and training.bf16 is True


def test_the_batch_script_is_bash() -> None:
    script = EXAMPLES / "slurm" / "train.sbatch"
    subprocess.run(["bash", "-n", str(script)], check=True)
    options = [line for line in script.read_text().splitlines() if line.startswith("#SBATCH")]
    assert all(re.fullmatch(r"#SBATCH --[a-z-]+(=\S+)?", line) for line in options) and len(options) > 5
