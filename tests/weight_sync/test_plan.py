"""One plan yields names, order and bytes: hash, differences, and the cut into what a broadcast carries."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastsft import _C
from fastsft.weight_sync import SyncPlan, check_same_plan

DTYPES = ["float32", "bfloat16", "float16", "uint8", "int64", "bool", "float64"]
BASE = [("a", "float32", [4, 2]), ("b", "bfloat16", [3]), ("c", "int64", [])]

tensors = st.lists(
    st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 9), max_size=3)), max_size=12
).map(lambda kinds: [(f"t{i}", dtype, shape) for i, (dtype, shape) in enumerate(kinds)])


def nbytes(dtype: str, shape: list[int]) -> int:
    return math.prod(shape) * torch.empty(0, dtype=getattr(torch, dtype)).element_size()


@pytest.mark.parametrize("name", ["bfloat16", "torch.bfloat16", "BF16", torch.bfloat16])
def test_every_spelling_of_a_dtype_is_one_plan(name: Any) -> None:
    plan = SyncPlan([("w", name, (2, 3))])
    assert plan.dtype_names == ["bfloat16"]
    assert plan.metadata() == [("w", "torch.bfloat16", (2, 3))]
    assert plan.hash == SyncPlan([("w", "bfloat16", [2, 3])]).hash
    assert plan.sizes == [12]


@pytest.mark.parametrize("dtype", DTYPES)
def test_room_has_the_planned_dtype(dtype: str) -> None:
    plan = SyncPlan([("w", dtype, [3, 5])])
    room = plan.empty(0)
    assert (str(room.dtype), list(room.shape)) == (f"torch.{dtype}", [3, 5])
    assert plan.total_bytes == room.nbytes


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([("a", "complex256", [1])], 'dtype "complex256": expected a name like'),
        ([("a", "float32", [1]), ("a", "float32", [1])], "tensor a is twice"),
        ([("", "float32", [1])], "without a name"),
        ([("a", "float32", [2**40, 2**40])], "more bytes than 64 bits"),
        ([("a", "float32", [2**61]), ("b", "float32", [2**61]), ("c", "float32", [2**61])], "64 bits"),
    ],
)
def test_impossible_plans_are_refused(wrong: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SyncPlan(wrong)


def test_a_tied_name_needs_its_owner() -> None:
    assert SyncPlan(BASE, {"head": "a"}).tied == {"head": "a"}
    with pytest.raises(ValueError, match="head is tied to z, which is not in the plan"):
        SyncPlan(BASE, {"head": "z"})
    with pytest.raises(ValueError, match="tied tensor b is twice"):
        SyncPlan(BASE, {"b": "a"})


CHANGES: dict[str, tuple[list[Any], dict[str, str], str]] = {
    "name": ([("a", "float32", [4, 2]), ("B", "bfloat16", [3]), ("c", "int64", [])], {},
             "tensor b is missing in theirs"),
    "missing": (BASE[:2], {}, "tensor c is missing in theirs"),
    "more": ([*BASE, ("d", "uint8", [1])], {}, "tensor d is missing in ours"),
    "order": ([BASE[1], BASE[0], BASE[2]], {}, "tensor 0 is a in ours and b in theirs: the order differs"),
    "dtype": ([BASE[0], ("b", "float16", [3]), BASE[2]], {},
              r"tensor b is bfloat16 \[3\] in ours and float16 \[3\] in theirs"),
    "shape": ([("a", "float32", [2, 4]), *BASE[1:]], {},
              r"tensor a is float32 \[4, 2\] in ours and float32 \[2, 4\] in theirs"),
    "tied": (BASE, {"head": "a"}, "tied names differ: ours has nothing, theirs has head = a"),
}  # fmt: skip


@pytest.mark.parametrize("kind", CHANGES)
def test_a_difference_is_named_and_changes_the_hash(kind: str) -> None:
    changed, tied, message = CHANGES[kind]
    plan, other = SyncPlan(BASE), SyncPlan(changed, tied)
    assert plan.hash != other.hash
    assert re.fullmatch(message, plan.difference(other, "ours", "theirs"))
    assert SyncPlan(BASE).difference(plan) == ""


def test_the_hash_is_a_known_number() -> None:
    """FNV-1a with 128 bits, written once more here."""
    state = 0x6C62272E07BB014262B821756295C58D

    def add(data: bytes) -> None:
        nonlocal state
        for byte in data:
            state = ((state ^ byte) * 0x1000000000000000000013B) % 2**128

    def number(value: int) -> None:
        add(value.to_bytes(8, "little"))

    def text(value: str) -> None:
        number(len(value.encode()))
        add(value.encode())

    number(len(BASE))
    for (name, _, shape), dtype in zip(BASE, ["F32", "BF16", "I64"], strict=True):
        text(name)
        text(dtype)
        number(len(shape))
        for size in shape:
            number(size)
    text("head")
    text("a")
    assert SyncPlan(BASE, {"head": "a"}).hash == f"{state:032x}"


def test_ranks_with_another_plan_are_named() -> None:
    check_same_plan(["x", "x", "x"])
    with pytest.raises(ValueError, match="model of rank 1, 3 is not that of rank 0"):
        check_same_plan(["x", "y", "x", "z"])


@given(tensors)
@settings(max_examples=50, deadline=None)
def test_a_plan_survives_json(named: list[Any]) -> None:
    plan = SyncPlan(named, {"tied": "t0"} if named else {})
    assert SyncPlan.from_json(plan.to_json()).hash == plan.hash


@pytest.mark.parametrize("text", ["{}", "[]", "null", '{"tensors": [[1]], "tied": {}}', "no json"])
def test_other_text_is_no_plan(text: str) -> None:
    with pytest.raises(ValueError):
        SyncPlan.from_json(text)


def vllm_rule(sizes: list[int], buffer_bytes: int) -> list[list[int]]:
    """The sizes in each chunk, from the rule as vLLM states it: append, add, flush when above."""
    chunks, chunk = [], []
    for size in sizes:
        chunk.append(size)
        if sum(chunk) > buffer_bytes:
            chunks.append(chunk)
            chunk = []
    return chunks + ([chunk] if chunk else [])


@given(tensors, st.integers(0, 4000))
@settings(max_examples=200, deadline=None)
def test_vllm_chunks_follow_the_rule(named: list[Any], buffer_bytes: int) -> None:
    plan = SyncPlan(named)
    chunks = plan.native.vllm_chunks(buffer_bytes)
    assert [[piece.bytes for piece in c.pieces] for c in chunks] == vllm_rule(plan.sizes, buffer_bytes)
    assert [piece.tensor for c in chunks for piece in c.pieces] == list(range(len(plan)))
    for chunk in chunks:
        ends = [piece.offset + piece.bytes for piece in chunk.pieces]
        assert [piece.offset for piece in chunk.pieces] == [0, *ends[:-1]]
        assert chunk.bytes == ends[-1]


def test_a_tensor_that_lands_on_the_buffer_size_does_not_flush() -> None:
    plan = SyncPlan([("a", "uint8", [10]), ("b", "uint8", [6]), ("c", "uint8", [0]), ("d", "uint8", [40])])
    assert [c.bytes for c in plan.native.vllm_chunks(16)] == [56]
    assert [c.bytes for c in plan.native.vllm_chunks(15)] == [16, 40]
    assert [len(c.pieces) for c in plan.native.vllm_chunks(15)] == [2, 2]


@given(tensors, st.integers(1, 40).map(lambda n: 16 * n))
@settings(max_examples=200, deadline=None)
def test_native_buckets_cover_every_byte_once(named: list[Any], bucket_bytes: int) -> None:
    plan = SyncPlan(named)
    buckets = plan.native.native_buckets(bucket_bytes)
    covered = [0] * len(plan)
    for bucket in buckets:
        assert 0 < bucket.bytes <= bucket_bytes
        end = 0
        for piece in bucket.pieces:
            assert (piece.offset, piece.begin) == (end, covered[piece.tensor])
            assert piece.begin % 16 == 0
            end, covered[piece.tensor] = end + piece.bytes, covered[piece.tensor] + piece.bytes
        assert end == bucket.bytes
        sliced = [p for p in bucket.pieces if plan.sizes[p.tensor] != p.bytes]
        assert all(plan.sizes[p.tensor] > bucket_bytes for p in sliced)
    assert covered == plan.sizes


def test_bucket_size_must_keep_elements_whole() -> None:
    for size in (0, 8, 100):
        with pytest.raises(ValueError, match="multiple of 16"):
            SyncPlan(BASE).native.native_buckets(size)


@given(tensors, st.integers(1, 4000))
@settings(max_examples=100, deadline=None)
def test_batches_hold_whole_tensors_and_leave_out_empty_ones(named: list[Any], batch_bytes: int) -> None:
    plan = SyncPlan(named)
    batches = plan.native.tensor_batches(batch_bytes)
    sent = [piece.tensor for batch in batches for piece in batch.pieces]
    assert sent == [i for i, size in enumerate(plan.sizes) if size]
    for batch, following in itertools.zip_longest(batches, batches[1:]):
        assert batch.bytes <= batch_bytes or len(batch.pieces) == 1
        assert following is None or batch.bytes + following.pieces[0].bytes > batch_bytes


@given(tensors, st.integers(1, 8).map(lambda n: 16 * n), st.data())
@settings(max_examples=60, deadline=None)
def test_packing_and_unpacking_are_inverse(named: list[Any], bucket_bytes: int, data: Any) -> None:
    plan = SyncPlan(named)
    sent = [
        torch.randint(0, 2, shape).to(getattr(torch, dtype)).contiguous() for _, dtype, shape in plan.tensors
    ]
    received = [plan.empty(i).zero_() for i in range(len(plan))]
    cut = data.draw(st.sampled_from(["native_buckets", "vllm_chunks", "tensor_batches"]))
    for bucket in getattr(plan.native, cut)(bucket_bytes):
        buffer = torch.empty(bucket.bytes, dtype=torch.uint8)
        first, last = bucket.first, bucket.last + 1
        _C.pack_bucket(plan.native, bucket, first, sent[first:last], buffer)
        whole = b"".join(
            bytes(sent[p.tensor].reshape(-1).view(torch.uint8)[p.begin : p.begin + p.bytes].tolist())
            for p in bucket.pieces
            if p.bytes
        )
        assert bytes(buffer.tolist()) == whole
        assert _C.buffer_checksum(buffer, bucket.bytes) == _C.crc32c(whole)
        _C.unpack_bucket(plan.native, bucket, first, received[first:last], buffer)
    assert all(torch.equal(a, b) for a, b in zip(sent, received, strict=True))


def test_packing_converts_to_the_wire_dtype_and_refuses_other_shapes() -> None:
    plan = SyncPlan([("w", "bfloat16", [2, 2])])
    (bucket,) = plan.native.native_buckets(16)
    weight = torch.tensor([[1.0, 2.0], [3.0, 1e-3]])
    buffer = torch.empty(bucket.bytes, dtype=torch.uint8)
    _C.pack_bucket(plan.native, bucket, 0, [weight.t().contiguous().t()], buffer)
    assert torch.equal(buffer.view(torch.bfloat16).view(2, 2), weight.bfloat16())
    with pytest.raises(ValueError, match="tensor w changed its shape"):
        _C.pack_bucket(plan.native, bucket, 0, [weight.view(4)], buffer)


def test_dtypes_of_four_bytes_first_keep_views_aligned() -> None:
    """Why docs/weight_sync.md asks for one dtype, or the wide ones first: torch refuses other views."""
    with pytest.raises(RuntimeError, match="storage_offset"):
        torch.empty(6, dtype=torch.uint8)[2:6].view(torch.float32)
