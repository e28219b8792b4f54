"""Files that a run writes beside those of others: whole or not there, through no link, over nobody's file."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from fastsft.notices import tell
from fastsft.regular_files import kind_of

_Content = str | bytes | memoryview
# By directory: whether a run of fastsft had written there when this process first looked.
_is_of_runs: dict[str, bool] = {}
# Paths that this process has written: what has their names since then is its own.
_written: set[str] = set()
_ARGUMENTS, _FOREIGN_ARGUMENTS = "training_args.json", "training_args.bin"


def replace_file(path: str | Path, content: _Content) -> None:
    """The old or the new content has the name, never half of one. A link is replaced, its target never.

    Written under a random temporary name that nothing has, in the same directory. OSError when it cannot be.
    """
    with fresh_file(Path(path)) as temporary, open(temporary, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def fresh_file(path: Path) -> Iterator[Path]:
    """An empty file beside `path` for the block to write, which takes the name at its end."""
    temporary = path.with_name(f".fastsft-tmp-{path.name[:200]}-{secrets.token_hex(8)}")
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666))
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def check_output_file(path: str | Path, flag: str) -> None:
    """ValueError unless `flag` names a regular file or nothing yet: no device, FIFO or folder is written.

    A link counts as what it leads to; it is replaced, and its target stays as it is.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return
    if not stat.S_ISREG(mode):
        raise ValueError(
            f"{flag}: {path}: expected the name of a file, got {kind_of(mode)}; it is left as it is: choose "
            "another name"
        )


def write_for_flag(path: str | Path, content: _Content, flag: str) -> None:
    """`replace_file` of a path that the user named, after `check_output_file`."""
    check_output_file(path, flag)
    replace_file(path, content)


def write_output(path: str | Path, content: _Content, is_ours: Callable[[bytes], bool] | None = None) -> None:
    """`replace_file` of a name of ours in an output directory, over nothing that fastsft did not write.

    What else has the name is put aside (`keep_aside`), with a line. is_ours: tells by the content that an
    earlier run wrote it, where the directory does not say so.
    """
    keep_aside(path, content, is_ours)
    replace_file(path, content)
    _written.add(_key(path))


def write_with(path: Path, write: Callable[[Path], object]) -> None:
    """`write_output` of what `write` writes to the path that it is given."""
    keep_aside(path, None)
    with fresh_file(path) as temporary:
        write(temporary)
    _written.add(_key(path))


def note_directory(directory: str | Path) -> None:
    """Before anything is written to an output directory: whether a run of fastsft wrote there before."""
    key = os.path.realpath(directory)
    if key not in _is_of_runs:
        _is_of_runs[key] = _holds_a_run(Path(key))


def keep_aside(
    path: str | Path, content: _Content | None, is_ours: Callable[[bytes], bool] | None = None
) -> None:
    """Rename what has the name of one of our files, and is none, to previous-<UTC time>-<name>, with a line.

    Ours is what this process wrote, what a run left where fastsft saved before, what `is_ours` knows, and
    what is equal to the new `content`. A link is not kept: it is replaced, and its target stays.
    """
    from fastsft import _C

    path = Path(path)
    try:
        mode = path.lstat().st_mode
    except OSError:
        return
    if stat.S_ISLNK(mode):
        return
    if stat.S_ISREG(mode):
        note_directory(path.parent)
        if _key(path) in _written or _is_of_runs[os.path.realpath(path.parent)]:
            return
        if _is_alike(path, content, is_ours):
            return
    aside = _C.put_aside(str(path))
    tell(f"{path}, which fastsft did not write, is now called {Path(aside).name}")


def _is_alike(path: Path, content: _Content | None, is_ours: Callable[[bytes], bool] | None) -> bool:
    if content is None and is_ours is None:
        return False
    try:
        found = path.read_bytes()
    except OSError:
        return False
    new = content.encode() if isinstance(content, str) else content
    return (new is not None and found == bytes(new)) or (is_ours is not None and is_ours(found))


def _key(path: str | Path) -> str:
    path = Path(path)
    return os.path.join(os.path.realpath(path.parent), path.name)


def _holds_a_run(directory: Path) -> bool:
    """A checkpoint with our manifest, or a model with our arguments and not those of transformers."""
    from fastsft import _C

    if not directory.is_dir():
        return False
    if any(_C.holds_manifest(str(directory / name)) for name in _C.list_checkpoints(str(directory))):
        return True
    return bool(_C.is_our_model(str(directory)))
