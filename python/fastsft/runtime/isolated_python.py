"""Children that handle what strangers wrote: a Python that finds its library and named packages, no more."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

# Without `site` there are neither the environment's packages nor code of .pth files and sitecustomize.
_OPTIONS = ("-P", "-s", "-S")
_START = "import runpy, sys; sys.path += sys.argv[1:]; runpy.run_module({module!r}, run_name='__main__')"


def isolated_command(module: str, packages: Sequence[str]) -> list[str]:
    """The command that runs a module of fastsft which imports `packages`, and what is with these.

    ValueError names a package that is not installed. Start it with `isolated_environment()`.
    """
    own = str(Path(__file__).resolve().parents[2])
    folders = [own, *(package_folder(name) for name in packages)]
    return [sys.executable, *_OPTIONS, "-c", _START.format(module=module), *dict.fromkeys(folders)]


def isolated_environment() -> dict[str, str]:
    """This process's environment without PYTHONPATH and what else makes Python import or run something."""
    hidden = ("PYTHONPATH", "PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONBREAKPOINT", "PYTHONWARNINGS")
    return {name: value for name, value in os.environ.items() if name not in hidden}


def package_folder(name: str) -> str:
    """The folder that holds an installed package; never the working directory, unless PYTHONPATH names it."""
    loaded = getattr(sys.modules.get(name), "__file__", None)
    if loaded is not None:
        return _folder_of(loaded)
    here = os.path.realpath(os.curdir)
    named = {os.path.realpath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry}
    paths = [path for path in sys.path if os.path.realpath(path or os.curdir) != here or here in named]
    found = importlib.machinery.PathFinder.find_spec(name, paths)
    if found is None or found.origin is None:  # an installation that is a hook
        found = importlib.util.find_spec(name)
    if found is None or found.origin is None or (_folder_of(found.origin) == here and here not in named):
        raise ValueError(f"the package {name} is not installed")
    return _folder_of(found.origin)


def _folder_of(origin: str) -> str:
    path = Path(origin).resolve()
    return str(path.parents[1] if path.stem == "__init__" else path.parent)
