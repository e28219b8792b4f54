"""One object of options from the flags to the strategy, its plan and the engine."""

from __future__ import annotations

import dataclasses
import inspect
import types
from typing import Any

import pytest

from engines import STATE_OPTIONS
from fastsft import _C
from fastsft.arguments.device_fields import (
    STATE_FLAGS,
    PrecisionArguments,
    state_flag_choices,
)
from fastsft.arguments.engine_flags import state_options
from fastsft.arguments.fp8 import FP8_FLAGS, check_fp8, fp8_flags
from fastsft.runtime.devices import missing_fp8


def values_of(options: _C.StateOptions) -> dict[str, Any]:
    return {name: getattr(options, name) for name in STATE_OPTIONS}


def test_every_field_is_seen_with_its_text_and_kept() -> None:
    given = {
        "strategy": "full_shard", "optimizer": "sgd", "compute_dtype": "bfloat16", "grad_dtype": "bfloat16",
        "optim_dtype": "bfloat16", "master_dtype": "split", "offload": True, "frozen_dtype": "nf4",
        "sync_each_batch": False, "tile_tokens": 512, "offload_inputs": True,
        "context_parallel_size": 2, "fp8": "rowwise",
        "fp8_format": "hybrid", "num_layers_at_start_in_bf16": 1, "num_layers_at_end_in_bf16": 2,
        "fp8_wgrad": True, "keep_fp8_weights": True,
    }  # fmt: skip
    options = _C.StateOptions(**given)
    assert values_of(options) == given and set(given) == STATE_OPTIONS
    assert all(inspect.getdoc(getattr(_C.StateOptions, name)) for name in STATE_OPTIONS)
    assert eval(repr(options), {"StateOptions": _C.StateOptions}) == options


def test_equality_and_copies() -> None:
    options = _C.StateOptions(grad_dtype="bfloat16")
    other = options.replace(offload=True)
    assert other != options and other.replace(offload=False) == options
    assert (other.grad_dtype, options.offload) == ("bfloat16", False)
    assert len({options, other, options.replace()}) == 2
    assert options != "StateOptions()"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grad_dtype": "float16"}, 'grad_dtype is "float16", expected "float32" or "bfloat16"'),
        ({"master_dtype": "bfloat16"}, 'master_dtype is "bfloat16", expected "float32" or "split"'),
        ({"frozen_dtype": "fp4"}, 'frozen_dtype is "fp4", expected "compute" or "nf4"'),
    ],
)
def test_other_dtypes_are_refused(change: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _C.StateOptions(**change)
    with pytest.raises(ValueError, match=message):
        _C.StateOptions().replace(**change)
    with pytest.raises(TypeError):
        _C.StateOptions().replace(grad_type="float32")


def test_flags_are_fields_of_the_core() -> None:
    """Their defaults are the core's or follow from --bf16, and it takes every choice."""
    assert set(STATE_FLAGS) < STATE_OPTIONS
    fields = {field.name: field.default for field in dataclasses.fields(PrecisionArguments)}
    for name, choices in state_flag_choices().items():
        assert fields[name] == (None if name == "master_dtype" else choices[0])
        assert getattr(_C.StateOptions(), name) == choices[0]
        for choice in choices:
            assert getattr(_C.StateOptions(**{name: choice}), name) == choice


@pytest.mark.parametrize(("ranks", "strategy"), [(1, "no_shard"), (2, "shard_grad_op")])
def test_arguments_become_options(ranks: int, strategy: str) -> None:
    flags = {name: choices[-1] for name, choices in state_flag_choices().items()}
    args = types.SimpleNamespace(
        bf16=True,
        fp16=False,
        optim="adafactor",
        world_size=ranks,
        sharding_strategy="shard_grad_op",
        offload=True,
        context_parallel_size=1,
        fp8="tensorwise",
        fp8_format=None,
        fp8_wgrad=True,
        num_layers_at_start_in_bf16=1,
        num_layers_at_end_in_bf16=0,
        keep_fp8_weights=True,
        **flags,
    )
    expected = {
        "strategy": strategy,
        "optimizer": "adafactor",
        "compute_dtype": "bfloat16",
        "offload": True,
        "context_parallel_size": 1,
        "fp8": "tensorwise",
        "fp8_format": "hybrid",
        "fp8_wgrad": True,
        "num_layers_at_start_in_bf16": 1,
        "num_layers_at_end_in_bf16": 0,
        "keep_fp8_weights": True,
        **flags,
    }
    expected["frozen_dtype"] = "compute"  # an AdaptedModel's
    # the memory plan's
    expected |= {"sync_each_batch": True, "tile_tokens": 0, "offload_inputs": False}
    assert values_of(state_options(args)) == expected


@pytest.mark.parametrize(
    ("bf16", "given", "expected"),
    [(True, None, "split"), (False, None, "float32"), (True, "float32", "float32")],
)
def test_masters_of_bfloat16_runs_are_split_by_default(bf16: bool, given: str | None, expected: str) -> None:
    args = types.SimpleNamespace(
        bf16=bf16, fp16=False, optim="adamw_torch", world_size=1, sharding_strategy="no_shard", offload=False,
        context_parallel_size=1, grad_dtype="float32", optim_dtype="float32", master_dtype=given,
        keep_fp8_weights=False, **dict.fromkeys(FP8_FLAGS),
    )  # fmt: skip
    assert state_options(args).master_dtype == expected


@pytest.mark.parametrize(
    ("fp8", "given", "expected"),
    [("rowwise", None, "e4m3"), ("tensorwise", None, "hybrid"), ("tensorwise", "e4m3", "e4m3")],
)
def test_output_gradients_have_the_format_of_torchaos_recipe(fp8: str, given: str, expected: str) -> None:
    args = types.SimpleNamespace(
        bf16=True, fp16=False, fp8=fp8, fp8_format=given, fp8_wgrad=False, num_layers_at_start_in_bf16=0,
        num_layers_at_end_in_bf16=0, keep_fp8_weights=False,
    )  # fmt: skip
    assert fp8_flags(args)["fp8_format"] == expected


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"fp8": "rowwise"}, "--fp8 rowwise: expected --bf16 True, .* got float32"),
        ({"fp8": "rowwise", "fp16": True}, "got --fp16 True"),
        ({"bf16": True, "fp8_format": "hybrid"}, "--fp8_format hybrid is for --fp8, which is not given"),
        ({"keep_fp8_weights": True}, "--keep_fp8_weights True is for --fp8, which is not given"),
        ({"fp8_wgrad": True}, "--fp8_wgrad True is for --fp8, which is not given"),
        ({"num_layers_at_end_in_bf16": 1}, "--num_layers_at_end_in_bf16 1 is for --fp8"),
    ],
)
def test_flags_of_fp8_that_do_not_fit_are_refused(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_fp8(PrecisionArguments(**flags))


@pytest.mark.parametrize(
    ("capability", "fp8", "message"),
    [
        ((8, 0), "tensorwise", "expected a GPU of compute capability 8.9 or newer, got 8.0"),
        ((8, 9), "rowwise", "got 8.9; use --fp8 tensorwise"),
        ((10, 0), "rowwise", "got 10.0; use --fp8 tensorwise"),
        ((8, 0), "none", None),
        ((8, 9), "tensorwise", None),
        ((9, 0), "rowwise", None),
    ],
)
def test_gpus_without_products_of_8_bits_are_refused(
    capability: tuple[int, int], fp8: str, message: str | None
) -> None:
    found = missing_fp8(capability, fp8)
    assert found is None if message is None else message in str(found)
