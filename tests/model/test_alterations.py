"""Models that a script changed: equal to transformers' Trainer, or refused by object and attribute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from altered_models import REFUSED, Alter
from altered_objects import REFUSED_OBJECTS
from altered_runs import load, our_losses, ours, their_losses
from equal_models import EQUAL
from native_families import CONFIGS


def altered(alter: Alter, model: Any, patch: pytest.MonkeyPatch) -> Any:
    made = alter(model, patch)
    return model if made is None else made


@pytest.mark.parametrize("case", [*REFUSED, *REFUSED_OBJECTS])
def test_what_would_compute_something_else_is_refused(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alter, message = {**REFUSED, **REFUSED_OBJECTS}[case]
    model = altered(alter, load(tmp_path), monkeypatch)
    with pytest.raises(ValueError, match=message):
        ours(model, tmp_path)


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=pytest.mark.thorough) if c == "a compiled layer" else c for c in EQUAL]
)
def test_what_computes_the_same_is_trained(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = [load(tmp_path), load(tmp_path)]
    first, second = (altered(EQUAL[case], model, monkeypatch) for model in loaded)
    expected = their_losses(first, tmp_path)
    assert our_losses(ours(second, tmp_path)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.covering
@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_untouched_models_of_every_family(kind: str, attention: str, tmp_path: Path) -> None:
    first, second = (load(tmp_path, kind, attn_implementation=attention) for _ in range(2))
    expected = their_losses(first, tmp_path)
    assert our_losses(ours(second, tmp_path)) == pytest.approx(expected, rel=1e-5)


def test_the_bookkeeping_of_torch_compile_is_no_alteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch._dynamo wraps Module.__init__ when it first compiles."""
    mutation_guard = pytest.importorskip("torch._dynamo.mutation_guard")
    monkeypatch.setattr(torch.nn.Module, "__init__", torch.nn.Module.__init__)
    monkeypatch.setattr(torch.nn.Module, "__setstate__", torch.nn.Module.__setstate__)
    mutation_guard.install_generation_tagging_init()
    ours(load(tmp_path), tmp_path)
