"""Command lines of FastChat and of mission rows A9 and A10 parse and validate; nothing is trained."""

import json
import shlex

import pytest

from fastsft.arguments import DataArguments, ModelArguments, TrainingArguments
from fastsft.arguments.parsing.parser import DataclassParser

FSDP = """--fsdp "full_shard auto_wrap" --fsdp_transformer_layer_cls_to_wrap 'LlamaDecoderLayer'"""
LINES = {
    "mission A9, train": f"""--model_name_or_path lmsys/vicuna-7b-v1.5 --data_path data/sharegpt_clean.json
        --output_dir output/vicuna-7b-sft --num_train_epochs 3 --per_device_train_batch_size 4
        --gradient_accumulation_steps 8 --learning_rate 2e-5 --model_max_length 2048 --bf16 True {FSDP}
        --lazy_preprocess True --save_strategy steps --save_steps 500""",
    "mission A9, train_mem": """--model_name_or_path lmsys/vicuna-7b-v1.5 --data_path data/sharegpt_clean.json
        --output_dir output/vicuna-7b-sft-flash --bf16 True --fsdp "full_shard auto_wrap" """,
    "README": f"""--model_name_or_path meta-llama/Llama-2-7b-hf --data_path data/dummy_conversation.json
        --bf16 True --output_dir output_vicuna --num_train_epochs 3 --per_device_train_batch_size 2
        --per_device_eval_batch_size 2 --gradient_accumulation_steps 16 --evaluation_strategy "no"
        --save_strategy "steps" --save_steps 1200 --save_total_limit 10 --learning_rate 2e-5
        --weight_decay 0. --warmup_ratio 0.03 --lr_scheduler_type "cosine" --logging_steps 1 {FSDP}
        --tf32 True --model_max_length 2048 --gradient_checkpointing True --lazy_preprocess True""",
    "train_vicuna_13b.sh": f"""--model_name_or_path llama-13b --data_path d.json --bf16 True
        --output_dir output13b --num_train_epochs 3 --per_device_train_batch_size 1
        --per_device_eval_batch_size 1 --gradient_accumulation_steps 4 --evaluation_strategy "steps"
        --eval_steps 1200 --save_strategy "steps" --save_steps 1200 --learning_rate 2e-5 --weight_decay 0.
        --warmup_ratio 0.05 --lr_scheduler_type "cosine" --logging_steps 1 {FSDP} --tf32 True
        --model_max_length 2048 --gradient_checkpointing True --lazy_preprocess True""",
    "train_vicuna_7b.sh, bf16": f"""--model_name_or_path llama-7b --data_path d.json --bf16
        --output_dir output_7b --num_train_epochs 3 --per_device_train_batch_size 2
        --per_device_eval_batch_size 16 --gradient_accumulation_steps 16 --evaluation_strategy "steps"
        --eval_steps 1500 --save_strategy "steps" --save_steps 1500 --save_total_limit 8 --learning_rate 2e-5
        --weight_decay 0. --warmup_ratio 0.04 --lr_scheduler_type "cosine" --logging_steps 1 {FSDP}
        --model_max_length 2048 --gradient_checkpointing True --lazy_preprocess True""",
    "train_codellama_34b_sharegpt_full.sh": f"""--model_name_or_path c --data_path d.json --bf16 True
        --output_dir o --num_train_epochs 3 --per_device_train_batch_size 1 --per_device_eval_batch_size 32
        --gradient_accumulation_steps 8 --evaluation_strategy "no" --eval_steps 1500 --save_strategy "epoch"
        --save_steps 1500 --save_total_limit 8 --learning_rate 2e-5 --weight_decay 0. --warmup_ratio 0.04
        --lr_scheduler_type "cosine" --logging_steps 1 {FSDP} --tf32 True --model_max_length 1024
        --gradient_checkpointing True --lazy_preprocess True""",
    "train_magicoder.sh": f"""--model_name_or_path c --data_path d.json --bf16 True --output_dir o
        --num_train_epochs 2 --per_device_train_batch_size 4 --per_device_eval_batch_size 32
        --gradient_accumulation_steps 1 --evaluation_strategy "no" --eval_steps 1500 --save_strategy "epoch"
        --save_steps 1500 --save_total_limit 8 --learning_rate 5e-5 --weight_decay 0. --warmup_steps 15
        --lr_scheduler_type "linear" --logging_steps 1 {FSDP} --tf32 True --model_max_length 4096
        --gradient_checkpointing True --lazy_preprocess True""",
}


def parse(line, *more):
    parser = DataclassParser((ModelArguments, DataArguments, TrainingArguments))
    words = [*shlex.split(line), "--use_cpu", *more]
    return parser.parse_args_into_dataclasses(words, look_for_args_file=False)


@pytest.mark.parametrize("name", LINES)
def test_parses_and_means_what_it_says(name):
    line = LINES[name]
    model, data, args = parse(line)
    given = dict(zip(*(iter(shlex.split(line.replace("--bf16\n", "--bf16 True\n"))),) * 2, strict=True))
    assert model.model_name_or_path == given["--model_name_or_path"]
    assert data.data_path == given["--data_path"]
    assert data.lazy_preprocess is ("--lazy_preprocess" in given)
    assert (args.sharding_strategy, args.bf16) == ("full_shard", True)
    assert args.eval_strategy == given.get("--evaluation_strategy", "no")
    for flag, kind in (
        ("learning_rate", float), ("num_train_epochs", float), ("save_steps", int), ("model_max_length", int),
        ("warmup_ratio", float), ("warmup_steps", int), ("gradient_accumulation_steps", int),
        ("per_device_train_batch_size", int), ("lr_scheduler_type", str), ("save_strategy", str),
    ):  # fmt: skip
        if f"--{flag}" in given:
            assert getattr(args, flag) == kind(given[f"--{flag}"])


def test_zero_3_file_of_fastchat(tmp_path):
    """The command of FastChat's page on training, without its LoRA flags."""
    file = {
        "fp16": {"enabled": "auto", "loss_scale": 0},
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": True},
                              "offload_param": {"device": "cpu", "pin_memory": True}},
        "train_batch_size": "auto",
    }  # fmt: skip
    (tmp_path / "s3.json").write_text(json.dumps(file))
    line = LINES["README"].replace(FSDP, f"--deepspeed {tmp_path / 's3.json'}")
    args = parse(line, "--local_rank=0")[2]
    assert (args.sharding_strategy, args.offload, args.deepspeed_plan.stage) == ("full_shard", True, 3)


def test_what_older_scripts_ask_for_is_refused_with_the_way_out():
    assert parse(LINES["README"].replace("--bf16 True", "--fp16"))[2].fp16
    with pytest.raises(ValueError, match="use --optim adamw_torch"):
        parse(LINES["README"], "--optim", "paged_adamw_8bit")
    with pytest.raises(ValueError, match="--use_lora: LoRA's flags are FastChat's"):
        parse(LINES["README"], "--use_lora", "True")
