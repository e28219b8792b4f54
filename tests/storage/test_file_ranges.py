"""Checksums of ranges that several ranks write become those of whole files."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastsft import _C


@settings(deadline=None)
@given(st.binary(max_size=300), st.binary(max_size=300))
def test_combined_checksums_are_those_of_the_whole(first, second):
    combined = _C.crc32c_combine(_C.crc32c(first), _C.crc32c(second), len(second))
    assert combined == _C.crc32c(first + second)


def test_combining_over_terabytes():
    """Zeros after a string: by squaring, and by the rule that lengths add."""
    value = _C.crc32c(b"a checkpoint")
    zeros = {size: _C.crc32c_combine(0xFFFFFFFF, 0, size) for size in (2**40, 2**41)}
    twice = _C.crc32c_combine(zeros[2**40], 0, 2**40)
    assert twice == zeros[2**41] and _C.crc32c_combine(value, 0, 0) == value


def ranges_of(name, content, cuts):
    bounds = sorted({0, *cuts, len(content)})
    return [
        _C.RangeDigest(name, begin, end - begin, _C.crc32c(content[begin:end]))
        for begin, end in itertools.pairwise(bounds)
    ]


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=200), st.lists(st.integers(0, 200), max_size=6), st.randoms())
def test_ranges_in_any_order_are_a_file(content, cuts, random):
    ranges = [
        *ranges_of("a.bin", content, [cut for cut in cuts if cut <= len(content)]),
        *ranges_of("b.bin", content[::-1], []),
    ]
    random.shuffle(ranges)
    first, second = _C.join_ranges(ranges)
    assert (first.name, first.size, first.crc32c) == ("a.bin", len(content), _C.crc32c(content))
    assert (second.name, second.size, second.crc32c) == ("b.bin", len(content), _C.crc32c(content[::-1]))


def test_missing_and_doubled_bytes_are_errors():
    first, second, third = ranges_of("model.safetensors", bytes(range(90)), [30, 60])
    with pytest.raises(RuntimeError, match=r"model\.safetensors: bytes from 30 to 60 were written by no"):
        _C.join_ranges([third, first])
    with pytest.raises(RuntimeError, match="bytes from 30 to 60 were written twice"):
        _C.join_ranges([first, second, second, third])
    with pytest.raises(RuntimeError, match="bytes from 0 to 30 were written by no rank"):
        _C.join_ranges([second, third])
