"""--attention_kernel: what is refused, what `auto` takes, and what a resumed run keeps."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import reference
from fastsft import _C, TrainingArguments
from fastsft.checkpoint import run_identity
from fastsft.model import attention_kernel
from fastsft.model.attention_kernel import (
    Choice,
    Heads,
    Trial,
    difference,
    faster_kernel,
    select_attention_kernel,
    trial,
)
from fastsft.planning.gpus import gpu_named
from fastsft.planning.memory_plan import BatchShape, EngineSettings, plan_memory
from fastsft.planning.time_model import predict

HEADS = Heads(4, 2, 16)
CPU = torch.device("cpu")


class FakeEngine:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[bool] = []

    def use_cudnn(self, use: bool) -> None:
        self.told.append(use)


def arguments(device: str = "cuda", **values: Any) -> Any:
    """What the choice reads of TrainingArguments."""
    usual = {"bf16": True, "fp16": False, "full_determinism": False, "attention_kernel": "auto"}
    return SimpleNamespace(**{**usual, **values, "device": torch.device(device)})


def model(kind: str = "native", **more: object) -> Any:
    config = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64, **more}
    return SimpleNamespace(engine_kind=kind, engine_config=lambda: config)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"attention_kernel": "cudnn"}, "needs --bf16 True or --fp16 True"),
        ({"attention_kernel": "fa3"}, "needs --bf16 True or --fp16 True"),
        ({"attention_kernel": "cudnn", "bf16": True, "full_determinism": True}, "use flash2"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, flags: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        TrainingArguments(output_dir=str(tmp_path), use_cpu=True, **flags)


def test_cpus_and_transformers_have_their_own() -> None:
    engine: Any = FakeEngine()
    assert select_attention_kernel(arguments("cpu"), model(), engine) is None
    assert select_attention_kernel(arguments(), model("generic"), engine) is None
    with pytest.raises(ValueError, match="transformers does: leave it out"):
        select_attention_kernel(arguments(attention_kernel="cudnn"), model("generic"), engine)
    assert engine.told == []


def test_a_named_kernel_is_used_without_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_kernel, "faster_kernel", None)
    engine: Any = FakeEngine()
    for name in ("flash2", "cudnn"):
        assert select_attention_kernel(arguments(attention_kernel=name), model(), engine) == (name, "", True)
    assert engine.told == [False, True]


def test_auto_stays_with_flash_where_cudnn_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_kernel, "faster_kernel", None)
    engine: Any = FakeEngine()
    choice = select_attention_kernel(arguments(full_determinism=True), model(), engine)
    assert choice is not None and choice.name == "flash2" and not any(engine.told)


def test_own_kernels_have_no_choice() -> None:
    """float32, and scores with a cap."""
    engine: Any = FakeEngine()
    assert select_attention_kernel(arguments(bf16=False), model(), engine) is None
    assert select_attention_kernel(arguments(), model(attn_logit_softcapping=50.0), engine) is None
    assert engine.told == []


def test_all_ranks_take_what_the_first_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(attention_kernel, "faster_kernel", lambda *_: Choice("flash2", "of this rank", True))
    first = Choice("cudnn", "of rank 0", True)
    monkeypatch.setattr(attention_kernel, "gather_objects", lambda own: [first, own])
    engine: Any = FakeEngine()
    choice = select_attention_kernel(arguments(), model(), engine)
    assert choice == first and engine.told[-1]
    assert "of rank 0" in "".join(capsys.readouterr())


@pytest.mark.skipif(torch.cuda.is_available(), reason="the package may be there")
def test_a_missing_package_is_named() -> None:
    with pytest.raises(ValueError, match=r"--attention_kernel fa3: .*flash_attn_3.*flash2"):
        select_attention_kernel(arguments(attention_kernel="fa3"), model(), FakeEngine())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seconds", "factor", "name", "line"),
    [
        (0.5, 1.0, "cudnn", "attention by cudnn: cudnn takes 500.00 ms, flash2 1000.00 ms for 8,192 tokens"),
        (0.99, 1.0, "flash2", "attention by flash2: cudnn takes 990.00 ms"),
        (0.5, 1.01, "cudnn", "attention by cudnn"),
        (0.5, 1.2, "flash2", "results of cudnn are up to 20% away in a token (rounding: at most 10%)"),
        (0.5, torch.nan, "flash2", "results of cudnn are up to nan% away"),
    ],
)
def test_auto_takes_the_faster_that_agrees(
    monkeypatch: pytest.MonkeyPatch, seconds: float, factor: float, name: str, line: str
) -> None:
    ones = torch.ones(3, 128)
    out = ones[:, :64]

    def fake(*_: object, use_cudnn: bool, repeats: int = 5, dirty: bool = False) -> Trial:
        return Trial(seconds, out, ones * factor) if use_cudnn else Trial(1.0, out, ones)

    monkeypatch.setattr(attention_kernel, "trial", fake)
    choice = faster_kernel(HEADS, torch.bfloat16, CPU)
    assert choice.name == name and choice.agrees == (0.9 < factor < 1.1)
    assert line in choice.line


@pytest.mark.parametrize("broken", [0, 1])
def test_auto_takes_flash_if_one_of_two_passes_of_cudnn_is_wrong(
    monkeypatch: pytest.MonkeyPatch, broken: int
) -> None:
    """Scratch that a pass before has used is not zero."""
    ones = torch.ones(3, 128)

    def fake(*_: object, use_cudnn: bool, repeats: int = 5, dirty: bool = False) -> Trial:
        assert dirty or not use_cudnn or repeats == 5
        return Trial(1.0, ones[:, :64], ones * (torch.nan if use_cudnn and repeats == broken else 1))

    monkeypatch.setattr(attention_kernel, "trial", fake)
    choice = faster_kernel(HEADS, torch.bfloat16, CPU)
    assert choice.name == "flash2" and not choice.agrees


def test_auto_takes_flash_if_cudnn_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    ones = torch.ones(3, 128)

    def fake(*_: object, use_cudnn: bool, repeats: int = 5, dirty: bool = False) -> Trial:
        if use_cudnn:
            raise RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED\nmore")
        return Trial(1.0, ones[:, :64], ones)

    monkeypatch.setattr(attention_kernel, "trial", fake)
    choice = faster_kernel(HEADS, torch.bfloat16, CPU)
    assert choice.name == "flash2" and not choice.agrees
    assert choice.line.endswith("cannot be used here (cuDNN error: CUDNN_STATUS_NOT_INITIALIZED)")


def test_the_trial_has_the_shapes_of_training() -> None:
    """Two calls, each with some empty conversations, the second with the least number of tokens."""
    lengths = attention_kernel._UNEVEN
    assert list(lengths) == sorted(lengths, reverse=True)
    lists, shapes = attention_kernel.cudnn_inputs(HEADS, lengths, CPU)
    assert shapes == [16, 1024, 32, 128]
    second = 16 + 3 * 20  # 16 lengths, and thrice 17 offsets, rounded up to fours
    assert lists[:16].tolist() == [*lengths[:13], 0, 0, 0]
    assert lists[second : second + 32].tolist() == [*lengths[13:], *[0] * 12]


@pytest.mark.parametrize("computes", [0, 2, 3])
def test_shapes_are_compiled_one_by_one(computes: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Signals are heard between them. Nothing is printed if cuDNN computes none."""
    told: list[list[int]] = []

    def compiled(shape: list[int]) -> int:
        told.append(shape)
        return int(len(told) <= computes)

    engine: Any = SimpleNamespace(compile_attention=compiled)
    attention_kernel.compile_attention(engine, [4, 2048, 16, 1024, 32, 128])
    assert told == [[4, 2048], [16, 1024], [32, 128]]
    said = "".join(capsys.readouterr())
    if computes == 0:
        assert said == ""
    else:
        assert "compiling 3 shapes" in said and f"compiled {computes} shapes in 0 s" in said
        assert ("flash2 computes the others" in said) == (computes == 2)


