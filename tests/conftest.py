"""Marks and paths that every test shares."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import zlib
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest
import torch

import fastsft

# Members of groups are threads of one process in many tests, and some groups are no Transport's: see
# weight_sync/groups.py. Read when the first collective runs.
os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "0")

# A shell has what it starts in the background ignore interrupts, and so would all that tests start.
ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
if ignored and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The suite fills the cores by processes: those that a test starts take one thread each. Threads that wait for
# each other by spinning cost such runs most of their time.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
# Of tiny models, next to a peer's: one thread is faster than two. Kernels and engine are tested with several.
ONE_THREAD = (
    "benchmarks", "checkpoint", "cuda_on_cpu", "data", "e2e", "lora", "model", "optim", "saving",
    "script_names", "shard", "trainer", "weight_sync",
)  # fmt: skip

# Where pictures of curves are drawn. Elsewhere they would take longer than the small runs that they show.
DRAWING = ("reporting", "test_hostile_directories.py")

GOLDEN = Path(__file__).parent / "golden"
MOST_PROCESSES = 4


def is_whole_suite(config: pytest.Config) -> bool:
    """Neither files nor marks nor words choose tests."""
    chosen = config.getoption("markexpr") or config.getoption("keyword") or config.getoption("usepdb")
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS and not chosen


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """The whole suite runs in three processes on two cores, each file in one; `pytest -n 0`: in this one.

    Two would leave a third of the time unused: tests of ranks, signals and limits wait. Next to a GPU, whose
    memory tests measure, it runs in one process.
    """
    if not config.pluginmanager.hasplugin("xdist") or config.option.numprocesses is not None:
        return
    if "PYTEST_XDIST_WORKER" in os.environ:  # one of those processes comes by here, too
        return
    cores = len(os.sched_getaffinity(0))
    processes = 1 if torch.cuda.is_available() else min(MOST_PROCESSES, cores + cores // 2)
    if processes > 1 and config.option.dist == "no" and is_whole_suite(config):
        config.option.numprocesses, config.option.dist = processes, "loadfile"
        config.option.loadscopereorder = False  # files of few tests are often the longest: not all last
        # A process that dies ends the suite and has its test named: pytest-xdist 3.8 would hand its files
        # that are done to the other processes, which then wait for ever.
        config.option.maxworkerrestart = config.option.maxworkerrestart or "0"


def pytest_collection_finish() -> None:
    """Check the search path, then exempt the objects of the collected modules from garbage collection.

    Programs that tests start get `sys.path`. A module that puts the source tree on it would have them import
    that tree instead of the installed package.
    """
    found = PathFinder.find_spec("fastsft")
    if found is not None and found.origin != fastsft.__file__:
        raise pytest.UsageError(
            f"expected fastsft from {fastsft.__file__}, got {found.origin}; sys.path is {sys.path}"
        )
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def golden() -> Path:
    """Inputs, and what the original libraries made of them."""
    return GOLDEN


@pytest.fixture(scope="session", autouse=True)
def own_caches(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Token caches of tests, and of the programs that they start, are not the user's."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session", autouse=True)
def no_terminal() -> None:
    """Pages are as wide as without a terminal, also where pytest-xdist hands COLUMNS on."""
    os.environ.pop("COLUMNS", None)


@pytest.fixture(scope="module", autouse=True)
def own_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """One thread of torch in the folders of ONE_THREAD."""
    before = torch.get_num_threads()
    if request.path.relative_to(Path(__file__).parent).parts[0] in ONE_THREAD:
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", autouse=True)
def own_pictures(request: pytest.FixtureRequest) -> Iterator[None]:
    """No loss.png from trainers of this process, as where matplotlib is missing, but in DRAWING."""
    from fastsft.reporting import loss_reports

    with pytest.MonkeyPatch.context() as patch:
        if not set(DRAWING) & set(request.path.parts):
            patch.setattr(loss_reports, "has_matplotlib", lambda: False)
        yield


@pytest.fixture(autouse=True)
def own_numbers(request: pytest.FixtureRequest) -> None:
    """A test draws the same numbers alone, in any order and in any process of pytest-xdist."""
    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """Arguments leave accelerate's variables and number format, which other tests must not meet."""
    precision = sys.modules.get("fastsft.arguments.resolve.device")
    if precision is not None:  # arguments of other tests
        precision.requested_formats.clear()
    before = dict(os.environ)
    yield
    for name in [name for name in os.environ if name.startswith(("ACCELERATE_", "FSDP_"))]:
        del os.environ[name]
        if name in before:
            os.environ[name] = before[name]


