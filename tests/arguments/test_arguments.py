"""The command line, side by side with the real HfArgumentParser on transformers' own classes."""

import dataclasses
import json
import subprocess
import sys
from enum import Enum

import pytest
import transformers
from fastchat.train.train import DataArguments as TheirDataArguments
from fastchat.train.train import ModelArguments as TheirModelArguments
from fastchat.train.train import TrainingArguments as TheirTrainingArguments

from fastsft.arguments import DataArguments, ModelArguments, TrainingArguments
from fastsft.arguments.parsing.parser import DataclassParser
from fastsft.runtime import messages as notices

OURS = (ModelArguments, DataArguments, TrainingArguments)
THEIRS = (TheirModelArguments, TheirDataArguments, TheirTrainingArguments)
# Values that differ on purpose: no default tracker, fsdp keys are normalised, a directory holds the time.
DIFFERENT = {"report_to", "fsdp_config", "disable_tqdm", "logging_dir"}

README = [
    "--bf16", "True", "--num_train_epochs", "3", "--per_device_train_batch_size", "2",
    "--per_device_eval_batch_size", "2", "--gradient_accumulation_steps", "16", "--save_strategy", "steps",
    "--save_steps", "1200", "--save_total_limit", "10", "--learning_rate", "2e-5", "--weight_decay", "0.",
    "--warmup_ratio", "0.03", "--lr_scheduler_type", "cosine", "--logging_steps", "1",
    "--model_max_length", "2048", "--gradient_checkpointing", "True", "--lazy_preprocess", "True",
    "--model_name_or_path", "a", "--data_path", "b", "--output_dir", "c",
]  # fmt: skip


def ours(*words):
    return DataclassParser(OURS).parse_args_into_dataclasses(["--use_cpu", *words], look_for_args_file=False)


def theirs(*words):
    parser = transformers.HfArgumentParser(THEIRS)
    return parser.parse_args_into_dataclasses(["--use_cpu", *words], look_for_args_file=False)


def plain(value):
    if isinstance(value, list):
        return [plain(item) for item in value]
    if hasattr(value, "to_dict"):
        return value.to_dict()
    return value.value if isinstance(value, Enum) else value


def assert_same(mine, original):
    for a, b in zip(mine, original, strict=True):
        shared = {f.name for f in dataclasses.fields(a)} & {f.name for f in dataclasses.fields(b)}
        for name in sorted(shared - DIFFERENT):
            assert plain(getattr(a, name)) == plain(getattr(b, name)), name


ACCEPTED = {
    "dashes": "--weight-decay 0.1",
    "prefix": "--per_device_train_batch 3",
    "bare bool": "--bf16 --seed 1",
    "bare bool last": "--do_train",
    "true words": "--dataloader_drop_last YES --eval_on_start t --ignore_data_skip 1",
    "false words": "--dataloader_drop_last no --eval_on_start F --ignore_data_skip 0",
    "equals": "--bf16=False",
    "default True": "--no_average_tokens_across_devices",
    "default True, dashed": "--no-average-tokens-across-devices",
    "optional bool": "--tf32 False --disable_tqdm True",
    "negative int": "--max_steps -1",
    "float that is whole": "--save_steps 1200 --logging_steps 10",
    "ratios": "--save_steps 0.5 --logging_steps 0.1",
    "repeated": "--seed 1 --seed 2",
    "evaluation": "--eval_strategy steps --logging_steps 7",
    "evaluation by epoch": "--eval_strategy epoch --save_strategy epoch",
    "warm-up": "--warmup_steps 30",
    "schedule": '--lr_scheduler_type polynomial --lr_scheduler_kwargs {"power":2}',
    "empty fsdp": "--fsdp=",
    "seeds": "--seed 3 --data_seed 4",
    "own optimizer": "--adam_beta1 0.8 --adam_beta2 0.95 --adam_epsilon 1e-6 --max_grad_norm 0.5",
}


@pytest.mark.parametrize("line", ACCEPTED.values(), ids=ACCEPTED)
def test_accepted_as_the_original(line):
    words = line.split()
    assert_same(ours(*words), theirs(*words))


def test_defaults_are_fastchats():
    assert_same(ours(), theirs())


def test_readme_recipe():
    only_ours = "--tf32 True --evaluation_strategy no --fsdp_transformer_layer_cls_to_wrap LlamaDecoderLayer"
    _, data, args = ours(*README, *only_ours.split(), "--fsdp", "full_shard auto_wrap")
    assert args.sharding_strategy == "full_shard"
    assert args.gradient_checkpointing and args.recompute_mode == "auto"  # as much as memory needs
    assert args.eval_strategy == "no"
    assert args.token_budget == 2 * 2048
    assert data.lazy_preprocess
    assert_same(ours(*README), theirs(*README))


