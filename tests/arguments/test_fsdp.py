"""--fsdp and --fsdp_config: which strategy, where the state is, which ranks make a node."""

import json

import pytest

from fastsft.arguments import TrainingArguments


@pytest.mark.parametrize(
    ("value", "strategy"),
    [(None, "no_shard"), (True, "full_shard"), (["shard_grad_op"], "shard_grad_op"), ("no_shard", "no_shard"),
     ("auto_wrap", "full_shard"), ("shard_grad_op auto_wrap", "shard_grad_op"),
     ("hybrid_shard auto_wrap", "hybrid_shard"), ("hybrid_shard_zero2 offload", "hybrid_shard_zero2")],
)  # fmt: skip
def test_sharding_strategy(value, strategy):
    assert TrainingArguments(output_dir="x", fsdp=value).sharding_strategy == strategy


def test_offload():
    assert TrainingArguments(output_dir="x", fsdp="full_shard auto_wrap offload").offload
    assert TrainingArguments(output_dir="x", fsdp="full_shard", fsdp_config='{"cpu_offload": "true"}').offload
    assert not TrainingArguments(output_dir="x", fsdp="full_shard").offload


def test_node_size(monkeypatch):
    for name, value in {"RANK": 3, "LOCAL_RANK": 1, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    assert TrainingArguments(output_dir="x", fsdp="full_shard").node_size == 0
    assert TrainingArguments(output_dir="x", fsdp="hybrid_shard").node_size == 2
    for size, expected in [(1, 1), ("4", 4)]:
        chosen = {"hybrid_shard_size": size}
        assert (
            TrainingArguments(output_dir="x", fsdp="hybrid_shard", fsdp_config=chosen).node_size == expected
        )
    with pytest.raises(ValueError, match="4 ranks do not make nodes of 3 ranks"):
        _ = TrainingArguments(
            output_dir="x", fsdp="hybrid_shard", fsdp_config={"hybrid_shard_size": 3}
        ).node_size
    monkeypatch.setenv("LOCAL_RANK", "0")  # dealt round the machines
    with pytest.raises(ValueError, match="must follow each other"):
        _ = TrainingArguments(output_dir="x", fsdp="hybrid_shard").node_size


def test_fsdp_config(tmp_path):
    path = tmp_path / "fsdp.json"
    path.write_text(json.dumps({"fsdp_activation_checkpointing": "true", "fsdp_version": 2}))
    assert TrainingArguments(output_dir="x", fsdp_config=str(path)).recompute_mode == "auto"
    with pytest.raises(ValueError, match="use one"):
        TrainingArguments(output_dir="x", fsdp_config=str(path), gradient_checkpointing=True)
    for config, message in [
        ({"xla": True}, "does not support fsdp_config xla"),
        ({"state_dict_type": "SHARDED_STATE_DICT"}, "consolidated safetensors"),
        ({"wrap": 1}, "unknown key 'wrap'"),
        ({"min_num_params": 3, "transformer_layer_cls_to_wrap": ["A"]}, "mutually exclusive"),
    ]:
        with pytest.raises(ValueError, match=message):
            TrainingArguments(output_dir="x", fsdp_config=config)


def test_reductions_of_gradients():
    """A flag of its own, and accelerate's place for it."""
    kwargs = {"gradient_accumulation_kwargs": {"sync_each_batch": "true"}}
    assert TrainingArguments(output_dir="x").sync_each_batch is None
    assert TrainingArguments(output_dir="x", sync_each_batch=False).sync_each_batch is False
    assert TrainingArguments(output_dir="x", accelerator_config=kwargs).sync_each_batch is True
    with pytest.raises(ValueError, match="--sync_each_batch contradicts gradient_accumulation_kwargs"):
        TrainingArguments(output_dir="x", accelerator_config=kwargs, sync_each_batch=False)
    with pytest.raises(ValueError, match="--sync_each_batch False keeps gradients whole in float32, and"):
        TrainingArguments(output_dir="x", sync_each_batch=False, grad_dtype="bfloat16")
