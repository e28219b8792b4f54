"""Where the system gives no thread, work goes on with those there are, and what needs one says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SUPPORT = Path(__file__).parents[1] / "support"
TRAINER = SUPPORT.parent / "golden" / "trainer"
DATA = TRAINER / "data" / "first48.json"


def run(when: str, what: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.run(
        [sys.executable, str(SUPPORT / "denied_threads.py"), when, what, *words],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True, text=True, timeout=300, cwd=TRAINER,
    )  # fmt: skip


def compiled(source: str, folder: Path) -> Path:
    library = folder / "shim.so"
    (folder / "shim.cpp").write_text(source)
    subprocess.run(["g++", "-shared", "-fPIC", str(folder / "shim.cpp"), "-o", str(library)], check=True)
    return library


def said(when: str, what: str, *words: str) -> Any:
    done = run(when, what, *words)
    assert done.returncode == 0, (done.returncode, done.stderr[-3000:])
    return json.loads(done.stdout)


@pytest.mark.thorough
def test_rows_are_labelled_on_one_thread() -> None:
    found = said("now", "label", str(DATA))
    assert found == said("never", "label", str(DATA)) and found[0] == 48


def test_a_thread_that_is_needed_is_an_error() -> None:
    kind, text = said("now", "limit_a_phase", "")
    assert kind == "ThreadDeniedError"
    assert text.startswith(
        "cannot start a thread for the limits of phases: Resource temporarily unavailable; "
    )
    assert said("never", "limit_a_phase", "") == "started"


def train(when: str, output: Path) -> subprocess.CompletedProcess[str]:
    flags = json.loads((TRAINER / "h_resume.json").read_text())["flags"]
    flags |= {"max_steps": 4, "save_steps": 2, "plot_loss": False, "phase_timeouts": "", "data_cache": "none"}
    words = [f"--{name}={value}" for name, value in flags.items() if value != ""]
    return run(when, "run", "--output_dir", str(output), *words)


@pytest.mark.thorough
def test_a_run_that_loses_its_threads_gives_the_same_model(tmp_path: Path) -> None:
    """Checkpoints are written before the training goes on, by one thread."""
    for when in ("training", "never"):
        done = train(when, tmp_path / when)
        assert done.returncode == 0, done.stderr[-3000:]
    names = ["model.safetensors", "checkpoint-2/model.safetensors", "checkpoint-4/model.safetensors"]
    for name in names:
        assert (tmp_path / "training" / name).read_bytes() == (tmp_path / "never" / name).read_bytes()


def test_a_run_without_any_says_so_in_one_line(tmp_path: Path) -> None:
    done = train("now", tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr[-3000:]
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: cannot start a thread for signals: can't start new thread; allow more")
    assert not list(tmp_path.glob("*.safetensors"))


# Compiled by the test: threads but the first get no 1,024 bytes, with which they look whether they can throw.
NO_MEMORY = """
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

extern "C" void* __libc_malloc(size_t bytes);
extern "C" int armed = 0;
extern "C" void* malloc(size_t bytes) {
  return armed != 0 && bytes == 1024 && syscall(SYS_gettid) != getpid() ? nullptr : __libc_malloc(bytes);
}
"""


def test_a_checkpoint_is_written_by_its_caller_where_threads_have_no_memory(tmp_path: Path) -> None:
    library = compiled(NO_MEMORY, tmp_path)
    done = run("never", "write_part", str(tmp_path), str(library), LD_PRELOAD=str(library))
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == ["model.safetensors", "optimizer-rank-00000-of-00001.safetensors"]


# Compiled by the test: pthread_create fails from the call FAIL_FROM on.
SHIM = """
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                              void* argument) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static Create real = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  static int calls = 0;
  if (__sync_add_and_fetch(&calls, 1) >= atoi(getenv("FAIL_FROM"))) return EAGAIN;
  return real(thread, attributes, body, argument);
}
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(SHIM, tmp_path_factory.mktemp("shim"))


@pytest.mark.variants("[1]")
@pytest.mark.parametrize("first", [1, 2, 3, 4, 5, 8])
def test_whichever_thread_is_the_first_denied(first: int, shim: Path, tmp_path: Path) -> None:
    """The run ends well or with one line: torch's own pools would wait for ever, or end the process.

    The sixth is left out: the engine's question, whether there are threads, has had its answer by then.
    """
    flags = json.loads((TRAINER / "h_resume.json").read_text())["flags"]
    flags |= {"max_steps": 2, "plot_loss": False, "data_cache": "none", "output_dir": str(tmp_path / "out")}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "fastsft.train", *(f"--{k}={v}" for k, v in flags.items() if v != "")],
        env={
            **os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "OMP_NUM_THREADS": "2", "LD_PRELOAD": str(shim), "FAIL_FROM": str(first),
        },
        capture_output=True, text=True, timeout=240, cwd=TRAINER,
    )  # fmt: skip
    assert done.returncode in (0, 1), (done.returncode, done.stderr[-3000:])
    if done.returncode == 1:
        last = done.stderr.strip().splitlines()[-1]
        assert last.startswith("error: cannot start a thread for "), done.stderr[-3000:]