LEAVES = {
    "ambiguous prefix": "--learning 1e-4",
    "bool word": "--bf16 maybe",
    "bare optional bool": "--tf32",
    "choice": "--lr_scheduler_type cosin",
    "float for int": "--seed 42.0",
    "word for int": "--seed None",
}


@pytest.mark.parametrize("line", LEAVES.values(), ids=LEAVES)
@pytest.mark.parametrize("parse", [ours, theirs])
def test_leaves_with_status_2(parse, line, capsys):
    with pytest.raises(SystemExit) as left:
        parse(*line.split())
    assert left.value.code == 2


RAISES = {
    "--no_such_flag 1": "not used by the HfArgumentParser|unknown flag --no_such_flag: no known flag is near",
    "--fsdp full_shard auto_wrap": "not used by the HfArgumentParser|'auto_wrap' follows no flag",
    "--fsdp offload": "on its own",
    "--eval_strategy steps --logging_steps 0": "logging_steps|--logging",
    "--logging_steps 0": "logging",
    "--save_steps 1.5": "must be an integer if bigger than 1",
    "--warmup_ratio 1.5": "warmup_ratio",
    "--warmup_steps -1": "warmup_steps",
    "--optim sgdd": "sgdd",
}


@pytest.mark.parametrize("line", RAISES)
@pytest.mark.parametrize("parse", [ours, theirs])
def test_raises_as_the_original(parse, line):
    with pytest.raises(ValueError, match=RAISES[line]):
        parse(*line.split())


REFUSED = {
    "--fp16 True --bf16 True": "At most one of fp16 and bf16 can be True, but not both",
    "--fp16_full_eval True": "use --fp16 True",
    "--optim lomo": "use --optim adamw_torch",
    "--save_safetensors False": "safetensors is written",
    "--ddp_backend mpi": "use gloo or nccl",
    "--report_to comet": "expected none, mlflow, tensorboard, wandb or all, got comet",
    "--evaluation_strategy steps --eval_strategy epoch": "old name of --eval_strategy",
    '--fsdp hybrid_shard --fsdp_config {"hybrid_shard_size":0}': "at least 1, got 0",
    "--fsdp full": "unknown option 'full'",
    "--lr_scheduler_kwargs [1]": "expected a JSON object",
    "--per_device_train_batch_size 0": "at least 1",
    "--gradient_accumulation_steps 0": "at least 1",
    "--micro_batch_tokens 0": "at least 1",
    "--label_smoothing_factor 1": "below 1",
    "--warmup_steps 1.5": "a share below 1",
    "--max_shard_size 5XB": "--max_shard_size: expected a size like",
    "--max_shard_size 0GB": "more than 0 bytes",
}


@pytest.mark.parametrize(
    ("words", "resume", "no_resume"),
    [
        ("", None, False),
        ("--resume_from_checkpoint True", True, False),
        ("--resume_from_checkpoint true", True, False),
        ("--resume_from_checkpoint False", None, True),
        ("--resume_from_checkpoint out/checkpoint-3", "out/checkpoint-3", False),
    ],
)
def test_resume_words(words, resume, no_resume):
    *_, args = ours(*words.split())
    assert (args.resume_from_checkpoint, args.no_resume) == (resume, no_resume)


@pytest.mark.parametrize("line", REFUSED)
def test_refused_with_a_way_out(line):
    with pytest.raises(ValueError, match=REFUSED[line]):
        ours(*line.split())


@pytest.mark.parametrize(
    ("flag", "near"),
    [
        ("--learnig_rate", "--learning_rate"),
        ("--evaluation_stratgy", "--evaluation_strategy"),
        ("--gradient-acumulation-steps", "--gradient_accumulation_steps"),
        ("--model_nam_or_path", "--model_name_or_path"),
    ],
)
def test_unknown_flag_names_the_nearest(flag, near):
    with pytest.raises(ValueError, match=f"the nearest known flag is {near}"):
        ours(flag, "1")


def test_old_and_new_names():
    _, _, args = ours("--evaluation_strategy", "epoch", "--warmup_steps", "0.03", "--no_cuda")
    assert (args.eval_strategy, args.do_eval, args.use_cpu) == ("epoch", True, True)
    assert args.get_warmup_steps(24) == 1 and args.get_warmup_steps(100) == 3


