"""Keep the working directory, which may be a stranger's model or data, off Python's module search path.

Every program of fastsft imports this module first. Therefore it imports only modules that Python has loaded
by then, not even `__future__`.
"""

import os
import sys


def leave_working_directory() -> None:
    """Remove the working directory from sys.path, unless PYTHONPATH names it.

    `python -m` puts it in front, and so does an empty entry of PYTHONPATH.
    """
    here = _directory("")
    named = {_directory(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry}
    if here in named:
        here = ""
        if sys.argv[:1] == ["-m"] and not sys.flags.safe_path:
            del sys.path[0]  # PYTHONPATH decides its position
    places = [_directory(entry) for entry in sys.path]
    standard = _directory(os.path.dirname(os.__file__))  # entries from there on are installed packages
    library = places.index(standard) if standard in places else len(places)
    kept = [entry for entry, place in zip(sys.path[:library], places, strict=False) if place != here]
    sys.path[:library] = kept


def is_program() -> bool:
    """True if Python runs fastsft itself: `python -m fastsft.train`, `fastsft inspect`."""
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
    """Return the beginning of `python -m <module>` without the working directory on the search path."""
    return [sys.executable, "-P", "-m", module]


def child_environment() -> dict[str, str]:
    """Return this process's environment, with a PYTHONPATH by which a child imports the same packages.

    Empty entries, which mean the working directory, are dropped.
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
