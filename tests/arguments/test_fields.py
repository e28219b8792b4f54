"""Every field of transformers 4.28 to 5.x: parses, has its default, and the treatment that is stated for it.

golden/training_arguments.tsv: name, type, defaults of 4.57 and 5.x and treatment of all 148 fields.
"""

import ast
import dataclasses
from pathlib import Path

import pytest
import transformers

from fastsft.arguments import TrainingArguments
from fastsft.arguments.parsing.parser import DataclassParser
from fastsft.arguments.support import support_of
from fastsft.runtime import messages as notices

LINES = (Path(__file__).parents[1] / "golden" / "training_arguments.tsv").read_text().splitlines()
ROWS = [dict(zip(LINES[0].split("\t"), line.split("\t"), strict=True)) for line in LINES[1:]]
FIELDS = {field.name: field for field in dataclasses.fields(TrainingArguments)}
FLAGS = [row for row in ROWS if row["name"] != "_n_gpu"]
# FastChat pins it; a float is a ratio; fastsft's engine decides; only 5.x knows a value.
OTHER_DEFAULT = {"optim", "use_cache"}

# A value away from the default, for every field with an effect or without one.
VALUES = {
    "output_dir": "out", "overwrite_output_dir": "True", "do_train": "True", "do_eval": "True",
    "do_predict": "True", "evaluation_strategy": "epoch", "prediction_loss_only": "True",
    "per_device_train_batch_size": "3", "per_device_eval_batch_size": "5", "gradient_accumulation_steps": "2",
    "eval_accumulation_steps": "4", "eval_delay": "2.0", "learning_rate": "0.001", "weight_decay": "0.1",
    "adam_beta1": "0.8", "adam_beta2": "0.95", "adam_epsilon": "1e-06", "max_grad_norm": "0.5",
    "num_train_epochs": "1.5", "max_steps": "7", "lr_scheduler_type": "cosine", "warmup_ratio": "0.1",
    "warmup_steps": "4", "log_level": "info", "log_level_replica": "error", "log_on_each_node": "False",
    "logging_dir": "logs", "logging_strategy": "epoch", "logging_first_step": "True", "logging_steps": "7",
    "logging_nan_inf_filter": "False", "save_strategy": "epoch", "save_steps": "9", "save_total_limit": "2",
    "no_cuda": "True", "seed": "7", "data_seed": "8", "jit_mode_eval": "True", "use_ipex": "True",
    "bf16": "True", "fp16": "True", "fp16_full_eval": "True",
    "fp16_opt_level": "O2", "tf32": "False", "dataloader_drop_last": "True",
    "eval_steps": "6", "dataloader_num_workers": "2", "run_name": "mine", "disable_tqdm": "True",
    "remove_unused_columns": "False", "metric_for_best_model": "eval_loss", "greater_is_better": "True",
    "ignore_data_skip": "True", "fsdp": "full_shard", "fsdp_min_num_params": "1000",
    "fsdp_config": '{"version": 2}', "fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer",
    "label_smoothing_factor": "0.1", "optim": "adamw_torch_fused", "length_column_name": "n",
    "adafactor": "True",
    "ddp_find_unused_parameters": "False", "ddp_bucket_cap_mb": "25", "dataloader_pin_memory": "False",
    "skip_memory_metrics": "False", "resume_from_checkpoint": "out/checkpoint-3", "hub_model_id": "me/model",
    "hub_strategy": "end", "hub_token": "secret", "hub_private_repo": "True",
    "gradient_checkpointing": "True",
    "include_inputs_for_metrics": "True", "push_to_hub_model_id": "model", "push_to_hub_organization": "us",
    "push_to_hub_token": "secret", "full_determinism": "True", "torchdynamo": "inductor", "ray_scope": "all",
    "ddp_timeout": "60", "torch_compile": "True", "torch_compile_backend": "inductor",
    "torch_compile_mode": "default", "use_cpu": "True", "ddp_backend": "gloo",
    "ddp_broadcast_buffers": "True", "hub_always_push": "True",
    "gradient_checkpointing_kwargs": '{"use_reentrant": false}', "eval_strategy": "steps",
    "torch_empty_cache_steps": "3", "lr_scheduler_kwargs": '{"num_cycles": 2}', "save_only_model": "True",
    "dataloader_prefetch_factor": "2", "accelerator_config": '{"non_blocking": true}',
    "dataloader_persistent_workers": "True", "include_for_metrics": "inputs",
    "eval_do_concat_batches": "False", "eval_on_start": "True", "use_liger_kernel": "True",
    "eval_use_gather_object": "True", "average_tokens_across_devices": "False", "hub_revision": "main",
    "liger_kernel_config": '{"rope": true}', "project": "mine", "trackio_space_id": "mine",
    "use_cache": "True", "enable_jit_checkpoint": "True", "trackio_bucket_id": "mine",
    "trackio_static_space_id": "mine", "dataloader_multiprocessing_context": "spawn",
    "dataloader_in_order": "False", "ddp_static_graph": "True", "batch_eval_metrics": "True",
    "group_by_length": "True", "neftune_noise_alpha": "5.0", "include_tokens_per_second": "True",
    "include_num_input_tokens_seen": "non_padding", "train_sampling_strategy": "sequential",
    "split_batches": "True", "load_best_model_at_end": "True", "save_safetensors": "True",
    "bf16_full_eval": "True", "save_on_each_node": "True", "push_to_hub": "True", "report_to": "none",
    "restore_callback_states_from_checkpoint": "True", "local_rank": "0",
    "deepspeed": '{"bf16": {"enabled": "auto"}}',
    "label_names": "labels", "half_precision_backend": "auto", "fp16_backend": "auto", "mp_parameters": "",
}  # fmt: skip
BESIDE = {
    "dataloader_prefetch_factor": ["--dataloader_num_workers", "1"],
    "bf16_full_eval": ["--bf16", "True"],
    "fp16_full_eval": ["--fp16", "True"],
    "deepspeed": ["--bf16", "True"],
    "load_best_model_at_end": ["--eval_strategy", "steps", "--eval_steps", "500"],
}
# Names of a field whose attribute becomes something else than the word.
SETTLED = {"local_rank": 0, "fsdp": ["full_shard"], "label_names": ["labels"], "report_to": [],
           "include_for_metrics": ["inputs"]}  # fmt: skip
