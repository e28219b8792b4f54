"""A machine that must have a GPU cannot pass by skipping; long fault tests wait until they are asked for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import conftest


def marked(*names: str) -> SimpleNamespace:
    added: list[pytest.MarkDecorator] = []
    return SimpleNamespace(
        get_closest_marker=lambda name: name if name in names else None, added=added, add_marker=added.append
    )


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "cuda_missing", lambda: "torch sees no GPU")


@pytest.mark.usefixtures("no_gpu")
def test_gpu_tests_skip_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FASTSFT_REQUIRE_CUDA", raising=False)
    with pytest.raises(pytest.skip.Exception, match="torch sees no GPU"):
        conftest.pytest_runtest_setup(marked("cuda"))
    conftest.pytest_runtest_setup(marked())


@pytest.mark.usefixtures("no_gpu")
def test_gpu_tests_fail_where_a_gpu_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTSFT_REQUIRE_CUDA", "1")
    with pytest.raises(pytest.fail.Exception, match="torch sees no GPU"):
        conftest.pytest_runtest_setup(marked("cuda"))


@pytest.mark.parametrize(("expression", "kept"), [("", 1), ("not cuda", 1), ("chaos", 2)])
def test_chaos_runs_only_by_name(expression: str, kept: int) -> None:
    deselected: list[object] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: deselected.extend(items))
    plugins = SimpleNamespace(hasplugin=lambda name: name == "timeout")
    config = SimpleNamespace(getoption=lambda name: expression, hook=hook, pluginmanager=plugins)
    chaos, short = marked("chaos"), marked()
    items = [chaos, short]
    conftest.pytest_collection_modifyitems(config, items)
    assert (len(items), len(deselected)) == (kept, 2 - kept)
    assert [mark.args for mark in chaos.added] == [(0,)] * (kept - 1) and not short.added
