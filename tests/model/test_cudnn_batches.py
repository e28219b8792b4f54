"""Batches for cuDNN: the longest conversation first, at most two ranges, few shapes, known before the run.

No GPU is needed: the CPU's engine gets the same batches, and its attention does not read cuDNN's lists.
"""

from __future__ import annotations

import json
import math
import operator
import random
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engines import train_step
from fastsft import _C
from runs import random_dataset
from tiny_models import make_engine, write_model

LENGTHS = Path(__file__).parents[2] / "benchmarks" / "conversation_lengths.json"
HEADS = (32, 8, 128)  # grouped heads of Llama 3


class Batches(TorchDispatchMode):
    """Records the lengths, the lists and the shapes that each call of attention gets."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[list[int], torch.Tensor, list[int]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.fastsft.attention.default:
            lists, shapes = (args[10], list(args[11])) if len(args) > 11 else (torch.tensor([]), [])
            self.seen.append((args[1].diff().tolist(), lists.clone(), shapes))
        return func(*args, **(kwargs or {}))


def divided(lengths: list[int], heads: tuple[int, int, int] = HEADS) -> tuple[torch.Tensor, list[int]]:
    lists, shapes = torch.ops.fastsft.divide_attention(lengths, *heads)
    return lists, shapes


def ranges_of(lists: torch.Tensor, shapes: list[int]) -> list[tuple[int, int, list[torch.Tensor]]]:
    """Return conversations, longest, and the four lists of each range; each list begins at 16 bytes."""
    ranges, at = [], 0
    for conversations, longest in zip(shapes[::2], shapes[1::2], strict=True):
        parts = []
        for size in (conversations, *[conversations + 1] * 3):
            parts.append(lists[at : at + size])
            at += -(-size // 4) * 4
        ranges.append((conversations, longest, parts))
    assert at == len(lists)
    return ranges


@pytest.mark.parametrize("lengths", [[7], [2048] * 4, [2000, *[100] * 60], [3, 900, 1, 40, 2], [5] * 300])
def test_lists_describe_each_conversation_once(lengths: list[int]) -> None:
    heads, keys, size = HEADS
    lists, shapes = divided(lengths)
    starts, done = [0, *accumulate(lengths)], 0
    for conversations, longest, (counts, *offsets) in ranges_of(lists, shapes):
        mine = counts.tolist()
        here = sum(length > 0 for length in mine)
        assert mine == lengths[done : done + here] + [0] * (conversations - here)
        assert max(mine) <= longest and conversations.bit_count() == longest.bit_count() == 1
        begins = starts[done : done + here + 1] + [starts[done + here]] * (conversations - here)
        for listed, width in zip(offsets, ((heads + 2 * keys) * size, heads * size, heads), strict=True):
            assert listed.tolist() == [begin * width for begin in begins]
        done += here
    assert done == len(lengths) and len(shapes) <= 4


def test_full_rows_are_one_call_and_a_long_one_is_apart() -> None:
    assert divided([2047] * 4)[1] == [4, 2048]
    assert divided([2000, *[100] * 60])[1] == [1, 2048, 64, 128]


@pytest.mark.parametrize("heads", [(32, 8, 128), (32, 32, 128)])
def test_a_third_call_where_two_would_pad_too_much(heads: tuple[int, int, int]) -> None:
    """A call is padded to at most 4.04 times the micro-batch's tokens; above, flash attention computes it."""
    assert divided([4105, 838, 656, 407, 394, 314, *[105] * 13], heads)[1] == [1, 8192, 2, 1024, 16, 512]
    assert divided([31] * 64, heads)[1] == [32, 128] * 2  # one call: 8,192 for 1,984
    assert divided([32] * 64, heads)[1] == [64, 128]  # 8,192 for 2,048


