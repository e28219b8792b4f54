"""One run at a time in an output directory; a dead one leaves nothing in the way."""

import os
import signal
import subprocess
import sys

import pytest

from fastsft import _C

HOLDER = """
import sys, time
from fastsft import _C
lock = _C.RunLock(sys.argv[1])
print("held", flush=True)
time.sleep(60)
"""


def start_holder(directory):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert holder.stdout.readline() == "held\n"
    return holder


def test_a_second_run_is_refused_and_told_who_is_there(tmp_path):
    lock = _C.RunLock(str(tmp_path))
    with pytest.raises(ValueError, match=f"in use by another run .host .*process {os.getpid()}, since 20"):
        _C.RunLock(str(tmp_path))
    lock.release()
    lock.release()
    assert list(tmp_path.iterdir()) == []
    _C.RunLock(str(tmp_path)).release()


def test_a_killed_run_leaves_the_directory_free(tmp_path):
    holder = start_holder(tmp_path)
    with pytest.raises(ValueError, match=f"process {holder.pid}"):
        _C.RunLock(str(tmp_path))
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / ".fastsft-lock").exists()
    _C.RunLock(str(tmp_path)).release()


def test_a_directory_that_takes_no_files(tmp_path):
    with pytest.raises(RuntimeError, match="cannot open"):
        _C.RunLock(str(tmp_path / "missing"))