REFUSED_VALUES = {
    "per_gpu_train_batch_size": "4", "per_gpu_eval_batch_size": "4", "use_mps_device": "True",
    "xpu_backend": "ccl", "tpu_num_cores": "8", "tpu_metrics_debug": "True",
    "debug": "underflow_overflow", "past_index": "0", "sharded_ddp": "simple", "optim_args": "a=b",
    "use_legacy_prediction_loop": "True", "auto_find_batch_size": "True",
    "dispatch_batches": "True", "tp_size": "2", "optim_target_modules": "q_proj", "parallelism_config": "{}",
}  # fmt: skip
REFUSED_BESIDES = {
    "half_precision_backend": "apex", "fp16_backend": "apex", "mp_parameters": "x", "label_names": "start",
    "save_safetensors": "False", "optim": "lion_8bit", "ddp_backend": "mpi", "hub_strategy": "checkpoint",
    "report_to": "comet_ml", "torch_empty_cache_steps": "0",
    "accelerator_config": '{"dispatch_batches": true}',
    "include_num_input_tokens_seen": "some", "bf16_full_eval": "True",
}  # fmt: skip


def parse(*words):
    return DataclassParser(TrainingArguments).parse_args_into_dataclasses(
        ["--use_cpu", *words], look_for_args_file=False
    )[0]