@pytest.mark.parametrize(
    ("words", "total", "steps"),
    [
        (["--warmup_ratio", "0.03"], 24, 1),
        (["--warmup_steps", "5", "--warmup_ratio", "0.5"], 24, 5),
        ([], 24, 0),
    ],
)
def test_warmup_steps(words, total, steps):
    assert ours(*words)[2].get_warmup_steps(total) == theirs(*words)[2].get_warmup_steps(total) == steps


def test_a_flag_without_effect_is_named_once(caplog, monkeypatch):
    monkeypatch.setattr(notices, "_said", set())
    for _ in range(2):
        ours("--do_predict", "--tf32", "True")
    named = [record.message for record in caplog.records]
    assert len(named) == 2
    assert "do_predict has no effect" in named[0] and "tf32" in named[1]


def test_the_real_parser_takes_our_classes():
    parser = transformers.HfArgumentParser(OURS)
    words = [*README, "--fsdp", "full_shard auto_wrap", "--max_dropped", "1", "--lr_scheduler_kwargs", "{}",
             "--logging_dir", "x"]  # fmt: skip
    assert parser.parse_args_into_dataclasses(words) == DataclassParser(OURS).parse_args_into_dataclasses(
        words
    )


def test_subclassing():
    @dataclasses.dataclass
    class Mine(TrainingArguments):
        extra: int = 3

    (args,) = DataclassParser([Mine]).parse_args_into_dataclasses(["--extra", "4", "--seed", "5"])
    assert (args.extra, args.seed) == (4, 5)


def test_dictionaries_and_files(tmp_path):
    parser = DataclassParser(OURS)
    values = {"seed": 7, "data_path": "d.json", "output_dir": "o"}
    (tmp_path / "a.json").write_text(json.dumps(values))
    (tmp_path / "a.yaml").write_text("seed: 7\ndata_path: d.json\noutput_dir: o\n")
    wanted = parser.parse_dict(values)
    assert wanted[2].seed == 7 and wanted[1].data_path == "d.json"
    assert (
        parser.parse_json_file(tmp_path / "a.json") == parser.parse_yaml_file(tmp_path / "a.yaml") == wanted
    )
    with pytest.raises(ValueError, match=r"^unknown name sedd: no known name is near it"):
        parser.parse_dict({"sedd": 7})
    with pytest.raises(ValueError, match=r"^unknown name epochs: write num_train_epochs$"):
        parser.parse_dict({"epochs": 7})


def test_args_file_comes_before_the_command_line(tmp_path):
    (tmp_path / "run.args").write_text("--seed 1\n--learning_rate 1e-3")
    parsed = DataclassParser(OURS).parse_args_into_dataclasses(
        ["--seed", "2"], args_filename=tmp_path / "run.args"
    )
    assert (parsed[2].seed, parsed[2].learning_rate) == (2, 1e-3)


def test_to_dict_is_json_and_complete():
    args = TrainingArguments(output_dir="~/x", fsdp="full_shard")
    values = json.loads(args.to_json_string())
    assert set(values) == {f.name for f in dataclasses.fields(args) if f.init}
    assert not args.output_dir.startswith("~")
    assert args.to_sanitized_dict()["train_batch_size"] == 8


def test_import_is_light():
    code = "import sys, fastsft.arguments\nprint([m for m in ('torch', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("word", ["--lora_rank", "--adapter", "--peft_config", "--use-lora"])
def test_flags_of_lora_of_other_trainers_name_ours(word):
    with pytest.raises(ValueError, match=f"{word}: LoRA's flags are FastChat's, with --lora True or in"):
        ours(word, "8")


def test_several_flags_of_lora_are_told_at_once():
    with pytest.raises(ValueError, match="--lora_rank, --lora_scale: LoRA's flags are") as error:
        ours("--lora_rank", "8", "--lora_scale", "16", "--conv_template", "x", "--vision_tower", "y")
    assert "--conv_template: write --template" in str(error.value)
    assert "--vision_tower: not in; conversations are of text" in str(error.value)
    assert "local_rank" not in str(error.value).split(";", 1)[1]


def test_the_own_default_of_transformers_5_is_no_news(caplog, monkeypatch):
    """Its TrainingArguments have None where the field of 4.57 has `trackio`."""
    monkeypatch.setattr(notices, "_said", set())
    TrainingArguments(trackio_space_id=None, use_cpu=True)
    assert not caplog.records
    TrainingArguments(project="mine", use_cpu=True)
    assert [record.message.split(" has")[0] for record in caplog.records] == ["--project"]
