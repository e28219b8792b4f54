"""What fastsft wrote stays its own, whatever writes were broken off in between."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastsft.model.output_directory import _remove_old_tokenizer
from fastsft.runtime.output_files import digest_of, is_written, record_written, recorded_files, write_output


@pytest.mark.parametrize("broken_off", range(4))
def test_writes_that_were_broken_off(broken_off: int, tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    write_output(path, "first")
    for number in range(broken_off):
        record_written(tmp_path, {path.name: digest_of(f"never written {number}".encode())})
    assert is_written(path) and len(recorded_files(tmp_path)[path.name]) <= 2
    write_output(path, "second")
    assert path.read_text() == "second" and not list(tmp_path.glob("previous-*"))
    assert is_written(path)


def test_a_change_by_others_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    write_output(path, "first")
    path.write_text("other")
    record_written(tmp_path, {path.name: digest_of(b"never written")})
    write_output(path, "second")
    (aside,) = tmp_path.glob("previous-*")
    assert aside.read_text() == "other"


def test_files_of_an_earlier_tokenizer_do_not_stay(tmp_path: Path) -> None:
    """Those of others go aside, fastsft's own and links go; nothing where no tokenizer comes."""
    write_output(tmp_path / "chat_template.jinja", "ours")
    for name in ("tokenizer.model", "vocab.json", "tokenizer_config.json", "notes.txt"):
        (tmp_path / name).write_text("theirs")
    (tmp_path / "merges.txt").symlink_to("notes.txt")
    before = {path.name for path in tmp_path.iterdir()}
    _remove_old_tokenizer(tmp_path, {"config.json": 1})
    assert {path.name for path in tmp_path.iterdir()} == before
    _remove_old_tokenizer(tmp_path, {"tokenizer_config.json": 1, "tokenizer.json": 1})
    left = {path.name for path in tmp_path.iterdir() if path.name[0] not in "."}
    aside = {name for name in left if name.startswith("previous-")}
    assert left - aside == {"tokenizer_config.json", "notes.txt"}
    assert {name.rpartition("Z-")[2] for name in aside} == {"tokenizer.model", "vocab.json"}
