"""Pairs, texts, words and proofs of the tokenizer against plain containers, in a program without Python."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from native_program import build_program

SOURCES = [
    "tests/tokenizer/tables_program.cpp",
    "csrc/core/anonymous_mapping.cpp",
    *(
        f"csrc/tokenizer/bpe/{name}.cpp"
        for name in (
            "pair_merger", "pair_table", "single_token_proof", "text_index", "word_batch", "word_cache",
            "word_index",
        )
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_program(tmp_path_factory.mktemp("tables") / "tables_program", SOURCES, ("-O1",))


@pytest.mark.parametrize("tables", ["pairs", "texts", "word_index", "self_merges", "words"])
def test_tables(program: Path, tables: str) -> None:
    """self_merges: no token is proven that merging its symbols, the best pair first, does not give."""
    result = subprocess.run([program, tables], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
