"""The token cache: made once, the same for all, whole or not there."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ranks
from fastsft import _C, data
from fastsft.data import label_files, token_cache
from fastsft.data.digests import file_digest
from fastsft.runtime.launch import Launch
from fastsft.tokenizer import Tokenizer
from forked_programs import Program, Programs
from golden_text import GOLDEN, conversation_file, human_gpt

FOLDER = GOLDEN / "tokenizers" / "llama2_legacy"
PROGRAM = """
import resource, sys
from types import SimpleNamespace
from fastsft import data
from fastsft.tokenizer import Tokenizer
if len(sys.argv) > 3:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)
tokenizer = Tokenizer.from_pretrained({folder!r}, model_max_length=64)
options = SimpleNamespace(
    data_path=sys.argv[1], eval_data_path=None, lazy_preprocess=False, data_cache=sys.argv[2]
)
native = data.make_supervised_data_module(tokenizer, options)["train_dataset"].native
print("checksum", native.checksum(), native.is_mapped)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    records = [{"id": f"r{i}", "conversations": human_gpt(f"Hi {i}", "Ho " * (i % 9))} for i in range(300)]
    path.write_text("\n".join(map(json.dumps, records)))
    return path


def load(path: Path, cache: Path, length: int = 64, **options: Any) -> Any:
    tokenizer = Tokenizer.from_pretrained(FOLDER, model_max_length=length)
    arguments = SimpleNamespace(
        data_path=str(path), eval_data_path=None, lazy_preprocess=False, data_cache=str(cache), **options
    )
    return data.make_supervised_data_module(tokenizer, arguments)["train_dataset"]


def finished(cache: Path) -> list[Path]:
    return sorted(cache.glob("*.tokens"))


def rows(dataset: Any) -> Any:
    native = dataset.native
    return [(native.ids(i).tolist(), native.learned(i)) for i in range(len(native))]


def count_labelling(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls: list[int] = []
    label = _C.label_inputs

    def counted(*args: Any) -> Any:
        calls.append(1)
        return label(*args)

    monkeypatch.setattr(label_files._C, "label_inputs", counted)
    return calls


def test_the_second_start_maps_what_the_first_wrote(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count_labelling(monkeypatch)
    plain, first, second = (
        load(source, Path("none")),
        load(source, tmp_path / "c"),
        load(source, tmp_path / "c"),
    )
    assert len(calls) == 2  # without a cache, and into it
    assert [s.native.is_mapped for s in (plain, first, second)] == [False, True, True]
    assert rows(plain) == rows(first) == rows(second)
    assert plain.native.checksum() == second.native.checksum()
    assert plain.native.max_id == second.native.max_id
    assert plain.report.to_json() == second.report.to_json()
    assert plain.report.warnings == second.report.warnings
    assert (plain[7]["labels"] == second[7]["labels"]).all()


def test_other_inputs_have_other_caches(source: Path, tmp_path: Path) -> None:
    cache = tmp_path / "c"
    load(source, cache)
    load(source, cache, length=48)
    load(source, cache, max_dropped=1.0, mask_policy="spans", template="vicuna_v1.1")
    assert len(finished(cache)) == 3
    other = tmp_path / "copy.jsonl"
    other.write_bytes(source.read_bytes())
    load(other, cache)  # the same content
    assert len(finished(cache)) == 3
    status = source.stat()
    source.write_bytes(source.read_bytes().replace(b"Hi 7", b"Hi 8"))
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))  # the same size and time of change
    load(source, cache)
    assert len(finished(cache)) == 4


def test_unchanged_files_are_not_read_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "index"
    digest = file_digest(source, index)
    assert not index.exists()  # too young to be told from a file that changes right now
    monkeypatch.setattr("fastsft.data.digests._UNSAFE_SECONDS", -1.0)
    assert file_digest(source, index) == digest
    monkeypatch.setattr("hashlib.file_digest", lambda *_: pytest.fail("the file was read"))
    assert file_digest(source, index) == digest


