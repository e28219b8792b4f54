"""Search path of Python's modules: never the working directory, which may be a stranger's model or data.

Imported before anything else by every program of fastsft. Therefore it imports nothing that Python has not
loaded by then, not even `__future__`.
"""

import os
import sys


def leave_working_directory() -> None:
    """Takes the working directory off sys.path, unless PYTHONPATH names it.

    `python -m` puts it in front, and so does an empty entry of PYTHONPATH.
    """
    here = _directory("")
    named = {_directory(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry}
    if here in named:
        here = ""
        if sys.argv[:1] == ["-m"] and not sys.flags.safe_path:
            del sys.path[0]  # its place is where PYTHONPATH says
    places = [_directory(entry) for entry in sys.path]
    standard = _directory(os.path.dirname(os.__file__))  # what comes from there on is installed
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
    """The start of `python -m <module>` that does not look into the working directory."""
    return [sys.executable, "-P", "-m", module]


def child_environment() -> dict[str, str]:
    """This process's environment, with a PYTHONPATH by which a child finds what this process does.

    Empty entries, which mean the working directory, are left out.
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
