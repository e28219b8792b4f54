"""A machine that must have a GPU cannot pass by skipping; long tests wait until they are asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

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


def selected(expression: str, items: list[SimpleNamespace]) -> list[SimpleNamespace]:
    deselected: list[SimpleNamespace] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: deselected.extend(items))
    plugins = SimpleNamespace(hasplugin=lambda name: name == "timeout")
    config = SimpleNamespace(getoption=lambda name: expression, hook=hook, pluginmanager=plugins)
    kept = list(items)
    conftest.pytest_collection_modifyitems(config, kept)
    assert len(kept) + len(deselected) == len(items)
    return kept


@pytest.mark.parametrize(("expression", "kept"), [("", 1), ("not cuda", 1), ("chaos", 2), ("thorough", 2)])
def test_long_tests_run_only_by_name(expression: str, kept: int) -> None:
    late, short = marked(expression if kept == 2 else "chaos"), marked()
    assert len(selected(expression, [late, short])) == kept
    assert [mark.args for mark in late.added] == [(0,)] * (expression == "chaos") and not short.added


class Case:
    """One case of a parametrised test; `params` are the values of its parameters."""

    def __init__(self, mark: pytest.MarkDecorator, name: str, **params: int) -> None:
        self.marks = [mark.mark]
        self.name, self.nodeid = name, f"file::{name}"
        self.callspec = SimpleNamespace(params=params)

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next((mark for mark in self.marks if mark.name == name), None)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks.append(mark.mark)


def test_a_covering_selection_has_every_value() -> None:
    cases: list[Any] = [
        Case(pytest.mark.covering, f"test[{i}-{j}-{k}]", i=i, j=j, k=k)
        for i in range(3) for j in range(4) for k in range(2)
    ]  # fmt: skip
    kept = selected("", cases)
    assert len(kept) == 4
    for name, count in {"i": 3, "j": 4, "k": 2}.items():
        assert {case.callspec.params[name] for case in kept} == set(range(count))
    assert len(selected("thorough", cases)) == 24


def test_named_variants_are_in_the_suite() -> None:
    cases: list[Any] = [Case(pytest.mark.variants("qwen2"), f"test[{name}]") for name in ("llama", "qwen2")]
    assert [case.name for case in selected("", cases)] == ["test[qwen2]"]
    assert len(selected("thorough", cases)) == 2


@pytest.mark.parametrize("required", ["0", "1"])
def test_a_package_that_is_missing_fails_where_all_are_required(
    required: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTSFT_REQUIRE_EXTRAS", required)
    reports: list[Any] = [
        SimpleNamespace(outcome="skipped", skipped=True, longrepr=("file", 1, f"Skipped: {reason}"))
        for reason in ("could not import 'ray'", "torch sees no GPU")
    ]
    for report in reports:
        conftest.must_run(report)
    assert [report.outcome for report in reports] == [("skipped", "failed")[required == "1"], "skipped"]