def test_no_call_has_only_empty_conversations() -> None:
    for lengths in ([0, 256, 0, 244, 0], [0, 0, 0, 0, 5], [300, 0, 0], [0, 0]):
        starts, found = accumulate(lengths, initial=0), []
        for _, _, (counts, rows, *_) in ranges_of(*divided(lengths, (1, 1, 1))):
            here = [(int(row) // 3, int(count)) for row, count in zip(rows, counts, strict=False) if count]
            assert here
            found += here
        assert found == [(start, length) for start, length in zip(starts, lengths, strict=False) if length]


@pytest.mark.parametrize(
    ("lengths", "heads", "says"),
    [
        ([1], (0, 0, 0), "0 heads are not a multiple of 0 key/value heads"),
        ([1], (4, 2, 0), "head_dim is 0, expected 1 or more"),
        ([1], (2**40, 2**40, 2**40), "expected at most 1048576 of each"),
        ([7, -5], (4, 2, 8), "a conversation of -5 tokens after 7, expected 0 or more"),
        ([2**40], (4, 2, 8), "a conversation of 1099511627776 tokens after 0"),
        ([2**31 - 1, 10], (4, 2, 8), "a conversation of 10 tokens after 2147483647, .* 2\\^31 - 1 in all"),
    ],
)
def test_impossible_lengths_are_refused(lengths: list[int], heads: tuple[int, int, int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        divided(lengths, heads)


def test_no_lists_when_offsets_pass_32_bits() -> None:
    lists, shapes = divided([2**20] * 4, (128, 128, 128))
    assert len(lists) == len(shapes) == 0


def micro_batches(tokens: int, longest: int = 2048) -> list[list[int]]:
    """Fill micro-batches with the recorded lengths in eight random orders."""
    recorded, batches = json.loads(LENGTHS.read_text())["multi_turn"], []
    for seed in range(8):
        order = [min(length, longest) for length in recorded]
        random.Random(seed).shuffle(order)
        batches.append([order[0]])
        for length in order[1:]:
            if sum(batches[-1]) + length > tokens:
                batches.append([])
            batches[-1].append(length)
    return batches


def one_call(lengths: list[int]) -> tuple[int, int]:
    """Return the shape of one call in any order, in finer steps: 8, 32 conversations and 256 tokens."""
    count = len(lengths)
    step = 1 if count <= 8 else 8 if count <= 64 else 32
    return -(-count // step) * step, -(-max(lengths) // 256) * 256


@pytest.mark.parametrize("tokens", [4096, 8192, 16384])
def test_recorded_lengths_need_few_shapes_and_no_other_kernel(tokens: int) -> None:
    """Grouped heads take 8 bytes of scratch per padded token and query element; the limit is 32."""
    shapes, single, over, over_single = set(), set(), 0, 0
    batches = micro_batches(tokens)
    for lengths in batches:
        found = divided(sorted(lengths, reverse=True))[1]
        ranges = list(zip(found[::2], found[1::2], strict=True))
        limit = 32 * 1.01 * sum(lengths)
        over += any(8 * conversations * longest > limit for conversations, longest in ranges)
        shapes |= set(ranges)
        conversations, longest = one_call(lengths)
        over_single += 8 * conversations * longest > limit
        single.add((conversations, longest))
    assert over == 0 and len(shapes) < len(single)
    assert over_single > len(batches) / 10  # what flash attention would compute with one call


@pytest.mark.parametrize("tokens", [4096, 8192, 16384])
@pytest.mark.parametrize(("mean", "spread"), [(566, 1.5), (100, 1.0), (40, 0.8)])
def test_long_tails_need_no_other_kernel(tokens: int, mean: int, spread: float) -> None:
    """Lengths up to a micro-batch, of a logarithmic normal distribution. Less than a tile is not divided."""
    draw, batches = random.Random(1), [[1]]
    for _ in range(3000):
        length = min(1 + int(draw.lognormvariate(math.log(mean) - spread**2 / 2, spread)), tokens)
        if sum(batches[-1]) + length > tokens:
            batches.append([])
        batches[-1].append(length)
    for lengths in batches[:-1]:
        shapes = divided(sorted(lengths, reverse=True))[1]
        largest = max(map(operator.mul, shapes[::2], shapes[1::2]))
        assert len(shapes) <= 6 and (largest <= 4.04 * sum(lengths) or sum(lengths) < 32), lengths


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tied", "tied")


def test_longest_first_changes_no_result(model: Path) -> None:
    """But for the order of sums: losses, norms and all gradients of two micro-batches, in float32."""
    engines = [make_engine(model) for _ in range(2)]
    engines[1].use_cudnn(True)
    dataset = random_dataset(24, engines[0].vocab_size, 40)
    halves = np.array_split(np.arange(24), 2)
    weights = [np.linspace(0.1, 1, len(half)) / 300 for half in halves]
    with Batches() as batches:
        gradients = [engine.gradients(dataset, halves[0], weights[0]) for engine in engines]
    (plain, none, no_shapes), (ordered, lists, shapes) = batches.seen[0], batches.seen[-1]
    assert plain != ordered == sorted(plain, reverse=True)
    assert len(none) == len(no_shapes) == 0 and len(shapes) in (2, 4)
    assert shapes == divided(ordered)[1] and len(lists) > 0
    assert gradients[1][0] == pytest.approx(gradients[0][0], rel=1e-12)
    for name, expected in gradients[0][1].items():
        assert ((gradients[1][1][name] - expected).norm() / expected.norm()).item() <= 1e-6, name
    results = [
        [train_step(engine, dataset, halves, weights, learning_rate=1e-3) for _ in range(3)]
        for engine in engines
    ]
    for ours, expected in zip(*results, strict=True):
        assert ours.loss == pytest.approx(expected.loss, rel=1e-6)
        assert ours.grad_norm == pytest.approx(expected.grad_norm, rel=1e-5)


def test_logits_are_computed_as_in_training(model: Path) -> None:
    """With cuDNN's lists, in the order of the rows; on a CPU to the bit as without."""
    engine = make_engine(model)
    dataset = random_dataset(6, engine.vocab_size, 40)
    rows, lengths = np.arange(6), [3, 0, 9, 1]
    ids = np.arange(sum(lengths))
    plain = engine.row_logits(dataset, rows), engine.logits(ids, lengths)
    engine.use_cudnn(True)
    with Batches() as batches:
        found = engine.row_logits(dataset, rows), engine.logits(ids, lengths)
    assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))
    assert {tuple(seen) for seen, _, _ in batches.seen} == {tuple(dataset.lengths()), tuple(lengths)}
    for seen, lists, shapes in batches.seen:
        assert shapes == divided(seen)[1] != [] and len(lists) > 0


def test_shapes_for_flash_are_not_compiled() -> None:
    """Three thousand conversations of 5 tokens: in three calls one has 2,048 of up to 128 at least."""
    counts = np.full(3000, 5, dtype=np.int64)
    source = _C.StepSource(counts, counts - 1, batch_size=3000, micro_batch_tokens=15000)
    summary = source.summary(np.arange(3000, dtype=np.int64), 1)
    assert summary.micro_batches == 1 and summary.attention_shapes == []


def test_shapes_are_known_before_the_run(model: Path) -> None:
    """The summary of a run's packing has every shape that the engine's batches have."""
    engine = make_engine(model)
    engine.use_cudnn(True)
    dataset = random_dataset(120, engine.vocab_size, 200)
    counts = dataset.target_counts()
    source = _C.StepSource(dataset.lengths(), counts, batch_size=10, accumulation=2, micro_batch_tokens=600)
    order = np.arange(120, dtype=np.int64)
    known = source.summary(order, 6).attention_shapes
    known_ranges = set(zip(known[::2], known[1::2], strict=True))
    used = set()
    with Batches() as batches:
        for step in range(6):
            plan = source.plan(order, step, 0)
            train_step(engine, dataset, plan.micro_batches, plan.weights, learning_rate=1e-3)
    for _, _, shapes in batches.seen:
        used |= set(zip(shapes[::2], shapes[1::2], strict=True))
    assert len(used) > 1 and used <= known_ranges
    assert engine.compile_attention(known) == 0  # nothing to do on a CPU
    with pytest.raises(ValueError, match="cudnn_shapes has 3 numbers"):
        engine.compile_attention([1, 128, 2])
