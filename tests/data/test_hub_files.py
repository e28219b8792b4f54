"""Data of the hub: the files that `datasets` takes, branches that move, no network, what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data_formats import FORMATS, converted
from fastsft.runtime.messages import collected
from fastsft.sources import hub_files
from fastsft.sources.data_files import data_files
from fastsft.sources.hub_splits import choose_files
from local_hub import Files, LocalHub, local_hub

ROOT = "hf://datasets/a/b"
RECORDS = FORMATS["sharegpt"]


def lines(records: list[Any]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def card(configs: str) -> bytes:
    return f"---\nlicense: mit\nconfigs:\n{configs}---\n# Data\n".encode()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    with local_hub() as hub:
        hub.use(monkeypatch, tmp_path / "cache")
        hub_files._files.cache_clear()
        yield hub
    hub_files._files.cache_clear()


@pytest.fixture
def forget() -> Any:
    """Another process."""
    return hub_files._files.cache_clear


def read(path: str, **options: Any) -> list[bytes]:
    return [Path(file.path).read_bytes() for file in data_files(path, **options)]


SHARDS = {f"data/{split}-{n:05d}-of-00002.parquet": f"{split}{n}".encode()
          for split in ("train", "test") for n in (0, 1)}  # fmt: skip
TREES: dict[str, Files] = {
    "shards": {**SHARDS, "README.md": b"x", ".gitattributes": b""},
    "one file": {"chats.jsonl": b"1", "README.md": b"x", "dataset_infos.json": b"{}"},
    "files by split": {"train.jsonl": b"1", "my_test.jsonl": b"2", "valid-2.jsonl": b"3", "README.md": b""},
    "directories by split": {"a/training/1.json": b"1", "a/training/2.json": b"2", "a/eval/1.json": b"3"},
    "hidden": {".git/train.jsonl": b"0", "__old__/train.jsonl": b"0", "train.jsonl": b"1",
               "config.json": b"{}"},
    "only a test split": {"test.jsonl": b"1"},
    "words that only begin alike": {"trainer.jsonl": b"1", "latest.jsonl": b"2"},
    "nested": {"x/data/train-00000-of-00001.jsonl": b"1", "x/y/part.train.jsonl": b"2"},
    "card": {**SHARDS, "more/x.parquet": b"m",
             "README.md": card("- config_name: c\n  data_files:\n  - split: train\n    path: data/*-00001-*\n"
                               "  - split: more\n    path: [more/*, 'data/test-*']\n")},
    "card with a default": {"x/1.jsonl": b"1", "y/1.jsonl": b"2", "y/deep/2.jsonl": b"3",
                            "README.md": card("- config_name: x\n  data_files: x/*\n"
                                              "- config_name: y\n  data_dir: y\n  default: true\n")},
    "card with patterns": {"x/1.jsonl": b"1", "x/deep/2.jsonl": b"2", "x/.hidden.jsonl": b"3",
                           "README.md": card("- config_name: default\n  data_files: ['x/**/*.jsonl']\n")},
}  # fmt: skip


@pytest.mark.parametrize("tree", TREES)
def test_the_files_are_those_that_datasets_takes(tree: str, tmp_path: Path) -> None:
    """The library's own resolution, on the same files in a directory."""
    datasets = pytest.importorskip("datasets")
    files = TREES[tree]
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    expected = datasets.load_dataset_builder(
        str(tmp_path), cache_dir=str(tmp_path / ".cache")
    ).config.data_files
    ours = choose_files(sorted(files), "", hub_files._card(tmp_path), ROOT)
    split = "train" if "train" in expected else next(iter(expected))
    assert ours.split == split
    assert {str(tmp_path / name) for name in ours.files} == {*map(str, expected[split])}
    assert {each for each, _ in ours.others} == {*expected} - {split}


def test_files_are_downloaded_once_and_read_in_order(hub: LocalHub, forget: Any) -> None:
    hub.add("a/b", {**SHARDS, "README.md": b"x"})
    with collected() as notices:
        assert read(ROOT) == [b"train0", b"train1"]
    assert notices.warned == [f"{ROOT}: the split train is read; not read: test ({ROOT}/data/test-*)"]
    assert [file.weight for file in data_files(f"{ROOT}:0.5,{ROOT}/data/test-*")] == [0.5, 0.5, 1, 1]
    del hub.asked[:]
    assert read(ROOT) == [b"train0", b"train1"]
    assert not hub.asked
    forget()
    assert read(ROOT) == [b"train0", b"train1"]
    assert not [path for path in hub.asked if path.endswith(".parquet")]


