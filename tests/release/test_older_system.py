"""The functions that stand in for newer ones of glibc give the same bits, and need no newer version."""

from __future__ import annotations

import ctypes
import math
import os
import random
import subprocess
import threading
import time
from pathlib import Path

import pytest

from check_wheel import _faults_of_versions
from core_files import read_library

SOURCE = (Path(__file__).parents[2] / "cmake" / "older_system.c").read_text()
# Functions that call those of the file as a core does.
CALLS = """
#include <sys/stat.h>
double call_log(double x) { return log(x); }
double call_log2(double x) { return log2(x); }
double call_pow(double x, double y) { return pow(x, y); }
long long call_stat(const char* path, int follow) {
  struct stat out;
  const int status = follow ? stat(path, &out) : lstat(path, &out);
  return status == 0 ? (long long)out.st_size : -1;
}
long long call_fstat(int file) {
  struct stat out;
  return fstat(file, &out) == 0 ? (long long)out.st_size : -1;
}
void* call_dlopen(void) { return dlsym(dlopen("libm.so.6", RTLD_NOW), "cos"); }
int call_wait(pthread_cond_t* condition, pthread_mutex_t* mutex, double seconds) {
  struct timespec end;
  clock_gettime(CLOCK_MONOTONIC, &end);
  const long long nanoseconds = end.tv_nsec + (long long)(seconds * 1e9);
  end.tv_sec += nanoseconds / 1000000000LL;
  end.tv_nsec = nanoseconds % 1000000000LL;
  pthread_mutex_lock(mutex);
  const int status = pthread_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, &end);
  pthread_mutex_unlock(mutex);
  return status;
}
int signal_all(pthread_cond_t* condition) { return pthread_cond_broadcast(condition); }
"""


def built(folder: Path, source: str) -> Path:
    text, place = folder / "calls.c", folder / "calls.so"
    text.write_text(source + CALLS)
    flags = ["-O2", "-fno-builtin", "-fPIC", "-shared", "-Wl,--no-as-needed", "-lm", "-lstdc++"]
    subprocess.run(["gcc", *flags[:4], str(text), *flags[4:], "-l:libdl.so.2", "-o", str(place)], check=True)
    return place


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("older"), SOURCE)


@pytest.fixture(scope="module")
def library(place: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(place))
    for name in ("call_log", "call_log2", "call_pow"):
        function = getattr(loaded, name)
        function.restype = ctypes.c_double
        function.argtypes = [ctypes.c_double] * (2 if name == "call_pow" else 1)
    for name in ("call_stat", "call_fstat"):
        getattr(loaded, name).restype = ctypes.c_longlong
    loaded.call_wait.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_double]
    return loaded


def test_no_symbol_is_newer(place: Path, tmp_path: Path) -> None:
    assert list(_faults_of_versions(read_library(place))) == []
    headers = "".join(f"#include <{name}.h>\n" for name in ("dlfcn", "math", "pthread", "time"))
    plain = built(tmp_path, "#define _GNU_SOURCE\n" + headers)
    assert list(_faults_of_versions(read_library(plain)))  # a glibc of these tests that has newer ones


def test_logarithms_and_powers_have_the_same_bits(library: ctypes.CDLL) -> None:
    generator = random.Random(0)
    for _ in range(20_000):
        x = math.ldexp(generator.random() + 1e-300, generator.randint(-300, 300))
        y = generator.uniform(-3, 3)
        assert library.call_log(x) == math.log(x) and library.call_log2(x) == math.log2(x)
        assert library.call_pow(x, y) == math.pow(x, y)
    assert [library.call_log(0.0), library.call_log(math.inf)] == [-math.inf, math.inf]
    assert math.isnan(library.call_log(-1.0)) and library.call_pow(0.0, -1.0) == math.inf


def test_sizes_of_files(library: ctypes.CDLL, tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_bytes(b"12345")
    link.symlink_to("file")
    assert library.call_stat(bytes(link), 1) == 5 and library.call_stat(bytes(link), 0) == 4
    assert library.call_stat(bytes(tmp_path / "absent"), 1) == -1
    descriptor = os.open(file, os.O_RDONLY)
    assert library.call_fstat(descriptor) == 5
    os.close(descriptor)
    assert library.call_fstat(descriptor) == -1


@pytest.mark.parametrize("name", ["pthread_cond_clockwait", "absent"])
def test_waits_end_at_the_deadline_or_by_a_signal(name: str, tmp_path: Path) -> None:
    """By glibc's own function, and as with a glibc that has none."""
    library = ctypes.CDLL(str(built(tmp_path, SOURCE.replace('"pthread_cond_clockwait"', f'"{name}"'))))
    library.call_wait.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_double]
    condition, mutex = ctypes.create_string_buffer(48), ctypes.create_string_buffer(40)  # zeros: initialized
    start = time.monotonic()
    assert library.call_wait(condition, mutex, 0.2) == 110  # ETIMEDOUT
    assert 0.19 < time.monotonic() - start < 5
    assert library.call_wait(condition, mutex, 0.0) == 110
    timer = threading.Timer(0.1, library.signal_all, [condition])
    timer.start()
    assert library.call_wait(condition, mutex, 30.0) == 0 and time.monotonic() - start < 20
