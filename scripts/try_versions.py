"""Builds fastsft with releases of Python, torch and transformers, and runs the core of the suite with each.

Each pair of Python and torch gets a new virtual environment, in which `pip install .` builds the
extension with that torch. Each release of transformers is then installed into it, and CORE is run:
the recorded runs and labels, saving and the demo. A record goes to --records (JSON lines) as soon as
it is known; `--table` prints the records as the table of docs/versions.md.

    python scripts/try_versions.py --torches 2.11 2.15 --transformers 4.57.6 5.24.0
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FAMILIES = (
    "tests/model/test_packing_trial.py "
    "tests/model/test_generic_packing.py tests/model/test_loss_trial.py tests/lora/test_adapted_experts.py "
    "tests/lora/test_parameter_adapters.py"
)
CORE = (
    f"{FAMILIES} tests/e2e/test_golden_runs.py tests/chat/test_label_goldens.py "
    "tests/model/test_loaded_model.py tests/model/test_stored_tensors.py tests/model/test_generic_engine.py "
    "tests/e2e/test_recorded_families.py "
    "tests/saving tests/cli/test_demo.py tests/cli/test_demo_run.py "
    "tests/originals/test_originals.py::test_the_library_as_it_is"
)


def main() -> int:
    options = _options()
    if options.table:
        print(table([json.loads(line) for line in options.records.read_text().splitlines()]))
        return 0
    failed = 0
    for python in options.pythons:
        for torch in options.torches:
            for record in _try_pair(python, torch, options):
                with options.records.open("a") as file:
                    file.write(json.dumps(record) + "\n")
                print(json.dumps(record), flush=True)
                failed += not record["passed"]
    return min(failed, 1)


def table(records: list[dict]) -> str:
    """Markdown, a line a record; of equal releases the last one counts."""
    last = {(r["python"], r["torch"], r["transformers"]): r for r in records}
    lines = ["| Python | torch | transformers | CUDA sources | outcome |", "|---|---|---|---|---|"]
    for key in sorted(last, key=lambda key: [_numbers(each) for each in key]):
        record = last[key]
        cuda = "compiled" if record["cuda"] else "left out"
        lines.append(f"| {' | '.join(key)} | {cuda} | {record['outcome']} |")
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pythons", nargs="+", default=[sys.executable], help="interpreters")
    parser.add_argument("--torches", nargs="+", default=[], help="minor releases, as 2.11")
    parser.add_argument("--transformers", nargs="+", default=[], help="releases, as 4.57.6")
    parser.add_argument("--tests", default=CORE, help="what pytest gets; default: the core")
    parser.add_argument("--cuda", action="store_true", help="compile the CUDA sources, too")
    parser.add_argument("--records", type=Path, default=Path("versions.jsonl"), help="default: %(default)s")
    parser.add_argument("--table", action="store_true", help="print the records as a table, and try nothing")
    return parser.parse_args()


def _try_pair(python: str, torch: str, options: argparse.Namespace) -> list[dict]:
    """A record for each release of transformers."""
    folder = Path(tempfile.mkdtemp(prefix="fastsft-versions-"))
    try:
        environment = _Environment(folder, python)
        record = {"python": environment.version, "torch": torch, "cuda": options.cuda}
        problem = environment.build(torch, options.cuda)
        record["torch"] = environment.release("torch") or torch
        if problem:
            return [record | {"transformers": each} | problem for each in options.transformers]
        return [
            record | {"transformers": each} | environment.run(each, options.tests)
            for each in options.transformers
        ]
    finally:
        shutil.rmtree(folder)


class _Environment:
    """A virtual environment with a copy of the tracked files, so that nothing is built next to them."""

    def __init__(self, folder: Path, python: str) -> None:
        self._source, self._folder = folder / "fastsft", folder
        subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
        subprocess.run(["git", "clone", "--quiet", ROOT, self._source], check=True)
        variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        self._variables = variables | {"PATH": f"{folder / 'venv/bin'}:{os.environ['PATH']}"}
        show = "import sys; print('.'.join(map(str, sys.version_info[:2])))"
        self.version = self._run("python", "-c", show).stdout.strip()

    def build(self, torch: str, cuda: bool) -> dict | None:
        """What went wrong; None: nothing."""
        for step in (
            ("pip", "install", "--quiet", f"torch=={torch}.*"),
            ("pip", "install", "--quiet", *_cuda_setting(cuda), "."),
        ):
            result = self._run(*step)
            if result.returncode:
                return _failure(f"`{' '.join(step[:2])}` of {step[-1]}", result)
        return None

    def run(self, transformers: str, tests: str) -> dict:
        extras = _project()["project"]["optional-dependencies"]
        bound = ("transformers", "huggingface_hub", "tokenizers")  # each release of transformers has its own
        rest = [each for each in extras["test"] + extras["test-extras"] if not each.startswith(bound)]
        # All at once: pip otherwise leaves what it installed before, for which this release may be too old.
        result = self._run("pip", "install", "--quiet", "--upgrade", f"transformers=={transformers}", *rest)
        if result.returncode:
            return _failure("pip install", result)
        begin = time.monotonic()
        result = self._run("pytest", "-n", "2", *tests.split())
        seconds = time.monotonic() - begin
        if result.returncode:
            return _failure("pytest", result)
        counts = re.search(r"\d+ passed[^\n]*?(?= in )", result.stdout)
        return {
            "passed": True,
            "outcome": counts.group() if counts else "no count",
            "seconds": round(seconds),
        }

    def release(self, package: str) -> str | None:
        show = f"from importlib.metadata import version; print(version('{package}'))"
        result = self._run("python", "-c", show)
        return result.stdout.strip() if result.returncode == 0 else None

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self._source,
            env=self._variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )


def _project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def _cuda_setting(cuda: bool) -> list[str]:
    return [f"--config-settings=cmake.define.FASTSFT_CUDA={'ON' if cuda else 'OFF'}"]


def _failure(step: str, result: subprocess.CompletedProcess[str]) -> dict:
    lines = (result.stdout + result.stderr).splitlines()
    told = [line for line in lines if line.startswith(("FAILED", "ERROR"))] or lines[-5:]
    return {"passed": False, "outcome": f"{step} failed", "lines": told}


def _numbers(release: str) -> list[int]:
    return [int(each) for each in re.findall(r"\d+", release.split("+")[0])]


if __name__ == "__main__":
    sys.exit(main())