def test_a_path_is_a_file_a_pattern_a_configuration_or_a_folder(hub: LocalHub) -> None:
    configs = "- config_name: main\n  data_files: x/1.jsonl\n- config_name: all\n  data_files: '**/*.jsonl'\n"
    hub.add("a/b", {"x/1.jsonl": b"1", "x/2.jsonl": b"2", "y/[3].jsonl": b"3", "README.md": card(configs)})
    assert read(f"{ROOT}/x/2.jsonl") == [b"2"]
    assert read(f"{ROOT}/x/*.jsonl:2") == [b"1", b"2"]
    assert read(f"{ROOT}/**/*.jsonl") == [b"1", b"2", b"3"]
    assert read(f"{ROOT}/main") == [b"1"]
    assert read(f"{ROOT}/all") == [b"1", b"2", b"3"]
    assert read(f"{ROOT}/x/") == [b"1", b"2"]
    assert read(f"{ROOT}/y") == [b"3"]


def test_revisions(hub: LocalHub) -> None:
    commit = hub.add("a/b", {"a.jsonl": b"old"}, "v1")
    hub.add("a/b", {"a.jsonl": b"other"}, "of/a-branch")
    hub.add("a/b", {"default/train/0000.parquet": b"parquet"}, "refs/convert/parquet")
    hub.add("a/b", {"a.jsonl": b"new"})
    assert read(ROOT) == [b"new"]
    assert read(f"{ROOT}@v1") == read(f"{ROOT}@{commit}/a.jsonl") == [b"old"]
    assert read(f"{ROOT}@of%2Fa-branch") == [b"other"]
    assert read(f"{ROOT}@refs/convert/parquet/default") == [b"parquet"]
    with pytest.raises(ValueError, match=f"{ROOT}@v2: the data set has no revision v2"):
        data_files(f"{ROOT}@v2")


def test_a_branch_stays_where_it_is_in_one_process(hub: LocalHub, forget: Any) -> None:
    hub.add("a/b", {"a.jsonl": b"1"})
    assert read(ROOT) == [b"1"]
    hub.add("a/b", {"a.jsonl": b"2"})
    assert read(ROOT) == [b"1"]
    forget()
    assert read(ROOT) == [b"2"]


