"""Two runs cannot share an output directory; a run holds its own from the start to the last file."""

import pytest

from fastsft import _C
from fastsft.ranks.output_directory import run_lock


def test_a_hold_ends_with_its_block_and_nests(tmp_path):
    with run_lock(tmp_path):
        with run_lock(tmp_path):
            pass
        with pytest.raises(ValueError, match="in use by another run"):
            _C.RunLock(str(tmp_path))
    _C.RunLock(str(tmp_path)).release()


def test_a_held_directory_is_refused_and_stays_refused(tmp_path):
    other = _C.RunLock(str(tmp_path))
    for _ in range(2):
        with pytest.raises(ValueError, match=r"in use by another run \(host"), run_lock(tmp_path):
            raise AssertionError("entered")
    other.release()
    with run_lock(tmp_path):
        pass
