"""All code points and random texts, side by side with `tokenizers`."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator

import pytest

from byte_level_files import CODE_POINTS, NAMES, compare, mixed_text, tokenizer_pair

FRAMES = ("{0}", "a{0}b", " '{0}1", "'l{0}", "e{0} {0}\n{0}", "{0}\u0301{0}", "\u1100\u1161{0}")


def batches(texts: Iterable[str], size: int = 4096) -> Iterator[list[str]]:
    texts = iter(texts)
    while batch := list(itertools.islice(texts, size)):
        yield batch


def framed(code_points: Iterable[int]) -> Iterator[str]:
    for c in code_points:
        for frame in FRAMES:
            yield frame.format(chr(c))


@pytest.mark.parametrize("name", NAMES)
def test_sampled_code_points(name: str) -> None:
    sample = [*range(0x600), *random.Random(7).sample(CODE_POINTS, 1500)]
    for batch in batches(framed(sample)):
        compare(name, batch)


@pytest.mark.chaos
@pytest.mark.parametrize("name", NAMES)
def test_all_code_points(name: str) -> None:
    for batch in batches(framed(CODE_POINTS)):
        compare(name, batch)


def random_texts(seed: int, count: int) -> Iterator[str]:
    random_ = random.Random(seed)
    return (mixed_text(random_) for _ in range(count))


@pytest.mark.parametrize("name", NAMES)
def test_random_texts(name: str) -> None:
    for batch in batches(random_texts(1, 7000)):
        compare(name, batch)


@pytest.mark.chaos
@pytest.mark.parametrize("name", NAMES)
def test_a_million_random_texts(name: str) -> None:
    for batch in batches(random_texts(2, 350_000)):
        compare(name, batch)


@pytest.mark.parametrize("name", NAMES)
def test_offsets_of_random_texts_cover_them(name: str) -> None:
    ours, _ = tokenizer_pair(name)
    for text in random_texts(3, 1500):
        data = text.encode()
        ids, offsets = ours.encode_with_offsets(data)
        assert ids == ours.encode(data)
        assert b"".join(data[begin:end] for begin, end in offsets) == data


@pytest.mark.parametrize("name", NAMES)
def test_decode_equals_tokenizers(name: str) -> None:
    ours, theirs = tokenizer_pair(name)
    random_ = random.Random(4)
    size = theirs.get_vocab_size()
    for _ in range(1500):
        ids = [random_.randrange(size) for _ in range(random_.randint(0, 8))]
        ids.append(random_.choice((220, size - 1)))
        for skip in (False, True):
            assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip), ids


# Equal however long: a run whose merges were not near-linear would not come to an end.
@pytest.mark.covering
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("unit", ["a", " ", "\n", "!", "9", "\u4e2d", "'s", "ab", "e\u0301", "\t ", "!\n"])
def test_a_megabyte_of_one_thing_ends(name: str, unit: str) -> None:
    ours, _ = tokenizer_pair(name)
    data = (unit * 10**6)[: 10**6].encode()
    assert ours.decode(ours.encode(data)).encode() in (
        data,
        data.decode().replace("e\u0301", "\u00e9").encode(),
    )