@pytest.fixture
def fake_saving(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Trainers save by the small module of fake_run.py, which is given."""
    from fake_run import saving_module

    module = saving_module()
    monkeypatch.setattr("fastsft.trainer.checkpoints.CheckpointSaver", module.CheckpointSaver)
    for name in ("load_checkpoint", "newest_checkpoint"):
        monkeypatch.setattr(f"fastsft.trainer.resume.{name}", getattr(module, name))
    return module


def cuda_missing() -> str | None:
    """Why a test that needs a GPU cannot run here; None when it can."""
    if not torch.cuda.is_available():
        return "torch sees no GPU"
    from fastsft import _C

    return None if _C.with_cuda else "fastsft was built without CUDA kernels"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") is None:
        return
    reason = cuda_missing()
    if reason is None:
        return
    if os.environ.get("FASTSFT_REQUIRE_CUDA") == "1":
        pytest.fail(f"FASTSFT_REQUIRE_CUDA=1, but {reason}", pytrace=False)
    pytest.skip(reason)


def must_run(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Fail what was skipped for a missing package, if FASTSFT_REQUIRE_EXTRAS=1."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
    if report.skipped and "could not import" in reason and os.environ.get("FASTSFT_REQUIRE_EXTRAS") == "1":
        report.outcome, report.longrepr = "failed", f"FASTSFT_REQUIRE_EXTRAS=1, but {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[Any]:
    report = yield
    must_run(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[Any]:
    report = yield
    must_run(report)
    return report


def mark_thorough(items: list[pytest.Item]) -> None:
    """`thorough`, for the variants of `variants(...)` and `covering` tests that the suite leaves out."""
    products: dict[str, list[pytest.Item]] = {}
    for item in items:
        chosen = item.get_closest_marker("variants")
        if chosen is not None and not any(word in item.name for word in chosen.args):
            item.add_marker(pytest.mark.thorough)
        elif item.get_closest_marker("covering") is not None:
            products.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for product in products.values():
        kept = covering([_values(item) for item in product])
        for place, item in enumerate(product):
            if place not in kept:
                item.add_marker(pytest.mark.thorough)


def _values(item: pytest.Item) -> set[Any]:
    callspec = item.callspec  # type: ignore[attr-defined]
    return {(name, repr(value)) for name, value in callspec.params.items()}


def covering(cases: list[set[Any]]) -> set[int]:
    """Places of cases that hold together every value that any case holds; the richest first."""
    missing, kept = set().union(*cases), set()
    while missing:
        place = max(range(len(cases)), key=lambda each: len(cases[each] & missing))
        kept.add(place)
        missing -= cases[place]
    return kept


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long tests run only when asked for: `-m chaos`, as long as they take, and `-m thorough`."""
    mark_thorough(items)
    expression = config.getoption("markexpr")
    if "chaos" in expression:
        for item in items if config.pluginmanager.hasplugin("timeout") else []:
            if item.get_closest_marker("chaos"):
                item.add_marker(pytest.mark.timeout(0))
    waiting = [name for name in ("chaos", "thorough") if name not in expression]
    kept: list[pytest.Item] = []
    late: list[pytest.Item] = []
    for item in items:
        (late if any(item.get_closest_marker(name) for name in waiting) else kept).append(item)
    if late:
        config.hook.pytest_deselected(items=late)
        items[:] = kept