def literal(text):
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def test_all_names_are_there():
    assert len(ROWS) == 148
    assert {row["name"] for row in ROWS} <= set(FIELDS)
    installed = {field.name for field in dataclasses.fields(transformers.TrainingArguments)}
    assert len(installed) > 115 and installed <= set(FIELDS)


@pytest.mark.parametrize("row", FLAGS, ids=lambda row: row["name"])
def test_treatment_and_default(row):
    field = FIELDS[row["name"]]
    assert support_of(field).treatment == row["treatment"] and field.init
    listed = [literal(row[key].split(" (")[0]) for key in ("default_4_57", "default_5")]
    ours = [] if field.name == "include_for_metrics" else field.default
    assert ours in listed or field.name in OTHER_DEFAULT
    assert support_of(field)


def test_the_field_that_is_no_flag():
    assert not FIELDS["_n_gpu"].init
    assert parse()._n_gpu == 0


@pytest.mark.parametrize(
    "row", [row for row in FLAGS if row["treatment"] == "IMPLEMENT"], ids=lambda r: r["name"]
)
def test_implemented_values_are_kept(row, monkeypatch, caplog):
    monkeypatch.setattr(notices, "_said", set())
    name, value = row["name"], VALUES[row["name"]]
    args = parse(f"--{name}={value}", *BESIDE.get(name, []))
    kept = getattr(args, name)
    if name in SETTLED:
        assert kept == SETTLED[name]
    elif isinstance(kept, dict):
        assert literal(value.replace("true", "True").replace("false", "False")).items() <= kept.items()
    else:
        assert str(kept) == value or float(value) == kept
    assert not [record for record in caplog.records if f"--{name} has no effect" in record.message]


@pytest.mark.parametrize(
    "row", [row for row in FLAGS if row["treatment"] == "NO-OP"], ids=lambda r: r["name"]
)
def test_values_without_effect_are_named_once(row, monkeypatch, caplog):
    monkeypatch.setattr(notices, "_said", set())
    name, value, field = row["name"], VALUES[row["name"]], FIELDS[row["name"]]
    for _ in range(2):
        args = parse(f"--{name}={value}", *BESIDE.get(name, []))
    named = [record.message for record in caplog.records if f"--{name} has no effect: " in record.message]
    at_default = literal(value) == field.default
    assert len(named) == (0 if at_default or support_of(field).quiet else 1)
    assert SETTLED.get(name, str(getattr(args, name)) == value) or isinstance(getattr(args, name), dict)
    parse()  # at its default nothing is said
    assert len([r for r in caplog.records if f"--{name} has" in r.message]) == len(named)


@pytest.mark.parametrize(
    "row", [row for row in FLAGS if row["treatment"] == "REJECT"], ids=lambda r: r["name"]
)
def test_refused_values_name_the_field_and_the_way_out(row):
    name, field = row["name"], FIELDS[row["name"]]
    with pytest.raises(ValueError, match=f"^fastsft does not support --{name}.*; ") as error:
        parse(f"--{name}={REFUSED_VALUES[name]}")
    assert support_of(field).remark in str(error.value)
    for neutral in (field.default, None, False, ""):
        TrainingArguments("out", use_cpu=True, **{name: neutral})


@pytest.mark.parametrize("name", REFUSED_BESIDES)
def test_single_values_that_are_refused(name):
    with pytest.raises(ValueError, match=name):
        parse(f"--{name}={REFUSED_BESIDES[name]}")


def test_every_row_has_a_value():
    assert set(VALUES) | set(REFUSED_VALUES) == {row["name"] for row in FLAGS}


WRONG_WORDS = [row["name"] for row in FLAGS if row["type"] in ("int", "float", "bool", "Optional[bool]")]


@pytest.mark.parametrize("name", WRONG_WORDS)
def test_words_of_another_type_leave_with_status_2(name, capsys):
    with pytest.raises(SystemExit) as left:
        parse(f"--{name}", "wrong")
    assert left.value.code == 2
    assert name in capsys.readouterr().err