def test_the_trial_computes_attention() -> None:
    """On a CPU, whose op has one kernel: near the formula, and equal both times."""
    heads, lengths = Heads(4, 2, 16, window=40), (100, 1, 57, 2)
    one, other = (trial(heads, torch.bfloat16, CPU, lengths, use_cudnn=use) for use in (False, True))
    assert one.seconds > 0 and difference(heads, one, other) == 0
    assert difference(heads, one, exact_trial(heads, lengths)) < 0.05


def exact_trial(heads: Heads, lengths: tuple[int, ...]) -> Trial:
    """The formula in float64 over the numbers of `trial`."""
    tokens, cu, generator = sum(lengths), [0, *accumulate(lengths)], torch.Generator().manual_seed(0)
    sizes = [heads.queries, heads.keys, heads.keys]
    qkv = torch.randn(tokens, sum(sizes) * heads.size, generator=generator).bfloat16().double()
    grad_out = torch.randn(tokens, heads.queries * heads.size, generator=generator).bfloat16().double()
    q, k, v = qkv.requires_grad_().view(tokens, -1, heads.size).split(sizes, dim=1)
    out = reference.attention(q, k, v, cu, window=heads.window or None).flatten(1)
    out.backward(grad_out)
    assert qkv.grad is not None
    return Trial(0.0, out.detach(), qkv.grad)


