"""Every script of `benchmarks` finds its modules when it is started as its usage says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Each with the path that `python benchmarks/NAME.py` has, and without the modules that others have brought.
PROGRAM = """
import runpy, sys
from pathlib import Path
root, *scripts = map(Path, sys.argv[1:])
own = (str(root / "tests"), str(root / "benchmarks"))
path = [each for each in sys.path if not each.startswith(own)]
for script in scripts:
    sys.path[:] = [str(script.parent), *path]
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(own):
            del sys.modules[name]
    try:
        runpy.run_path(str(script), run_name="imported")
    except ImportError as error:
        print(script.name, error)
"""


@pytest.mark.thorough
def test_every_script_finds_its_modules() -> None:
    scripts = sorted(map(str, (ROOT / "benchmarks").glob("*.py")))
    command = [sys.executable, "-c", PROGRAM, str(ROOT), *scripts]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
    assert len(scripts) > 20
