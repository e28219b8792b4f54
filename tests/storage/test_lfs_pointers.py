"""Pointers of Git LFS in the places of files: each reader names them and the way out."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from e2e.command_line import TRAINER
from fastsft import _C
from fastsft.arguments.parsing.flag_file import read_flag_file
from fastsft.lora.adapter_files import AdapterDirectory
from fastsft.model.causal_lm import CausalLM
from fastsft.runtime.regular_files import check_regular, read_json, read_regular
from fastsft.sources.data_files import DataFile, data_files
from fastsft.sources.readers import open_input, open_reader, read_records
from fastsft.tokenizer.tokenizer import Tokenizer

POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 4943162336\n"
)
WAY_OUT = r"Git-LFS pointer, in the place of the file itself; run `git lfs pull`"
ADAPTER = TRAINER.parent / "lora" / "q_v_adapter"


def pointed(folder: Path, source: Path, *names: str) -> Path:
    """A copy of the directory `source` whose files of these names are pointers."""
    shutil.copytree(source, folder, copy_function=shutil.copyfile)
    for name in names:
        for path in folder.glob(name):
            path.write_text(POINTER)
    return folder


OF_A_MODEL = {
    "config.json": lambda folder: CausalLM.from_pretrained(str(folder)),
    "tokenizer.model": lambda folder: Tokenizer.from_pretrained(str(folder)),
    "tokenizer_config.json": lambda folder: Tokenizer.from_pretrained(str(folder)),
    "*.safetensors": lambda folder: [
        _C.SafetensorsReader(str(path)) for path in folder.glob("*.safetensors")
    ],
}


@pytest.mark.parametrize("name", OF_A_MODEL)
def test_a_file_of_a_model(tmp_path: Path, name: str) -> None:
    model = pointed(tmp_path / "m", TRAINER / "model_untied", name)
    with pytest.raises(ValueError, match=WAY_OUT):
        OF_A_MODEL[name](model)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_an_adapter(tmp_path: Path, name: str) -> None:
    adapter = pointed(tmp_path / "a", ADAPTER, name)
    with pytest.raises(ValueError, match=WAY_OUT):
        AdapterDirectory(str(adapter))


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.parquet", "a.csv", "a.json.gz", "a.arrow"])
def test_a_file_of_data(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(POINTER)
    file = DataFile(str(tmp_path / name))
    for read in (
        lambda: open_input(file), lambda: open_reader(file), lambda: read_records(data_files(file.path))
    ):  # fmt: skip
        with pytest.raises(ValueError, match=WAY_OUT):
            read()


def test_a_file_of_flags(tmp_path: Path) -> None:
    for name in ("a.yaml", "a.json"):
        (tmp_path / name).write_text(POINTER)
        with pytest.raises(ValueError, match=WAY_OUT):
            read_flag_file(tmp_path / name)


def test_files_that_are_none(tmp_path: Path) -> None:
    """A longer text, and one of other words, are what they are."""
    path = tmp_path / "a"
    for content in (POINTER + "x" * 1024, "version https://git-lfs.github.com", "", "[]", "version 1\n"):
        path.write_text(content)
        assert read_regular(path) == content.encode()
        check_regular(path)
    path.write_text("[]")
    assert read_json(path) == []