@pytest.mark.parametrize("part", [slice(0, 64), slice(64, 96), slice(96, 128)], ids=["dq", "dk", "dv"])
def test_one_wrong_row_is_seen(part: slice) -> None:
    """A sum over all would not see it: the last row of a conversation is a small part."""
    lengths = (100, 1, 57, 2)
    right = trial(HEADS, torch.bfloat16, CPU, lengths, use_cudnn=False, repeats=0)
    wrong = right._replace(grad=right.grad.clone())
    wrong.grad[99, part] = 0
    assert difference(HEADS, wrong, right) > 2 * attention_kernel._MOST_DIFFERENCE
    not_written = right._replace(out=right.out.clone())
    not_written.out[157, 3] = torch.nan
    assert not difference(HEADS, not_written, right) <= attention_kernel._MOST_DIFFERENCE


@pytest.mark.parametrize("saved", ["flash2", "cudnn"])
def test_a_resumed_run_keeps_what_auto_chose(saved: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = "cudnn" if saved == "flash2" else "flash2"
    kept: list[str] = []
    agrees = True

    def keep(name: str) -> bool:
        if agrees:
            kept.append(name)
        return agrees

    warned: list[tuple[object, ...]] = []
    monkeypatch.setattr(run_identity, "warn_of_change", lambda *facts: warned.append(facts))
    trainer: Any = SimpleNamespace(
        args=arguments(), model=SimpleNamespace(attention_kernel=now, restore_attention_kernel=keep)
    )
    run_identity._keep_attention_kernel(trainer, {"attention_kernel": saved}, "dir")
    assert kept == [saved] and not warned
    trainer.args = arguments(attention_kernel=now)
    run_identity._keep_attention_kernel(trainer, {"attention_kernel": saved}, "dir")
    assert kept == [saved] and warned == [("dir", "attention_kernel", saved, now)]
    run_identity._keep_attention_kernel(trainer, {}, "dir")  # of an older release
    assert len(warned) == 1
    trainer.args, agrees = arguments(), False  # this time the results were wrong
    run_identity._keep_attention_kernel(trainer, {"attention_kernel": saved}, "dir")
    assert kept == [saved] and len(warned) == 2


def test_the_plan_counts_its_scratch_and_its_speed() -> None:
    config = (Path(__file__).parents[2] / "benchmarks" / "configs" / "vicuna-7b.json").read_text()
    state = _C.StateOptions(compute_dtype="bfloat16", master_dtype="split")
    plans = {}
    for kernel in ("flash2", "cudnn", "auto"):
        setting = EngineSettings(config, state, device="cuda", gpu=gpu_named("H200"), attention_kernel=kernel)
        plans[kernel] = plan_memory(setting, "none", 8192, BatchShape.full(8192, 2048))
    elements = 8192 * 4096
    scratch = 16 * (elements + elements // 100) + (1 << 20)  # the limit: four times the queries in float32
    assert plans["cudnn"].outside == plans["auto"].outside == max(scratch, plans["flash2"].outside)
    gpu = gpu_named("H200")
    assert gpu is not None
    flash, cudnn, auto = (predict(plans[kernel], gpu) for kernel in ("flash2", "cudnn", "auto"))
    assert auto == flash  # nothing is measured yet
    # benchmarks: 290 and 225 TFLOP/s become 540 and 335; copies of a layer's rows and sums are not made.
    copies = 32 * (2 * 2 * 4 * 4096 + 2 * 4 * 32) / (gpu.bandwidth * 0.76)
    assert flash.seconds["element-wise"] - cudnn.seconds["element-wise"] == pytest.approx(copies)
    assert cudnn.seconds["attention"] / flash.seconds["attention"] == pytest.approx(
        (1 / 0.546 + 2.5 / 0.339) / (1 / 0.293 + 2.5 / 0.2275)
    )
