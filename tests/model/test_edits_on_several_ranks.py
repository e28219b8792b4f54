"""Edits of a given model on two ranks: every way of saving has them, and readers see what is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from edited_weights_run import SAVES, edit_and_save, write_in_training
from ranks import run_ranks
from tiny_models import weights_of, write_model


@pytest.mark.parametrize("fsdp", ["", "full_shard"])
def test_edits_before_a_save(tmp_path: Path, fsdp: str) -> None:
    source = write_model(tmp_path / "model", "untied")
    output = tmp_path / "output"
    ranks: list[dict[str, Any]] = run_ranks(2, edit_and_save, source, output, fsdp, launched=True)
    for name in SAVES:
        got = weights_of(output if name == "safe" else output / name)
        expected = ranks[0]["expected"][name]
        assert got.keys() == expected.keys()
        for key, value in expected.items():
            torch.testing.assert_close(got[key], value)
    for rank in ranks:
        assert "model.embed_tokens.weight: rank 0 has" in rank["alone"] and "rank 1 has" in rank["alone"]
    seen, trained = ranks[0]["seen"], ranks[0]["trained"]
    assert seen == ranks[1]["seen"]
    if fsdp:  # ranks have shards: the old weights, and a line
        assert seen[0] == seen[1] != trained
    else:
        assert seen[0] != seen[1] == pytest.approx(trained, rel=1e-6)


@pytest.mark.parametrize("fsdp", ["", "full_shard"])
def test_weights_written_on_several_ranks_are_refused(tmp_path: Path, fsdp: str) -> None:
    source = write_model(tmp_path / "model", "untied")
    messages = run_ranks(2, write_in_training, source, tmp_path / "output", fsdp, launched=True)
    assert all("was changed while train() runs on several ranks" in message for message in messages)