@pytest.mark.parametrize("place", [0.0, 0.05, 0.5, 0.9, 0.999])
def test_damage_is_noticed_and_mended(
    place: float, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = rows(load(source, tmp_path / "c"))
    (path,) = finished(tmp_path / "c")
    content = bytearray(path.read_bytes())
    at = int(place * len(content))
    content[at] ^= 0x10
    path.write_bytes(content)
    capsys.readouterr()
    again = load(source, tmp_path / "c")
    assert rows(again) == expected
    assert "the token cache is damaged and made again" in capsys.readouterr().out
    assert bytes(content) != path.read_bytes()


def test_padding_bytes_are_the_only_ones_that_may_change(source: Path, tmp_path: Path) -> None:
    load(source, tmp_path / "c")
    (path,) = finished(tmp_path / "c")
    content = path.read_bytes()
    key = path.stem
    unnoticed = []
    for at in range(0, len(content), 331):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        try:
            _C.open_token_cache(str(path), key)
        except _C.DamagedCacheError:
            continue
        unnoticed.append(at)
    assert all(content[at] == 0 for at in unnoticed)
    for size in (0, 7, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(_C.DamagedCacheError):
            _C.open_token_cache(str(path), key)


def start(source: Path, cache: Path, *more: str) -> Program:
    programs = Programs.of("fastsft.data.supervised", "fastsft.data.token_cache", "fastsft.tokenizer")
    return programs.start(PROGRAM.format(folder=str(FOLDER)), str(source), str(cache), *more)


def test_two_runs_at_once(source: Path, tmp_path: Path) -> None:
    runs = [start(source, tmp_path / "c") for _ in range(2)]
    outputs = [run.communicate(timeout=120)[0] for run in runs]
    checksums = {output.splitlines()[-1] for output in outputs}
    assert len(checksums) == 1, outputs
    assert checksums.pop().endswith("True")
    assert len(finished(tmp_path / "c")) == 1
    assert not list((tmp_path / "c").glob(f"{_C.cache_temporary_prefix}*"))


def test_a_full_disk_leaves_no_cache(source: Path, tmp_path: Path) -> None:
    run = start(source, tmp_path / "c", "20000")
    output = "".join(reversed(run.communicate(timeout=120)))
    assert run.returncode == 0, output
    assert "the token cache cannot be written, the data is labelled in memory" in output
    assert output.splitlines()[-1].endswith("False")
    assert not finished(tmp_path / "c")
    assert not list((tmp_path / "c").glob(f"{_C.cache_temporary_prefix}*"))


def test_a_killed_run_leaves_no_cache(source: Path, tmp_path: Path) -> None:
    """Killed while labelling: the data comes through a pipe that stays open."""
    cache, pipe = tmp_path / "c", tmp_path / "pipe"
    os.mkfifo(pipe)
    run = start(pipe, cache)
    with pipe.open("wb") as writer:
        writer.write(source.read_bytes() + b"\n")
        writer.flush()
        deadline = time.monotonic() + 120
        while not list(cache.glob(f"{_C.cache_temporary_prefix}*")):
            assert run.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        run.kill()
        assert run.returncode == -signal.SIGKILL
    assert not finished(cache)
    left = list(cache.glob(f"{_C.cache_temporary_prefix}*"))
    assert left
    for path in left:
        os.utime(path, (0, 0))
    assert load(source, cache).native.is_mapped
    assert not list(cache.glob(f"{_C.cache_temporary_prefix}*"))


@pytest.mark.chaos
def test_killed_at_any_time(tmp_path: Path) -> None:
    source = conversation_file("sharegpt_multi_turn")
    expected = load(source, Path("none"), max_dropped=1.0).native.checksum()
    for step in range(30):
        cache = tmp_path / f"c{step}"
        run = start(source, cache)
        time.sleep(1.0 + step * 0.03)
        run.kill()
        run.communicate()
        for path in finished(cache):
            assert _C.open_token_cache(str(path), path.stem).dataset.checksum() == expected


def test_bad_lines_and_faults(source: Path, tmp_path: Path) -> None:
    """What --report_bad lists comes from the cache as well; a run that stops leaves no cache."""
    report = tmp_path / "bad.jsonl"
    source.write_text(source.read_text() + "\nnope")
    options = {"report_bad": str(report), "max_dropped": 1.0, "template": "vicuna_v1.1"}
    with pytest.raises(ValueError, match="not JSON"):
        load(source, tmp_path / "c", **options)
    actions = [json.loads(line)["action"] for line in report.read_text().splitlines()]
    assert actions == ["dropped"] * (len(actions) - 1) + ["stopped"]
    assert not finished(tmp_path / "c")
    load(source, tmp_path / "c", mask_policy="spans", **options)
    first = report.read_text()
    report.unlink()
    load(source, tmp_path / "c", mask_policy="spans", **options)
    assert report.read_text() == first
    assert '"action":"excluded"' in first


@pytest.mark.parametrize("beside_a_stream", [False, True])
def test_data_that_changes_while_it_is_read(
    beside_a_stream: bool, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def label_and_change(*arguments: Any) -> Any:
        labelled = original(*arguments)
        source.write_text(source.read_text().replace("Hi 7", "Hi 8"))
        return labelled

    original = label_files._label
    monkeypatch.setattr(label_files, "_label", label_and_change)
    data_path = source
    if beside_a_stream:  # the key is known only when all is read
        stdin = SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(source.read_bytes())))  # type: ignore[arg-type]
        monkeypatch.setattr("sys.stdin", stdin)
        data_path = Path(f"{source},-")
    with pytest.raises(ValueError, match="changed while it was read"):
        load(data_path, tmp_path / "c")
    assert not finished(tmp_path / "c")


def test_a_stream_on_ranks_needs_a_cache(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for rank in range(2):
        place = Launch(rank=rank, local_rank=rank, world_size=2)
        monkeypatch.setattr(label_files, "launch", lambda place=place: place)
        with pytest.raises(ValueError, match="by one rank"):
            load(pipe, Path("none"))


def test_streams_are_kept_by_what_they_held(source: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for _ in range(2):
        with subprocess.Popen(["cp", str(source), str(pipe)]):
            assert load(pipe, tmp_path / "c").native.is_mapped
    assert len(finished(tmp_path / "c")) == 1


def test_a_directory_that_cannot_be_made(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    dataset = load(source, tmp_path / "file" / "c")
    assert not dataset.native.is_mapped
    assert "no token cache in" in capsys.readouterr().out


def test_caches_that_no_run_opens_go(source: Path, tmp_path: Path) -> None:
    """Opening one keeps it; labelling something else clears away the others. No lock is left."""
    cache = tmp_path / "c"
    for length in (48, 56):
        load(source, cache, length)
    for path in finished(cache):
        os.utime(path, (0, 0))
    kept = load(source, cache, 48)
    load(source, cache, 64)
    assert kept.native.is_mapped and len(finished(cache)) == 2
    assert not [path for path in finished(cache) if path.stat().st_mtime == 0]
    assert not list(cache.glob("*.lock"))


def test_tokenizers_that_cannot_be_told_have_no_cache() -> None:
    assert token_cache.tokenizer_digest(SimpleNamespace(directory=FOLDER)) is None
    same = [token_cache.tokenizer_digest(Tokenizer.from_pretrained(FOLDER)) for _ in range(2)]
    assert same[0] == same[1] is not None
    other = Tokenizer.from_pretrained(GOLDEN / "tokenizers" / "llama2_nonlegacy")
    assert token_cache.tokenizer_digest(other) != same[0]


def rank_loads(groups: dict[str, str], source: Path, caches: list[Path], local_world: int) -> Any:
    import torch.distributed as dist

    rank = dist.get_rank()
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(dist.get_world_size()),
        LOCAL_RANK=str(rank % local_world), LOCAL_WORLD_SIZE=str(local_world),
    )  # fmt: skip
    calls: list[int] = []
    label = _C.label_inputs
    _C.label_inputs = lambda *args: (calls.append(1), label(*args))[1]
    dataset = load(source, caches[rank])
    return dataset.native.checksum(), dataset.native.is_mapped, len(calls)


@pytest.mark.parametrize("machines", [1, 2])
def test_one_rank_labels_for_its_machine(machines: int, source: Path, tmp_path: Path) -> None:
    """Two ranks on one machine, or on each of two that see other disks."""
    caches = [tmp_path / f"machine{rank // 2}" for rank in range(2 * machines)]
    results = ranks.run_ranks(2 * machines, rank_loads, source, caches, 2)
    assert len({checksum for checksum, _, _ in results}) == 1
    assert all(is_mapped for _, is_mapped, _ in results)
    assert [calls for _, _, calls in results] == [1, 0] * machines
