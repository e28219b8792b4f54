"""If the Trainers of two ranks differ, the error on both names the difference, the ranks and the values."""

from __future__ import annotations

from pathlib import Path

import pytest

import disagreeing_run
from ranks import run_ranks
from tiny_models import write_model

SAID = {
    "learning_rate": "--learning_rate: rank 0 has 1.0, rank 1 has 2.0",
    "callbacks": "callbacks: rank 0 has none, rank 1 has Watcher",
    "metrics": "Trainer(compute_metrics=): rank 0 has none, rank 1 has given",
    "evaluation": "Trainer(eval_dataset=): rank 0 has none, rank 1 has given",
    "element": "weights: model.layers.1.mlp.up_proj.weight: rank 0 has [56, 32] torch.float32 ",
    "length": "rows of the training data: rank 0 has 8, rank 1 has 7",
    "content": "checksum of the rows of the training data: rank 0 has ",
    "table": "digest of the items of the training data: rank 0 has ",
    "collated": "digest of the items of the training data: rank 0 has ",
    "drawn": "the training data (Drawn): ranks have compared the number of rows, and cannot",
    "equal_tables": "taken",
    "place": "the model's weights are in: rank 0 has a directory, rank 1 has memory",
    "copies": "taken",
    "resume": "train(resume_from_checkpoint=): rank 0 has none, rank 1 has True",
    "changed": "--max_steps: rank 0 has 4, rank 1 has 3",
    "later_callback": "callbacks: rank 0 has none, rank 1 has Watcher",
    "other_evaluation": "rows of the data of an evaluation: rank 0 has 8, rank 1 has 7",
    "nothing": "trained",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), "untied")


@pytest.mark.variants(
    "[learning_rate]",
    "[element]",
    "[content]",
    "[drawn]",
    "[equal_tables]",
    "[place]",
    "[resume]",
    "[later_callback]",
    "[other_evaluation]",
    "[nothing]",
)
@pytest.mark.parametrize("kind", SAID)
def test_both_ranks_are_told(model: Path, tmp_path: Path, kind: str) -> None:
    told = run_ranks(2, disagreeing_run.outcome, kind, model, tmp_path / "out", launched=True, seconds=120)
    assert told[0] == told[1] and told[0].startswith(SAID[kind]), told


@pytest.fixture(scope="module")
def large_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model with several weight files, which are larger than the sample that digests read."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=70, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("large")
    LlamaForCausalLM(config).save_pretrained(folder, max_shard_size="3MB")
    assert len(list(folder.glob("*.safetensors"))) >= 2
    return folder


def test_one_value_of_a_large_file_is_seen(large_model: Path, tmp_path: Path) -> None:
    """A change outside of the sampled parts of a file is found, even with the old size and time."""
    last = sorted(large_model.glob("*.safetensors"))[-1].name
    told = run_ranks(
        2, disagreeing_run.outcome, "one_value", large_model, tmp_path / "out", launched=True, seconds=120
    )
    assert told[0] == told[1] and told[0].startswith(f"weights: {last}: rank 0 has "), told
    assert "checksum" in told[0] and "different, too" not in told[0]
