"""Checkpoints go past the page cache: the same bytes, whatever the cuts, and nothing left in the cache."""

import ctypes
import itertools
import mmap
import os
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from fastsft import _C

PAGE = mmap.PAGESIZE
BUFFER = 4 << 20  # csrc/storage/direct_buffer.cpp
LOCAL_DISKS = ("ext2/ext3", "ext4", "xfs")  # as `stat --file-system` calls them


def file_system_of(folder):
    return os.popen(f"stat --file-system --format=%T '{folder}'").read().strip()


def cached_share(path):
    """Of the file's pages, those in the page cache."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        pages = -(-size // PAGE)
        mapped = mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
        states = (ctypes.c_ubyte * pages)()
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), states) == 0
        return sum(state & 1 for state in states) / pages


def write(path, content, pieces, *, direct=True):
    ranges = _C.ChecksummedRanges(str(path), direct=direct)
    for begin, end in pieces:
        ranges.write_at(begin, content[begin:end])
    return ranges.finish()


def cut(chance, begin, end, count):
    bounds = sorted({begin, end, *(chance.randrange(begin, end) for _ in range(count))})
    return list(itertools.pairwise(bounds))


@pytest.mark.parametrize("size", [1, PAGE - 1, PAGE, BUFFER, BUFFER + 1, 3 * BUFFER + 777])
@pytest.mark.parametrize("offset", [0, 1, PAGE, 5 * PAGE + 13])
def test_a_stretch_at_any_offset(tmp_path, size, offset):
    chance = random.Random(size + offset)
    content = bytes(offset) + chance.randbytes(size)
    (digest,) = write(tmp_path / "file", content, cut(chance, offset, len(content), 7))
    assert (tmp_path / "file").read_bytes() == content
    assert (digest.offset, digest.size, digest.crc32c) == (offset, size, _C.crc32c(content[offset:]))


@pytest.mark.parametrize("seed", range(4))
def test_writers_of_neighbouring_ranges(tmp_path, seed):
    """Four at once, of ranges that meet inside pages, as the ranks of a save."""
    chance, path = random.Random(seed), tmp_path / "file"
    content = chance.randbytes(24 << 20)
    pieces = cut(chance, 0, len(content), 40)
    owners = [pieces[first::4] for first in range(4)]
    with ThreadPoolExecutor(4) as pool:
        digests = [d for found in pool.map(lambda own: write(path, content, own), owners) for d in found]
    assert path.read_bytes() == content
    (joined,) = _C.join_ranges(digests)
    assert (joined.size, joined.crc32c) == (len(content), _C.crc32c(content))


def test_large_files_stay_out_of_the_page_cache(tmp_path):
    if file_system_of(tmp_path) not in LOCAL_DISKS:
        pytest.skip(f"{file_system_of(tmp_path)} is written through the page cache")
    content = random.Random(0).randbytes(32 << 20)
    for direct, cached in ((False, True), (True, False)):
        write(tmp_path / f"{direct}", content, [(5, len(content))], direct=direct)
        share = cached_share(tmp_path / f"{direct}")
        assert share > 0.9 if cached else share < 0.1, (direct, share)


def test_a_file_system_that_refuses_is_written_through_the_cache():
    folder = "/dev/shm"
    if not os.path.isdir(folder):
        pytest.skip("no /dev/shm")
    path = f"{folder}/fastsft-direct-{os.getpid()}"
    content = random.Random(1).randbytes(BUFFER + 99)
    try:
        ranges = _C.ChecksummedRanges(path, direct=True)
        ranges.write_at(0, content)
        ranges.finish()
        with open(path, "rb") as file:
            assert file.read() == content
    finally:
        os.unlink(path)


def test_a_full_disk_is_told_by_the_end(tmp_path):
    """Bytes held back when the limit is passed are an error of `finish`, never lost in silence."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ranges = _C.ChecksummedRanges(str(tmp_path / "file"), direct=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(RuntimeError, match=r"cannot write .*file: File too large"):
            ranges.write_at(0, bytes(2 << 20))
            ranges.finish()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
