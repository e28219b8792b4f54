"""CRC-32C: published vectors (RFC 3720, appendix B.4), and both implementations against each other."""

import random

import pytest

from fastsft import _C

VECTORS = [
    (b"", 0x00000000),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
]


@pytest.mark.parametrize(("data", "expected"), VECTORS)
@pytest.mark.parametrize("function", [_C.crc32c, _C.crc32c_portable])
def test_published_vectors(function, data, expected):
    assert function(data) == expected


def test_pieces_and_both_implementations_agree():
    generator = random.Random(0)
    for length in [0, 1, 7, 8, 9, 63, 64, 65, 4097]:
        data = generator.randbytes(length)
        cut = generator.randrange(length + 1)
        whole = _C.crc32c(data)
        assert whole == _C.crc32c_portable(data)
        assert whole == _C.crc32c(data[cut:], _C.crc32c(data[:cut]))
        assert whole == _C.crc32c_portable(data[cut:], _C.crc32c(data[:cut]))
