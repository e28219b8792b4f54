"""Remove the working directory from Python's module search path, because its files may not be trusted.

Every program of fastsft imports this module first. This module imports only modules that Python loads at its
start, because any other import (even that of `__future__`) would search the working directory.
"""

import os
import sys


def leave_working_directory() -> None:
    """Remove the working directory from sys.path, unless PYTHONPATH names it.

    `python -m` and an empty entry in PYTHONPATH add the working directory to sys.path.
    """
    here = _directory("")
    named = {_directory(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry}
    if here in named:
        here = ""
        if sys.argv[:1] == ["-m"] and not sys.flags.safe_path:
            del sys.path[0]  # the entry that `python -m` added; the entry from PYTHONPATH stays
    places = [_directory(entry) for entry in sys.path]
    # Entries from the standard library on are kept, because they contain installed packages.
    standard = _directory(os.path.dirname(os.__file__))
    library = places.index(standard) if standard in places else len(places)
    kept = [entry for entry, place in zip(sys.path[:library], places, strict=False) if place != here]
    sys.path[:library] = kept


def is_program() -> bool:
    """True if this process runs a program of fastsft, such as `python -m fastsft.train` or `fastsft args`."""
    if os.path.basename(sys.argv[0]) == "fastsft":
        return True
    if sys.argv[0] != "-m":
        return False
    for word, following in zip(sys.orig_argv, [*sys.orig_argv[1:], ""], strict=True):
        if word.startswith("-") and "m" in word:
            module = word.partition("m")[2] or following
            if module.split(".")[0] == "fastsft":
                return True
    return False


def python_command(module: str) -> list[str]:
    """Return the command `python -P -m <module>`; -P keeps the working directory off the search path."""
    return [sys.executable, "-P", "-m", module]


def child_environment() -> dict[str, str]:
    """Return the environment for a child process, with a PYTHONPATH that begins with this fastsft's folder.

    Empty entries of PYTHONPATH, which stand for the working directory, are dropped.
    """
    given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    paths = [os.path.dirname(package), *given]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def _directory(entry: str) -> str:
    try:
        return os.path.realpath(entry or os.getcwd())
    except OSError:  # the working directory is gone
        return entry
