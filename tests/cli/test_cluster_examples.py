"""The jobs under examples/ parse, and training knows every flag that they give."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from fastsft.arguments import DataArguments, ModelArguments, TrainingArguments
from fastsft.arguments.parsing.parser import DataclassParser
from fastsft.runtime.versions import TORCH_ISOLATED

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
        subprocess.run(["bash", "-n", "-c", content["setup"] + content["run"]], check=True)
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


WHEEL = r"'(torch==2\.\d+\.\*)' (\S*)/fastsft-\*-cp(\d)(\d+)-\*\.whl"


def test_jobs_install_a_wheel_next_to_one_torch() -> None:
    """The Python of the environment is that of the wheel, and the environment is the one that trains."""
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load((EXAMPLES / "skypilot" / "train.yaml").read_text())
    found = re.search(WHEEL, job["setup"])
    assert found is not None and job["file_mounts"] == {found[2]: "dist"}
    assert f"--python {found[3]}.{found[4]} ~/fastsft" in job["setup"]
    assert job["run"].startswith("source ~/fastsft/bin/activate\n")
    script = (EXAMPLES / "slurm" / "train.sbatch").read_text()
    told = re.search(WHEEL, script)
    assert told is not None and (told[1], told[2]) == (f"torch=={TORCH_ISOLATED}.*", "dist") == (
        found[1],
        "dist",
    )
    assert f"# Once, where all nodes see it: python{told[3]}.{told[4]} -m venv ~/fastsft" in script
    assert script.index('source "${FASTSFT_ENVIRONMENT:-$HOME/fastsft}/bin/activate"') < script.index("srun")


def test_the_pod_runs_the_gpu_image_as_its_user() -> None:
    yaml = pytest.importorskip("yaml")
    pod = yaml.safe_load((EXAMPLES / "kubernetes" / "train.yaml").read_text())["spec"]["template"]["spec"]
    image = (EXAMPLES.parent / "Dockerfile.gpu").read_text()
    user = int(image.split("\nUSER ")[1].split()[0])
    assert pod["securityContext"] == {"runAsNonRoot": True, "runAsUser": user, "fsGroup": user}
    assert f"-t {pod['containers'][0]['image']} ." in image
    assert f"WORKDIR {pod['containers'][0]['workingDir']}\n" in image