def test_a_branch_that_moves_during_the_download(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("a/b", {"a.jsonl": b"1"})
    listed = hub_files._Repository.listed

    def moved(self: Any) -> Any:
        found = listed(self)
        hub.add("a/b", {"a.jsonl": b"2", "b.jsonl": b"3"})
        return found

    monkeypatch.setattr(hub_files._Repository, "listed", moved)
    assert read(ROOT) == [b"2", b"3"]


@pytest.mark.parametrize("cut", ["no server", "a broken server"])
def test_without_an_answer_the_cache_is_read_and_a_line_says_so(
    cut: str, hub: LocalHub, forget: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    commit = hub.add("a/b", {**SHARDS, "README.md": card("- config_name: c\n  data_files: data/test-*\n")})
    assert read(ROOT) == [b"test0", b"test1"]
    forget()
    if cut == "no server":
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    else:
        hub.refuses = 503
    with collected() as notices:
        assert read(ROOT) == [b"test0", b"test1"]
    assert notices.warned == [
        f"{ROOT}: the hub was not reached; read from the copy of commit {commit} in the cache: 2 files, "
        "data/test-00000-of-00002.parquet, data/test-00001-of-00002.parquet"
    ]
    with pytest.raises(ValueError, match="a/c: the hub was not reached, and no copy is in the cache"):
        data_files("hf://datasets/a/c")


def test_a_part_of_the_shards_is_not_the_data_set(hub: LocalHub, forget: Any, tmp_path: Path) -> None:
    hub.add("a/b", SHARDS)
    assert read(f"{ROOT}/data/train-00001-of-00002.parquet") == [b"train1"]
    hub.refuses = 500
    forget()
    reason = "in the cache lacks data/train-00000-of-00002.parquet, and the hub was not reached"
    with pytest.raises(ValueError, match=reason):
        data_files(ROOT)
    hub.refuses = 0
    assert read(ROOT) == [b"train0", b"train1"]
    shutil.rmtree(tmp_path / "cache")
    forget()
    assert read(ROOT) == [b"train0", b"train1"]


def test_without_fetch_nothing_is_asked(hub: LocalHub) -> None:
    hub.add("a/b", {"a.jsonl": b"1"})
    with pytest.raises(ValueError, match=r"not on this machine.*hf download a/b --repo-type dataset"):
        data_files(ROOT, fetch=False)
    assert not hub.asked
    assert read(ROOT) == [b"1"]
    del hub.asked[:]
    with collected() as notices:
        assert read(ROOT, fetch=False) == [b"1"]
    assert not hub.asked and not notices.warned


def test_the_doctor_says_the_way_to_data_that_is_not_here(hub: LocalHub) -> None:
    from fastsft.doctor.conversations import _label
    from fastsft.doctor.result import ProblemError

    with pytest.raises(ProblemError, match="--data_path: hf://datasets/a/b: not on this machine") as caught:
        _label(None, "data_path", ROOT)  # type: ignore[arg-type]
    assert caught.value.way_out == "let the run download it, or correct --data_path"
    assert not hub.asked


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("hf://a/b", "expected hf://datasets/owner/name"),
        ("hf://datasets/b", "expected hf://datasets/owner/name"),
        ("hf://datasets/a/nothing", "no data set of this name is there, or it is private"),
        ("hf://datasets/a/b c", "Repo id must use alphanumeric chars"),
        ("hf://datasets/a/gated", "for those only who accepted its terms"),
        (f"{ROOT}/missing", "no file, folder or configuration has this name; there are: README.md, c.csv, d"),
        (f"{ROOT}/*.parquet", "no file matches it"),
        (f"{ROOT}/x", rf"the splits validation, test, and none is train; name one: {ROOT}/x/dev"),
        (ROOT, rf"several configurations; name one: {ROOT}/one, {ROOT}/two, {ROOT}/three"),
        (f"{ROOT}/one", "its README.md names absent/\\*, which is not there"),
        (f"{ROOT}/two", "data_files of the configuration two in its README.md: expected patterns, or"),
        (f"{ROOT}/three", rf"kinds \(.jsonl, .parquet\); name one: {ROOT}/data/1.jsonl, {ROOT}/data/\*.p"),
        ("hf://datasets/a/csv", "no .json, .jsonl, .parquet or .arrow file is there, but: a.csv"),
        ("hf://datasets/a/card", "the metadata of its README.md cannot be read"),
        ("hf://datasets/a/configs", "the configs of its README.md: expected a list of entries with a confi"),
    ],
)  # fmt: skip
def test_what_is_refused(hub: LocalHub, path: str, reason: str) -> None:
    configs = ("- config_name: one\n  data_files: absent/*\n"
               "- config_name: two\n  data_files: [{split: train}]\n"
               "- config_name: three\n  data_dir: data\n")  # fmt: skip
    hub.add("a/b", {"README.md": card(configs), "c.csv": b"", "data/1.jsonl": b"", "data/1.parquet": b"",
                    "data/2.parquet": b"", "x/dev.jsonl": b"", "x/test.jsonl": b""})  # fmt: skip
    hub.add("a/csv", {"a.csv": b"a,b"})
    hub.add("a/card", {"a.jsonl": b"", "README.md": b"---\nconfigs: [\n---\n"})
    hub.add("a/configs", {"a.jsonl": b"", "README.md": b"---\nconfigs: {a: 1}\n---\n"})
    hub.gated.add("a/gated")
    with pytest.raises(ValueError, match=reason) as caught:
        data_files(path)
    assert str(caught.value).startswith(f"{path.partition(':0')[0]}: ") and "\n" not in str(caught.value)


def test_records_of_the_hub_are_read_as_those_of_a_file(hub: LocalHub, tmp_path: Path) -> None:
    hub.add("a/b", {"train-0.jsonl": lines(RECORDS[:2]), "train-1.jsonl": lines(RECORDS[2:])})
    (tmp_path / "plain.jsonl").write_bytes(lines(RECORDS))
    assert converted(ROOT) == converted(tmp_path / "plain.jsonl")
