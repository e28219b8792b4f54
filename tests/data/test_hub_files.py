"""Data of the hub: the files that `datasets` takes, branches that move, no network, what is refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from data_formats import FORMATS, converted
from fastsft.runtime.messages import collected
from fastsft.sources import hub_files
from fastsft.sources.data_files import data_files
from fastsft.sources.hub_splits import CARD_FILES, choose_files, read_card
from local_hub import Files, LocalHub, local_hub

ROOT = "hf://datasets/a/b"
RECORDS = FORMATS["sharegpt"]


def lines(records: list[Any]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def card(configs: str) -> bytes:
    return f"---\nlicense: mit\nconfigs:\n{configs}---\n# Data\n".encode()


# `datasets` refuses them, or reads what fastsft does not.
REFUSED: dict[str, Files] = {
    "a text for training": {"train.txt": b"1", "chats.jsonl": b"2"},
    "pictures for training": {"train/a.png": b"1", "train.jsonl": b"2", "test.jsonl": b"3"},
    "a program that tests": {"test.py": b"1", "chats.jsonl": b"2"},
    "a folder with a program that tests": {"test/x.py": b"", "train.jsonl": b"1"},
    "a copy aside": {"1.jsonl": b"1", "2.jsonl.bak": b"2"},
    "a part": {"train.jsonl": b"1", "train.jsonl.1": b"2"},
    "a copy aside by a card": {"data/1.jsonl": b"1", "data/2.jsonl.bak": b"2",
                               "README.md": card("- config_name: c\n  data_files: data/*\n")},
    "no files by a card": {"x.jsonl": b"1", "README.md": card("- config_name: c\n  data_files: []\n")},
    "a mapping of files": {"x.json": b"", "README.md": card("- config_name: c\n  data_files: {train: x}\n")},
    "no mapping": {"x.jsonl": b"1", "README.md": b"---\n- a\n---\n"},
    "some records": {"x.jsonl": b"1", "README.md": card("- config_name: c\n  data_files: x*\n  field: a\n")},
    "CSV otherwise": {"x.csv": b"1", "README.md": card("- config_name: c\n  data_files: x*\n  sep: ';'\n")},
    "no training": {"test.jsonl": b"1"},
}  # fmt: skip


@pytest.mark.parametrize("tree", REFUSED)
def test_what_datasets_reads_otherwise_is_refused(tree: str) -> None:
    files = REFUSED[tree]
    texts = {name: files[name].decode() for name in CARD_FILES if name in files}
    with pytest.raises(ValueError):
        choose_files(sorted(files), "", ROOT, lambda: read_card(texts))


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
    "words that only begin alike": {"trainer.jsonl": b"1", "latest.jsonl": b"2"},
    "nested": {"x/data/train-00000-of-00001.jsonl": b"1", "x/y/part.train.jsonl": b"2"},
    "card": {**SHARDS, "more/x.parquet": b"m",
             "README.md": card("- config_name: c\n  data_files:\n  - split: train\n    path: data/*-00001-*\n"
                               "  - split: more\n    path: [more/*, 'data/test-*']\n")},
    "card with a default": {"x/1.jsonl": b"1", "y/1.jsonl": b"2", "y/deep/2.jsonl": b"3",
                            "README.md": card("- config_name: x\n  data_files: x/*\n"
                                              "- config_name: y\n  data_dir: y\n  default: true\n")},
    "card with paths": {"x/1.jsonl": b"1", "x/2.jsonl": b"2", "LICENSE": b"", "x/LICENSE": b"",
                        "README.md": card("- config_name: a\n  data_files: ['./x/*', x/2.jsonl]\n")},
    "card of this directory": {"x/1.jsonl": b"1", "2.jsonl": b"2",
                               "README.md": card("- config_name: a\n  data_dir: .\n")},
    "card that ends the file": {"x.jsonl": b"1", "y.jsonl": b"2",
                                "README.md": card("- config_name: a\n  data_files: x.jsonl\n")[:-8]},
    "card without metadata": {"x.jsonl": b"1", "README.md": b"# Data\n---\nconfigs: [\n---\n"},
    "other card": {"x.jsonl": b"1", "y.jsonl": b"2",
                   "README.md": card("- config_name: a\n  data_files: y.jsonl\n"),
                   ".huggingface.yaml": b"configs:\n- config_name: b\n  data_files: x.jsonl\n"},
    "a pattern without files": {"x.jsonl": b"1", "y.jsonl": b"2",
                                "README.md": card("- config_name: a\n  data_files: [z*, x.jsonl]\n")},
    "blanks before the card": {"x.jsonl": b"1", "y.jsonl": b"2",
                               "README.md": b" \n\t\n" + card("- config_name: a\n  data_files: x.jsonl\n")},
    "line ends of Windows": {"x.jsonl": b"1", "y.jsonl": b"2", "README.md":
                             card("- config_name: a\n  data_files: x.jsonl\n").replace(b"\n", b"\r\n")},
    "ndjson and others": {"x.ndjson": b"1", "LICENSE": b"", "logo.svg": b"", "run.py": b""},
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
    texts = {name: files[name].decode() for name in CARD_FILES if name in files}
    ours = choose_files(sorted(files), "", ROOT, lambda: read_card(texts))
    assert {str(tmp_path / name) for name in ours.files} == {*map(os.path.normpath, expected["train"])}
    assert {*ours.other_splits} == {*expected} - {"train"}


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


def test_a_part_of_the_files_is_not_the_data_set(hub: LocalHub, forget: Any, tmp_path: Path) -> None:
    hub.add("a/b", {**SHARDS, "README.md": b"x"})
    hub.add("a/c", SHARDS)
    assert read(f"{ROOT}/data/train-00001-of-00002.parquet") == [b"train1"]
    assert read("hf://datasets/a/c/data/test-*") == [b"test0", b"test1"]
    hub.refuses = 429
    forget()
    assert read(f"{ROOT}/data/train-00001-of-00002.parquet") == [b"train1"]
    with pytest.raises(ValueError, match=r"not reached, and its README.md is missing \(the copy of commit"):
        data_files(ROOT)
    with pytest.raises(
        ValueError, match=r"data/train-00000-of-00002\.parquet and 1 more of 2 files are missing"
    ):
        data_files("hf://datasets/a/c")
    with pytest.raises(
        ValueError, match=r"data/train-00000-of-00002\.parquet and 1 more of 2 files are missing"
    ):
        data_files("hf://datasets/a/c", fetch=False)
    hub.refuses = 0
    assert read(ROOT) == [b"train0", b"train1"]
    shutil.rmtree(tmp_path / "cache")
    forget()
    assert read(ROOT) == [b"train0", b"train1"]


def test_a_download_that_is_cut_off_goes_on(hub: LocalHub, forget: Any, tmp_path: Path) -> None:
    old = {"a.jsonl": b"old a", "b.jsonl": b"old b"}
    hub.add("a/b", old)
    assert read(ROOT) == [*old.values()]
    new = {"a.jsonl": b"new a", "b.jsonl": b"a longer b"}
    commit = hub.add("a/b", new)
    forget()
    hub.cuts = "/b.jsonl"
    with pytest.raises(
        ValueError, match=r"a/b: the download was cut off: .*; run it again, which goes on"
    ) as caught:
        data_files(ROOT)
    assert "\n" not in str(caught.value)
    whole, end = tmp_path / "cache/datasets--a--b/snapshots" / commit / "a.jsonl", time.monotonic() + 20
    while not whole.is_file() and time.monotonic() < end:  # it was under way
        time.sleep(0.01)
    hub.cuts, hub.refuses = "", 500
    with collected() as notices:
        assert read(ROOT) == [*old.values()]
    assert commit not in notices.warned[0]
    forget()
    hub.refuses = 0
    del hub.asked[:]
    assert read(ROOT) == [*new.values()]
    assert not [path for path in hub.asked if path.endswith("/a.jsonl")]


def test_copies_of_other_programs(hub: LocalHub, forget: Any) -> None:
    """What hf download left: all of it, or what somebody asked for."""
    import huggingface_hub

    hub.add("a/b", SHARDS)
    huggingface_hub.snapshot_download("a/b", repo_type="dataset", allow_patterns=["*1-of-*"])
    with pytest.raises(
        ValueError, match=r"here, and it has 1 of 2 files data/train-.-of-00002 .the copy of com"
    ):
        data_files(ROOT, fetch=False)
    assert read(f"{ROOT}/data/train-*", fetch=False) == [b"train1"]
    huggingface_hub.snapshot_download("a/b", repo_type="dataset")
    forget()
    hub.refuses = 502
    with collected() as notices:
        assert read(ROOT) == [b"train0", b"train1"]
    assert notices.warned[0].endswith("; whether the data set has more is not known")


def test_a_whole_copy_goes_before_one_of_another_program(hub: LocalHub, forget: Any) -> None:
    import huggingface_hub

    old = hub.add("a/b", {"1.jsonl": b"1", "2.jsonl": b"2"})
    assert read(ROOT) == [b"1", b"2"]
    new = hub.add("a/b", {"3.jsonl": b"3", "4.jsonl": b"4"})
    huggingface_hub.snapshot_download("a/b", repo_type="dataset", allow_patterns=["3*"])
    forget()
    hub.refuses = 408
    with collected() as notices:
        assert read(ROOT) == read(f"{ROOT}@{old}") == [b"1", b"2"]
    assert notices.warned[0].endswith(f"2.jsonl; another copy is read as {ROOT}@{new}")
    assert read(f"{ROOT}@{new}") == [b"3"]


def test_a_card_does_not_make_a_part_whole(hub: LocalHub) -> None:
    import huggingface_hub

    shards = {f"data/train-{n:05d}-of-00003.jsonl": b"" for n in range(3)}
    hub.add("a/b", {**shards, "README.md": card("- config_name: c\n  data_files: data/train-*\n")})
    huggingface_hub.snapshot_download(
        "a/b", repo_type="dataset", allow_patterns=["README.md", "*-00001-of-*"]
    )
    with pytest.raises(ValueError, match="it has 1 of 3 files data/train"):
        data_files(ROOT, fetch=False)


def test_a_download_of_a_commit_that_was_cut_off_is_no_copy(hub: LocalHub, forget: Any) -> None:
    commit = hub.add("a/b", {"a.jsonl": b"1", "b.jsonl": b"22"})
    hub.cuts = "/b.jsonl"
    refused(f"{ROOT}@{commit}", "the download was cut off")
    assert len(read(f"{ROOT}/a.jsonl")) == 1
    hub.refuses = 500
    forget()
    for revision in ("", f"@{commit}"):
        refused(f"{ROOT}{revision}", "not reached, and b.jsonl of 2 files is missing")
        assert read(f"{ROOT}{revision}/a.jsonl") == [b"1"]


@pytest.mark.parametrize("name", ["../../../../outside.jsonl", "/outside.jsonl", "x\0", ""])
def test_lists_that_a_stranger_wrote(hub: LocalHub, forget: Any, tmp_path: Path, name: str) -> None:
    (tmp_path / "outside.jsonl").write_text("secret")
    pattern = card(f"- config_name: c\n  data_files: '{name}'\n") if "\0" not in name else b""
    commit = hub.add("a/b", {"README.md": pattern, "x.jsonl": b"1"})
    data_files(f"{ROOT}/x.jsonl")
    kept = tmp_path / "cache" / "datasets--a--b"
    assert (kept / "snapshots" / commit / "../../../../outside.jsonl").is_file()
    (kept / "fastsft" / f"{commit}.json").write_text(json.dumps(["README.md", "x.jsonl", name]))
    hub.refuses = 500
    forget()
    for path in (ROOT, f"{ROOT}/{name}"):
        with suppress(ValueError):
            assert all(Path(file.path).resolve().is_relative_to(kept) for file in data_files(path))
    for text in ("/", "../..", "a" * 600, str(tmp_path), "\0"):
        for file in (kept / "refs" / "main", kept / "fastsft" / "revisions" / "main"):
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
        forget()
        refused(ROOT, "the hub was not reached, and no copy is in the cache")


def test_an_interrupt_ends_a_download_at_once(hub: LocalHub, tmp_path: Path) -> None:
    hub.add("a/b", {f"{n}.jsonl": b"1" * 1000 for n in range(12)})
    hub.seconds = 30.0
    program = "import sys; from fastsft.sources.data_files import data_files; data_files(sys.argv[1])"
    child = subprocess.Popen(
        [sys.executable, "-c", program, ROOT], env={**os.environ, **hub.environment(tmp_path / "cache")},
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while not any("resolve" in path for path in hub.asked):
            time.sleep(0.02)
        child.send_signal(signal.SIGINT)
        assert child.wait(15) != 0
    finally:
        child.kill()
        hub.seconds = 0.0


def test_a_cache_on_no_disk(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    hub.add("a/b", {"x.jsonl": b"x"})
    monkeypatch.setattr(constants, "HF_HUB_CACHE", "/proc/nothing")
    refused(ROOT, "cannot be written to the cache /proc/nothing: .*; HF_HOME names another place")


def test_a_cache_that_cannot_be_written(hub: LocalHub, forget: Any, tmp_path: Path) -> None:
    hub.add("a/b", {"x.jsonl": b"x"})
    assert read(ROOT) == [b"x"]
    forget()
    shutil.rmtree(tmp_path / "cache" / "datasets--a--b" / "fastsft")
    (tmp_path / "cache" / "datasets--a--b" / "fastsft").write_text("in the way")
    assert read(ROOT) == [b"x"]


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
    from fastsft.doctor.check import ProblemError
    from fastsft.doctor.data import _label

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
        (f"{ROOT}@..", "expected hf://datasets/owner/name"),
        (f"{ROOT}@a%2F..", "expected hf://datasets/owner/name"),
        ("hf://datasets/a/b c", "Repo id must use alphanumeric chars"),
        ("hf://datasets/a/gated", "for those only who accepted its terms"),
        (f"{ROOT}/missing", "no file, folder or configuration has this name; there are: README.md, c.xml, d"),
        (f"{ROOT}/*.parquet", "no file matches it"),
        (f"{ROOT}/***", r"\*\*\* is no pattern; expected one such as data/\*.jsonl"),
        (f"{ROOT}/x", rf"none of its splits \(validation, test\) is train; name what is meant: {ROOT}/x/d"),
        (ROOT, rf"several configurations; name one: {ROOT}/one, {ROOT}/two, {ROOT}/three"),
        (f"{ROOT}/one", "its README.md names absent/\\*, where no file is"),
        (f"{ROOT}/three", rf"kinds .jsonl, .parquet; name what is meant: {ROOT}/data/1.jsonl, {ROOT}/dat"),
        (f"{ROOT}/four", f"its split train has files of the kinds .xml; name what is meant: {ROOT}/data"),
        ("hf://datasets/a/xml", "of the kinds .xml; .*: hf://datasets/a/xml@refs/convert/parquet/default"),
        ("hf://datasets/a/mixed", "of the kinds .xml; name what is meant: hf://datasets/a/mixed/test.jsonl"),
        ("hf://datasets/a/empty", "it has no files"),
        ("hf://datasets/a/bz2", "of the kinds .jsonl.bz2, .jsonl; name what is meant: hf://datasets/a/bz2/train.j"),
        ("hf://datasets/a/py", "its split train has no data, but: a.py; expected .json, .jsonl, .parquet"),
    ],
)  # fmt: skip
def test_what_is_refused(hub: LocalHub, path: str, reason: str) -> None:
    configs = ("- config_name: one\n  data_files: absent/*\n"
               "- config_name: two\n  data_files: x/*\n"
               "- config_name: three\n  data_dir: data\n"
               "- config_name: four\n  data_files: c.xml\n")  # fmt: skip
    hub.add("a/b", {"README.md": card(configs), "c.xml": b"", "data/1.jsonl": b"", "data/1.parquet": b"",
                    "data/2.parquet": b"", "x/dev.jsonl": b"", "x/test.jsonl": b""})  # fmt: skip
    hub.add("a/xml", {"a.xml": b"a,b"})
    hub.add("a/xml", {"default/train/0000.parquet": b""}, "refs/convert/parquet")
    hub.add("a/mixed", {"train.xml": b"a,b", "test.jsonl": b"", "notes.json": b""})
    hub.add("a/bz2", {"train.jsonl": b"", "train-2.jsonl.bz2": b""})
    hub.add("a/py", {"a.py": b""})
    hub.add("a/empty", {})
    hub.gated.add("a/gated")
    refused(path, reason)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"---\nconfigs: [\n---\n", "README.md cannot be read, line 1 of it: .*; name files instead: .*/FI"),
        (b"---\na: !!timestamp x\n---\n", "README.md cannot be read: AttributeError"),
        (b"---\na: !!bool x\n---\n", "README.md cannot be read: KeyError"),
        (b"---\na: " + b"[" * 5000 + b"\n---\n", "README.md cannot be read: RecursionError"),
        (b"---\nconfigs: {a: 1}\n---\n", "configs of its README.md: expected a list of entries with a confi"),
        (b"---\n" + b"\n" * 900_000 + b"configs: 1\n---\n", "configs of its README.md: expected a list"),
        (b"#" * 1_100_000, "expected the card of a data set of at most 1048576 bytes"),
        (card("- config_name: two\n  data_files: [{split: train}]\n"), "data_files of the configuration two"),
        (card("- config_name: c\n  data_files: [{split: [1], path: x}]\n"), "expected patterns, or entries"),
        (card("- config_name: c\n  data_files: 'q\\nr'\n"), "its README.md names q.*r, where no file is"),
    ],
)  # fmt: skip
def test_cards_that_are_wrong_do_not_keep_files_away(hub: LocalHub, text: bytes, reason: str) -> None:
    hub.add("a/b", {"x.jsonl": b"1", "README.md": text})
    refused(ROOT, reason)
    assert read(f"{ROOT}/x.jsonl") == read(f"{ROOT}/*.jsonl") == [b"1"]


def test_the_hubs_own_copy_in_parquet(hub: LocalHub) -> None:
    hub.add("a/b", {"a.xml": b"a,b"})
    hub.add("a/b", {f"default/{split}/0000.parquet": split.encode() for split in ("train", "test")},
            "refs/convert/parquet")  # fmt: skip
    with pytest.raises(ValueError, match="the hub has most data as Parquet, too: ") as caught:
        data_files(ROOT)
    assert read(str(caught.value).rpartition(" ")[2]) == [b"train"]
    with pytest.raises(ValueError, match=r"folder or configuration has this name; there are: default$"):
        data_files(f"{ROOT}@refs/convert/parquet/other")


@pytest.mark.parametrize("name", ["/x.jsonl", "../x.jsonl", "a/../x.jsonl", "a//x.jsonl", "", "x\0.jsonl"])
def test_names_that_are_no_paths(hub: LocalHub, name: str) -> None:
    hub.add("a/b", {name: b"1", "y.jsonl": b"2"})
    refused(ROOT, "the hub lists a file with the name '.*', which is no path in it")


def refused(path: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        data_files(path)
    assert str(caught.value).startswith(path) and "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["HF://datasets/a/b", "https://huggingface.co/datasets/a/b"])
def test_other_names_of_a_data_set(path: str) -> None:
    refused(path, "is not a file, .*; a data set of the hub is hf://datasets/a/b")


def test_what_is_no_data_is_named(hub: LocalHub) -> None:
    hub.add(
        "a/b", {"x.jsonl": b"1", "licence.txt": b"", "logo.png": b"", ".gitattributes": b"", "README.md": b""}
    )
    with collected() as notices:
        assert read(ROOT) == [b"1"]
    assert notices.warned == [f"{ROOT}: not read, as they are no data files: licence.txt, logo.png"]


def test_records_of_the_hub_are_read_as_those_of_a_file(hub: LocalHub, tmp_path: Path) -> None:
    hub.add("a/b", {"train-0.jsonl": lines(RECORDS[:2]), "train-1.jsonl": lines(RECORDS[2:])})
    (tmp_path / "plain.jsonl").write_bytes(lines(RECORDS))
    assert converted(ROOT) == converted(tmp_path / "plain.jsonl")
