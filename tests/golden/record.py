"""Record the golden files anew with the original libraries, or compare a new recording with them.

usage: python tests/golden/record.py [--check] FOLDER[/PART] ...

Each folder has a `record.py` with its recorder; a part is a file or a run of it. With `--check` the files are
written into a temporary folder and compared with the stored ones: the status is 1 if one of them differs by
more than the recorder allows. The libraries must have the versions that the recorder names.

    python tests/golden/record.py --check models trainer/a_cosine
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from recording import Part, Recorder, difference

GOLDEN = Path(__file__).resolve().parent


def folders() -> list[str]:
    """Return the names of the folders that have golden files."""
    return sorted(path.name for path in GOLDEN.iterdir() if path.is_dir() and path.name != "__pycache__")


def load(folder: str) -> Recorder:
    """Return the recorder of a folder. Loading it imports none of the libraries that it records."""
    path = GOLDEN / folder / "record.py"
    spec = importlib.util.spec_from_file_location(f"golden_{folder}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert isinstance(module.RECORDER, Recorder)
    return module.RECORDER


def other_versions(recorder: Recorder) -> list[str]:
    """Return a line for each library that is missing or has another version than the recorder names."""
    found = []
    for name, wanted in recorder.libraries.items():
        try:
            installed = version(name)
        except PackageNotFoundError:
            installed = "none"
        if installed.split("+")[0] != wanted:
            found.append(f"{name}: expected {wanted}, got {installed}; pip install {name}=={wanted}")
    return found


def check(recorder: Recorder, folder: str, part: Part) -> bool:
    """Write a part into a temporary folder, print differences; True if they are allowed."""
    right = True
    with tempfile.TemporaryDirectory() as scratch:
        part.write(Path(scratch))
        for name in part.files:
            found = difference(GOLDEN / folder / name, Path(scratch) / name, recorder.noise)
            allowed = not isinstance(found, str) and found <= recorder.apart
            right &= allowed
            text = found if isinstance(found, str) else f"{found:.1e} apart" if found else "equal"
            print(f"{folder}/{name}: {text}{'' if allowed else ', more than allowed'}", flush=True)
    return right


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("names", nargs="+", metavar="FOLDER[/PART]")
    given = parser.parse_args(words)
    sys.path.append(str(GOLDEN.parent / "support"))
    right = True
    for name in given.names:
        folder, _, chosen = name.partition("/")
        recorder = load(folder)
        if wrong := other_versions(recorder):
            print(f"{folder}:", *wrong, sep="\n  ", file=sys.stderr)
            return 2
        if chosen and chosen not in recorder.parts:
            print(f"{name}: expected one of {', '.join(recorder.parts)}", file=sys.stderr)
            return 2
        for part in [recorder.parts[chosen]] if chosen else recorder.parts.values():
            if given.check:
                right &= check(recorder, folder, part)
            else:
                part.write(GOLDEN / folder)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
