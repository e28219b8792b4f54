"""One run at a time in an output directory; a dead one leaves nothing in the way."""

import os
import signal
import subprocess
import sys

import pytest

from fastsft import _C
from planted import plant

HOLDER = """
import os, sys, time
from fastsft import _C
lock = _C.RunLock(sys.argv[1])
worker = os.fork() if "forks" in sys.argv else 1
if worker == 0:
    del lock
    time.sleep(60)
print("held", worker, flush=True)
time.sleep(60)
"""


def start_holder(directory, *words):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory), *words],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    said, holder.worker = holder.stdout.readline().split()
    assert said == "held"
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


def test_a_worker_that_lives_on_does_not_keep_the_directory(tmp_path):
    """As those of a data loader do for some seconds. Nor does it give the lock away while the run lives."""
    holder = start_holder(tmp_path, "forks")
    worker = int(holder.worker)
    try:
        with pytest.raises(ValueError, match=f"process {holder.pid}"):
            _C.RunLock(str(tmp_path))
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        os.kill(worker, 0)  # it is there
        _C.RunLock(str(tmp_path)).release()
    finally:
        os.kill(worker, signal.SIGKILL)


def test_a_directory_that_takes_no_files(tmp_path):
    with pytest.raises(RuntimeError, match="cannot open"):
        _C.RunLock(str(tmp_path / "missing"))


@pytest.mark.parametrize(
    "kind", ["link", "dangling link", "hard link", "a FIFO", "a directory", "a file of mine"]
)
def test_what_no_run_wrote_is_no_lock(tmp_path, kind):
    """Refused by name, at once; neither it nor what it leads to is written, cut or removed."""
    output = tmp_path / "out"
    output.mkdir()
    victim = tmp_path / "victim"
    victim.write_text("my thesis")
    if kind == "a file of mine":
        (output / ".fastsft-lock").write_text("my thesis")
    else:
        plant(output / ".fastsft-lock", kind, victim)
    before = (output / ".fastsft-lock").lstat()
    with pytest.raises(
        ValueError, match=r"\.fastsft-lock: expected the lock file of a run, got .*left as it is"
    ):
        _C.RunLock(str(output))
    after = (output / ".fastsft-lock").lstat()
    assert (after.st_ino, after.st_size, after.st_mtime) == (before.st_ino, before.st_size, before.st_mtime)
    assert victim.read_text() == "my thesis" and not victim.with_name("missing").exists()


def test_the_lock_of_another_directory_of_the_name_stays(tmp_path):
    """A run whose directory was removed does not take the lock of the run that has the name since."""
    output = tmp_path / "out"
    output.mkdir()
    first = _C.RunLock(str(output))
    (output / ".fastsft-lock").unlink()
    output.rmdir()
    output.mkdir()
    second = _C.RunLock(str(output))
    first.release()
    assert (output / ".fastsft-lock").exists()
    with pytest.raises(ValueError, match="in use by another run"):
        _C.RunLock(str(output))
    second.release()
