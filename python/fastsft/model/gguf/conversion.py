"""Find llama.cpp's converter, run it in a process of its own, and check its file before it gets its name."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fastsft.model.stored_weights import StoredWeights
from fastsft.runtime.regular_files import read_json_object

SCRIPT = "convert_hf_to_gguf.py"
VARIABLE = "FASTSFT_GGUF_CONVERTER"
OUTTYPES = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
_PROGRAMS = ("llama-server", "llama-cli", "llama-quantize")
_INSTALL = (
    "git clone https://github.com/ggml-org/llama.cpp, pip install gguf transformers sentencepiece, and "
    f"--converter llama.cpp/{SCRIPT}"
)

_CHECK = (
    f"import sys; sys.path.append({str(Path(__file__).parents[3])!r}); "
    "from fastsft.model.gguf.check import program; program(sys.argv)"
)


@dataclass(frozen=True)
class GgufFile:
    """A written file. converter: the script that wrote it; outtype: its matrices' type."""

    tensors: int
    bytes: int
    architecture: str
    converter: Path
    outtype: str


def find_converter(given: Path | None) -> Path:
    """Return llama.cpp's script: `given`, that of the environment variable, or one of the search path.

    ValueError, with the commands that install it, if there is none.
    """
    for place, name in ((given, "--converter"), (os.environ.get(VARIABLE), VARIABLE)):
        if place:
            path = Path(place).expanduser()
            path = path / SCRIPT if path.is_dir() else path
            if not path.is_file():
                raise ValueError(f"{name}: expected llama.cpp's {SCRIPT}, found no file {path}; {_INSTALL}")
            return path.absolute()
    found = next((path for path in _places() if path.is_file()), None)
    if found is None:
        raise ValueError(
            f"llama.cpp's {SCRIPT} is not installed: it is neither on PATH nor next to llama-server there; "
            f"the way out: {_INSTALL}"
        )
    return found


def _places() -> Iterator[Path]:
    """Yield the script's places: on PATH, and in the checkout in which llama.cpp was built."""
    if script := shutil.which(SCRIPT):
        yield Path(script).resolve()
    for name in _PROGRAMS:
        if program := shutil.which(name):
            folder = Path(program).resolve().parent
            yield from (place / SCRIPT for place in (folder, folder.parent, folder.parent.parent))


def convert_to_gguf(
    directory: Path, out: Path, converter: Path, outtype: str | None, *,
    overwrites: bool = False, trusts_code: bool = False,
) -> GgufFile:  # fmt: skip
    """Convert the model in `directory` to the file `out`, which appears whole and checked, or not at all.

    outtype: f32, f16 or bf16; None for the type in which the model's matrices are stored. overwrites: replace
    `out` if it exists. trusts_code: the converter may run the directory's own code. ValueError if the
    converter fails or if a tensor of its file differs from the model's.
    """
    chosen = outtype or stored_outtype(directory)
    _refuse_code(directory, trusts_code)
    variables = _variables(converter)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".fastsft-gguf-") as folder:
        made = Path(folder) / "model.gguf"
        flags = ["--outfile", str(made), "--outtype", chosen]
        _run([sys.executable, str(converter), str(directory.absolute()), *flags], variables, "the converter")
        if not made.is_file():
            raise ValueError(f"{converter}: it wrote no file")
        check = [sys.executable, "-P", "-c", _CHECK, str(directory.absolute()), str(made)]
        result = json.loads(_run(check, variables, "the check").splitlines()[-1])
        if "problem" in result:
            raise ValueError(
                f"{converter}: its file is not the model, and is removed: {result['problem']}; without this "
                f"check: python {converter} {directory} --outtype {chosen}"
            )
        size = made.stat().st_size
        _publish(made, out, overwrites)
    return GgufFile(result["tensors"], size, result["architecture"], converter, chosen)


def stored_outtype(directory: Path) -> str:
    """Return the type of the model's matrices; f32 if they have several."""
    tensors = StoredWeights(directory).tensors.values()
    types = {OUTTYPES.get(tensor.dtype, "f32") for tensor in tensors if len(tensor.shape) > 1}
    return types.pop() if len(types) == 1 else "f32"


def _refuse_code(directory: Path, trusts_code: bool) -> None:
    """Raise ValueError if the converter would run code of the directory, unless the user trusts it."""
    for name in ("config.json", "tokenizer_config.json"):
        path = directory / name
        if not trusts_code and path.is_file() and "auto_map" in read_json_object(path):
            raise ValueError(
                f"{path}: it names code of the directory (auto_map), which the converter may run; "
                "--trust_remote_code lets it"
            )


def _variables(converter: Path) -> dict[str, str]:
    """Return the environment of both processes: with the checkout's own package gguf, without a network."""
    own = converter.parent / "gguf-py"
    if not own.is_dir() and importlib.util.find_spec("gguf") is None:
        raise ValueError(f"the Python package gguf is not installed; the way out: {_INSTALL}")
    paths = [*([str(own)] if own.is_dir() else []), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "HF_HUB_OFFLINE": "1"}


def _run(command: list[str], variables: dict[str, str], what: str) -> str:
    done = subprocess.run(command, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        last = "; ".join(lines[-1:]) or "no message"
        raise ValueError(f"{what} ended with status {done.returncode}: {last} ({' '.join(command)})")
    return done.stdout


def _publish(made: Path, out: Path, overwrites: bool) -> None:
    """Give the file its name. FileExistsError if the name was taken meanwhile and may not be replaced."""
    with open(made, "rb") as file:
        os.fsync(file.fileno())
    if overwrites:
        os.replace(made, out)
    else:
        os.link(made, out)
