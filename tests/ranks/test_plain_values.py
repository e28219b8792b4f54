"""Values that ranks exchange: they arrive as they were, and bytes of a stranger make nothing run."""

from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastsft.checkpoint.save import Report
from fastsft.model.attention_kernel import Choice
from fastsft.ranks.plain_values import from_bytes, to_bytes
from fastsft.runtime.random_state import RandomState

VALUES = [
    None, True, 3, -(1 << 70), 0.1, float("inf"), "text \udc80", b"\0bytes", [1, [2]], (), (1, (2, "tuple")),
    {1, 2}, frozenset({"a"}), {"a": 1, (1, 2): [3], None: {}}, Path("/a/b"), Choice("flash2", "line", True),
    Report(error="no space", user=True), torch.bfloat16, np.float32(1.5), np.int64(7),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_arrives_as_it_was(value: Any) -> None:
    found = from_bytes(to_bytes(value))
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
@pytest.mark.parametrize("shape", [(), (3,), (0, 4), (2, 3)])
def test_tensors(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    value = torch.ones(shape).to(dtype)
    found = from_bytes(to_bytes({"a": value}))["a"]
    assert found.dtype == dtype and found.shape == value.shape and torch.equal(found, value)


@pytest.mark.parametrize("value", [np.zeros((2, 0)), np.arange(6.0).reshape(2, 3).T, np.array(["a", "bc"])])
def test_arrays(value: Any) -> None:
    found = from_bytes(to_bytes(value))
    assert found.dtype == value.dtype and np.array_equal(found, value)
    found[...] = value  # writable, as a gathered array always was


@pytest.mark.parametrize(("value", "expected"), [
    (torch.ones(2, 3).max(1), (torch.ones(2), torch.zeros(2, dtype=torch.int64))), (torch.Size([2]), (2,)),
])  # fmt: skip
def test_tuples_of_other_libraries_arrive_as_tuples(value: Any, expected: Any) -> None:
    found = from_bytes(to_bytes(value))
    assert type(found) is tuple
    assert all(
        torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(found, expected, strict=True)
    )


class Word(str):
    """A text of a class of its own."""


def test_objects_that_are_texts_or_numbers_arrive_as_these() -> None:
    found = from_bytes(to_bytes([Word("a"), np.str_(""), np.float64(2.5)]))
    assert found == ["a", "", 2.5] and type(found[0]) is str


def test_a_random_state() -> None:
    state = RandomState.now()
    found = from_bytes(to_bytes(state))
    assert type(found) is RandomState and found.python == state.python
    assert torch.equal(found.torch, state.torch) and np.array_equal(found.numpy[1], state.numpy[1])


def test_a_kind_of_dictionary_arrives_as_a_dictionary() -> None:
    assert from_bytes(to_bytes(OrderedDict(a=1))) == {"a": 1}


@pytest.mark.parametrize("value", [object(), os.system, ValueError("x"), np.array([object()]), {1: print}])
def test_other_objects_are_refused_by_their_class(value: object) -> None:
    with pytest.raises(TypeError, match="ranks cannot exchange a"):
        to_bytes(value)


class Call:
    """Pickled as a call of os.system."""

    def __init__(self, command: str) -> None:
        self._command = command

    def __reduce__(self) -> Any:
        return os.system, (self._command,)


@pytest.mark.parametrize("wrap", [lambda call: call, lambda call: ("dict", [(1, call)])])
def test_a_pickle_of_a_stranger_runs_nothing(tmp_path: Path, wrap: Any) -> None:
    data = pickle.dumps(wrap(Call(f"touch {tmp_path / 'mark'}")))
    with pytest.raises(ValueError, match="which plain data does not need"):
        from_bytes(data)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("value", [
    ("data", "os", "_wrap_close", []), ("data", "fastsft.ranks.plain_values", "sys", []),
    ("named", "collections", "namedtuple", ["a"]), ("enum", "fastsft.no.module", "X", "Y"),
    ("data", "fastsft.ranks.process_group", "RollCall", []), ("unknown", 1), ("dtype", "load"), ("path", 1),
])  # fmt: skip
def test_tags_of_a_stranger_name_data_classes_only(value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"ranks cannot exchange|a peer sent"):
        from_bytes(pickle.dumps(value, protocol=4))
