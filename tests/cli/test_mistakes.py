"""Mistakes of a new user: each ends at once with one line that names the way out, and no traceback."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cli.test_planted_files import training
from e2e.command_line import TRAINER
from forked_commands import run_commands
from golden_text import human_gpt

MODEL, DATA = TRAINER / "model_untied", TRAINER / "data" / "first50.json"
ADAPTER = TRAINER.parent / "lora" / "q_v_adapter"
SECONDS = 60.0  # none of them waits for anything

# The words of a command in a folder of its own, its status, and a part of its last line.
OF_COMMANDS: dict[str, tuple[str, int, str]] = {
    "no such command": ("trian", 2, "no command 'trian'; the nearest is train"),
    "a command of no kind": ("srve", 2, "expected one of train, demo"),
    "a command of another program": ("finetune", 2, "fastsft train trains"),
    "help of a word": ("train --help quantum", 2, "--quantum: no known flag is near it"),
    "args of nothing": ("args learing_rate", 1, "the nearest known flag is --learning_rate"),
    "args of another trainer": ("args --use_lora", 1, "LoRA's flags are FastChat's"),
    "args of two": ("args seed lr", 2, "expected one NAME, got seed lr"),
    "inspect without data": ("inspect --model model", 2, "write fastsft inspect --data_path FILE"),
    "inspect without a model": ("inspect --data data.json", 2, "expected --model_name_or_path DIR"),
    "inspect of a mistyped model": ("inspect --model modle --data data.json", 2, "modle: no such directory"),
    "inspect of mistyped data": ("inspect --model model --data dta.json", 2, "dta.json is not a file"),
    "inspect of a directory": ("inspect --model model --data model", 2, "name its files: model/*.jsonl"),
    "inspect of a record": ("inspect --model model --data data.json --record 999", 2, "id or number 999"),
    "inspect of latin-1": ("inspect --model model --data latin.json", 1, "iconv -f WINDOWS-1252 -t UTF-8"),
    "inspect of no token": ("inspect --model model --data data.json --model_max_length 0", 2, "at least 1"),
    "data without report": ("data", 2, "expected report|convert, got none"),
    "data of no file": ("data report nope.json", 2, "nope.json is not a file"),
    "data of a flag": ("data report --data data.json", 2, "unknown flag --data: "),
    "data of an abbreviation": ("data report data.json --data_form auto", 2, "flag is --data_format"),
    "a command in capitals": ("TRAIN", 2, "the nearest is train"),
    "data of one place": ("data convert data.json", 2, "got none; write fastsft data convert IN OUT"),
    "data of no command": ("data convrt a b", 2, "'convrt'; the nearest is convert"),
    "chat without a model": ("chat", 2, "write fastsft chat DIR; fastsft chat --help lists what it takes"),
    "chat of a mistyped flag": ("chat a --tmeperature 1", 2, "flag is --temperature;"),
    "merge of one": ("merge a", 2, "expected two directories"),
    "export of no format": ("export llama model", 2, "'llama'; the nearest is ollama"),
    "plan without a model": ("plan", 2, "write fastsft plan --model_name_or_path DIR"),
    "plan of ranks": ("plan model --ranks 8", 2, "unknown flag --ranks: write --world_size"),
    "plan of two cards": ("plan model --gpu 2x4090", 1, 'write --gpu "4090" --world_size 2'),
    "plan of a mistyped model": ("plan --model ./modle", 1, "./modle is not a directory"),
    "plan of a size without unit": ("plan --model model --memory 80", 1, 'like "80GiB", got "80"'),
    "plan of a small device": ("plan --model model --memory 10MiB", 1, "of a GPU 3 GiB are kept"),
    "plan of a size of no kind": ("plan --model model --memory lots", 1, 'expected a size like "80GiB"'),
    "plan of no rank": ("plan --model model --world_size 0", 1, "--world_size: expected at least 1, got 0"),
    "plan of a boolean word": ("plan --model model --bf16 maybe", 2, "--bf16: expected True or False"),
    "doctor of a mistyped model": ("doctor --model modle --data data.json", 1, "failed"),
    "doctor of mistyped data": ("doctor --model model --data dta.json", 1, "failed"),
    "doctor of a mistyped flag": ("doctor --modle model", 2, "--modle: the nearest known flag is --model"),
    "doctor of another trainer's flag": ("doctor --lr 1", 2, "--lr: write --learning_rate"),
    "doctor skips nothing known": ("doctor --skip every", 2, "--skip: expected some of"),
    "verify of nothing": ("verify ./nope", 2, "./nope is not a directory; "),
    "verify of a file": ("verify data.json", 2, "expected a model directory, got the file data.json"),
    "verify without a directory": ("verify", 2, "expected DIR, got none; write fastsft verify DIR"),
    "verify against nothing": ("verify model --against nope", 2, "nope: no such directory"),
    "verify against no model": ("verify model --against empty", 1, "empty"),
    "verify of an empty directory": ("verify empty", 1, "failed"),
    "verify of a header that lies": ("verify huge", 1, "the tensors end at byte 4398046511104"),
    "verify of a deep config": ("verify deep", 1, "expected a JSON object, this is nested too deep"),
    "convert of a header that lies": ("convert huge made", 1, "; fastsft verify huge says more"),
    "convert of a deep config": ("convert deep made", 1, "expected a JSON object, this is nested too deep"),
    "convert of nothing": ("convert nope made", 1, "nope: no such directory"),
    "convert onto something": ("convert model empty", 1, "nothing is overwritten"),
    "convert to a dtype of no kind": ("convert model made --dtype int8", 2, "float32, got 'int8'"),
    "convert to shards of no size": ("convert model made --max_shard_size big", 1, "expected a size like"),
    "convert of an empty directory": ("convert empty made", 1, "found no config.json"),
    "convert of an adapter": ("convert adapter made", 1, "make one model of the two with fastsft merge"),
    "plan of an adapter": ("plan --model adapter", 1, "make one model of the two with fastsft merge"),
    "path of no module": ("path trian", 2, "got 'trian'; the nearest is train"),
    "places first": ("inspect model dta.json", 2, "the nearest there is data.json"),
    "a place twice": ("inspect model --model model --data data.json", 2, "'model' follows no flag"),
    "plan of a place and data": ("plan model data.json", 2, "no such argument is taken"),
    "plan of another's file": ("plan --config b.yaml", 2, "b.yaml: unknown key 'lr'; write --learning_rate"),
    "plan of both dtypes": ("plan model --bf16 --fp16", 1, "--bf16 and --fp16: expected at most one"),
    "inspect of a flag of training": ("inspect model data.json --seve_steps 1", 2, "no known flag is near"),
    "inspect into no folder": ("inspect model data.json --html no/a.html", 2, "a folder that is there"),
    "chat of a word": ("chat model hello", 2, "'hello' follows no flag; write --message hello"),
    "chat on no device": ("chat model --device gpu", 2, "expected cpu, cuda or cuda:N, got 'gpu'"),
    "chat of a cold draw": ("chat model --temperature -1", 2, "expected 0 or more, got -1.0"),
    "verify of two": ("verify model other", 2, "write --against other"),
    "merge of a model": ("merge model made", 1, "it is a whole model, which needs no merging"),
    "convert of an unknown flag": ("convert model made --out x", 2, "known: -h, --help, --dtype"),
    "export of an empty directory": ("export ollama empty", 1, "hf download NAME --local-dir empty"),
    "a flag without a command": ("--seed 1", 2, "expected a command, got --seed; such as fastsft train"),
    "import of data": ("import data.json", 2, "data files need no import: --data_path names them"),
    "recipes of a family": ("recipes llama", 1, "there are llama-3.1-8b-full, llama-3.1-8b-lora"),
    "demo onto something": ("demo --output_dir model", 2, "model"),
    "demo of no family": ("demo --model_type gpt2", 2, "got 'gpt2'"),
}  # fmt: skip
# Data of which nothing can be learned, by file.
HOPELESS = {
    "long": [{"conversations": human_gpt("word " * 500, "Short.")}] * 3,
    "chosen": [{"chosen": "a", "rejected": "b"}] * 3,
    "half": [{"instruction": "a", "target": "b"}] * 3,
    "inside": {"data": [{"conversations": [{"from": "human", "value": "a"}]}] * 3},
    "tool": [{"conversations": [*human_gpt("a"), {"from": "tool", "value": "b"}]}] * 3,
}
# Flags that are added to a command of training which would run, and a part of its last line.
OF_TRAINING: dict[str, tuple[dict[str, object], int, str]] = {
    "mistyped flag": ({"learnig_rate": 1}, 1, "unknown flag --learnig_rate: the nearest known flag is"),
    "two mistyped flags": ({"learnig_rate": 1, "sve_steps": 2}, 1, "--sve_steps: the nearest"),
    "lora": ({"lora_r": 4}, 1, "--lora_r: expected with --lora True"),
    "q_lora": ({"q_lora": True}, 1, "--q_lora"),
    "another trainer's lora": ({"use_peft": True}, 1, "LoRA's flags are FastChat's"),
    "a peft flag": ({"use_lora": True}, 1, "LoRA's flags are FastChat's"),
    "batch of a device": ({"per_device_batch_size": 1}, 1, "write --per_device_train_batch_size"),
    "quantised": ({"load_in_4bit": True}, 1, "LoRA has its base model in 4 bits"),
    "packing": ({"packing": True}, 1, "conversations are laid end to end without padding"),
    "attention": ({"attn_implementation": "sdpa"}, 1, "there is one attention"),
    "device": ({"device": "cuda"}, 1, "--use_cpu True for the CPU"),
    "lr": ({"lr": 1}, 2, "--lr: write --learning_rate"),
    "epochs": ({"epochs": 1}, 1, "write --num_train_epochs"),
    "batch": ({"batch_size": 1}, 1, "write --per_device_train_batch_size"),
    "length": ({"max_seq_length": 1}, 1, "write --model_max_length"),
    "ambiguous": ({"save_st": 1}, 2, "--save_strategy, --save_steps"),
    "word for a number": ({"seed": "x"}, 2, "--seed: expected a whole number, got 'x'"),
    "word of no choice": ({"lr_scheduler_type": "cosin"}, 2, "got 'cosin'; the nearest is cosine"),
    "optimizer": ({"optim": "paged_adamw_8bit"}, 1, "use --optim adamw_torch"),
    "a file as the model": ({"model_name_or_path": "model/config.json"}, 1, "name its directory, model"),
    "a link to nothing": ({"model_name_or_path": "link"}, 1, "the link link to gone, which is not there"),
    "a model in a folder": ({"model_name_or_path": "above"}, 1, "there is one in above/model"),
    "llama.cpp's file": ({"model_name_or_path": "gguf"}, 1, "it has a GGUF file, of llama.cpp"),
    "mistyped name": ({"model_name_or_path": "mdel"}, 1, "the nearest there is model), and not found on"),
    "no name": ({"model_name_or_path": ""}, 1, "--model_name_or_path: expected a model directory or the"),
    "a dash": ({"learning_rate": "2e\u20135"}, 2, "got '2e\u20135'; write 2e-5"),
    "a decimal comma": ({"learning_rate": "0,01"}, 2, "expected a number, such as 0.1 or 1e-5, got '0,01'"),
    "thousands": ({"model_max_length": "4k"}, 2, "expected a whole number, got '4k'; write 4096 or 4000"),
    "fsdp mistyped": ({"fsdp": "full_shrd"}, 1, "the nearest is full_shard"),
    "fsdp_config of a list": ({"fsdp_config": "data.json"}, 1, "--fsdp_config: expected a JSON object, such"),
    "fsdp_config of no file": ({"fsdp_config": "no.json"}, 1, "--fsdp_config: expected a JSON file or"),
    "a variable of the environment": ({"WANDB_PROJECT": "a"}, 1, "export WANDB_PROJECT=... before the"),
    "a token": ({"hf_token": "a"}, 1, "log in with hf auth login, or set HF_TOKEN"),
    "a flag of torchrun": ({"master_port": 1}, 1, "give it to torchrun"),
    "a pattern in YAML": ({"config": "star.yaml"}, 1, "quote texts that begin with *"),
    "a flag of Megatron": ({"tensor_parallel": 2}, 1, "ranks divide the rows, and with --fsdp the weights"),
    "nothing to resume": ({"resume_from_checkpoint": True}, 1, "the run starts over, or continues"),
    "an equals sign": ({"learning_rate": "="}, 2, "got '='; leave out the spaces around it"),
    "Ollama's name": ({"model_name_or_path": "qwen2.5:7b"}, 1, "a name of Ollama: the hub has the model by"),
    "llama.cpp's one file": ({"model_name_or_path": "gguf/q4.gguf"}, 1, "name the directory of the"),
    "a variable": ({"data_path": "$D/a.json"}, 1, "$D is not replaced"),
    "weights as data": ({"data_path": "model/model-00001-of-00002.safetensors"}, 1, "got weights of a model"),
    "a config of accelerate": ({"config": "accelerate.yaml"}, 1, "of which fastsft needs none"),
    "a link to no data": ({"data_path": "nodata"}, 1, "nodata is a link to gone.json, which is not there"),
    "a directory of no data": ({"data_path": "empty"}, 1, "found nothing; name another directory"),
    "a page of the web": ({"data_path": "page.json"}, 1, "a page of HTML or XML, and no data"),
    "Python's quotes": ({"data_path": "python.json"}, 1, 'JSON has "double quotes"'),
    "a file that was cut": ({"data_path": "cut.json"}, 1, "it was cut: copy or download it again"),
    "records by split": ({"data_path": "splits.json"}, 1, "records in a field: write their list alone"),
    "a URL": ({"data_path": "https://a.b/c.json"}, 1, "download it, and name the file"),
    "mistyped model": ({"model_name_or_path": "./modle"}, 1, "./modle is not a directory"),
    "hub model that is not there": ({"model_name_or_path": "a/b"}, 1, "no such directory"),
    "no model in the directory": ({"model_name_or_path": "empty"}, 1, "found no config.json"),
    "an adapter": ({"model_name_or_path": "adapter"}, 1, "train on with --lora_weight_path adapter"),
    "mistyped data": ({"data_path": "dta.json"}, 1, "--data_path: dta.json is"),
    "mistyped eval data": ({"eval_data_path": "dta.json"}, 1, "--eval_data_path: dta.json"),
    "latin-1": ({"data_path": "latin.json"}, 1, "makes UTF-8 of Latin-1"),
    "prompts longer than a row": ({"data_path": "long.json"}, 1, "within --model_max_length: raise it"),
    "preference data": ({"data_path": "chosen.json"}, 1, "its fields are chosen, rejected"),
    "a field of another name": ({"data_path": "half.json"}, 1, "its fields are instruction, target"),
    "records in a field": ({"data_path": "inside.json"}, 1, "are in data, write that list alone"),
    "tools for FastChat's labels": ({"data_path": "tool.json"}, 1, "--template model reads them"),
    "data that is no JSON": ({"data_path": "model/tokenizer.model"}, 1, "tokenizer.model"),
    "empty data": ({"data_path": "none.json"}, 1, "none.json"),
    "config that is not there": ({"config": "a.yaml"}, 1, "file of flags, got no such file"),
    "config with a foreign key": ({"config": "b.yaml"}, 1, "b.yaml: unknown key 'lr'; write --learning_rate"),
    "report to a tracker of no kind": ({"report_to": "comet"}, 1, "expected none, mlflow"),
    "resume from nothing": ({"resume_from_checkpoint": "o/checkpoint-9"}, 1, "checkpoint-9"),
    "onto the model": ({"output_dir": "model"}, 1, "choose another --output_dir"),
    "onto a file": ({"output_dir": "data.json"}, 1, "--output_dir"),
    "evaluation without data": ({"eval_on_start": True}, 1, "give --eval_data_path"),
    "metric that is not there": (
        {"metric_for_best_model": "accuracy", "eval_strategy": "epoch", "eval_data_path": "data.json"},
        1,
        "--metric_for_best_model accuracy: expected loss",
    ),
    "a split of nearly nothing": ({"eval_split": 1.5}, 1, "1.5 % is 0.015"),
    "a split of everything": ({"eval_split": 100000}, 1, "expected fewer than the"),
    "a split and a file": ({"eval_split": 0.1, "eval_data_path": "data.json"}, 1, "leave one of them out"),
    "patience without evaluations": ({"early_stopping_patience": 3}, 1, "give --eval_strategy epoch"),
    "patience without data": (
        {"early_stopping_patience": 3, "eval_strategy": "epoch"}, 1, "give --eval_data_path or --eval_split",
    ),
    "replies to no file": (
        {"sample_prompts": "nope.txt", "eval_strategy": "epoch", "eval_split": 0.5}, 1, "No such file",
    ),
    "best of no data": ({"save_strategy": "best"}, 1, "best without --eval_data_path would never save"),
    "best of no evaluation": (
        {"save_strategy": "best", "eval_data_path": "data.json"},
        1,
        "best with --eval_strategy no would never",
    ),
    "schedule without its option": (
        {"lr_scheduler_type": "cosine_with_min_lr"},
        1,
        "one of min_lr and min_lr_rate; give --lr_scheduler_kwargs",
    ),
    "schedule with another's option": ({"lr_scheduler_kwargs": '{"x": 1}'}, 1, 'linear has no option "x"'),
    "split and lazy": ({"overlong": "split", "lazy_preprocess": True}, 1, "--lazy_preprocess one; leave one"),
    "events nowhere": (
        {"report_to": "tensorboard", "logging_dir": "/proc/x"},
        1,
        "error: --logging_dir /proc/x: expected a directory",
    ),
    "batch of nothing": ({"per_device_train_batch_size": 0}, 1, "at least 1"),
    "shards of no size": ({"max_shard_size": "big"}, 1, "expected a size like"),
    "another format than named": ({"data_format": "alpaca"}, 1, "name that one, --data_format sharegpt"),
    "records without line breaks": ({"data_path": "glued.jsonl"}, 1, "put a line break between the two"),
    "a list as a text": ({"data_path": "text.json"}, 1, "write the list itself, not its JSON as a text"),
    "a config with a comma too many": ({"config": "flags.json"}, 1, "(char 11); correct it there"),
    "fields of other names": ({"data_path": "capitals.json"}, 1, "its fields are Role, Content"),
    "a comma in a cell": ({"data_path": "comma.csv"}, 1, "put a cell with a comma, a quote or"),
    "JSON with a comment": ({"data_path": "comment.json"}, 1, "JSON has no comments: take them out"),
    "Parquet by name alone": ({"data_path": "table.parquet"}, 1, "expected Parquet, as its name says"),
    "a hub name without owner": ({"model_name_or_path": "Qwen3-8B"}, 1, "the form owner/Qwen3-8B"),
    "a hub name with a slash": ({"model_name_or_path": "a/b/"}, 1, "without the / at the end"),
    "heads of no number": ({"model_name_or_path": "heads"}, 1, "heads/config.json: 5 attention heads"),
    "modules of no name": (
        {"lora": True, "lora_modules_to_save": "lm_hed"}, 1, "with parameters end with embed_tokens, q_proj",
    ),
    "a colon in the role map": ({"role_map": "bot:assistant"}, 1, "such as bot=assistant"),
    "template of no name": ({"mask_policy": "spans", "template": "vicunna"}, 1, "vicunna"),
}  # fmt: skip


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int | None, str]]:
    """Of every mistake the status and all that was printed, in forks of one process."""
    folder = tmp_path_factory.mktemp("mistakes")
    shutil.copytree(MODEL, folder / "model")
    shutil.copy(DATA, folder / "data.json")
    (folder / "empty").mkdir()
    shutil.copytree(ADAPTER, folder / "adapter")
    for name in ("huge", "deep"):
        shutil.copytree(MODEL, folder / name)
    for path in (folder / "huge").glob("model*"):
        path.unlink()
    header = json.dumps({"x": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}).encode()
    (folder / "huge" / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(9))
    (folder / "deep" / "config.json").write_bytes(b'{"a":' * 100_000 + b"1" + b"}" * 100_000)
    shutil.copytree(MODEL, folder / "heads")
    config = json.loads((MODEL / "config.json").read_text())
    (folder / "heads" / "config.json").write_text(json.dumps({**config, "num_attention_heads": 5}))
    (folder / "none.json").write_text("[]")
    (folder / "star.yaml").write_text("data_path: *.json\n")
    (folder / "accelerate.yaml").write_text("compute_environment: LOCAL\ndistributed_type: FSDP\n")
    (folder / "b.yaml").write_text("lr: 1\n")
    (folder / "link").symlink_to("gone")
    (folder / "nodata").symlink_to("gone.json")
    shutil.copytree(MODEL, folder / "above" / "model")
    (folder / "gguf").mkdir()
    (folder / "gguf" / "q4.gguf").write_bytes(b"GGUF")
    text = DATA.read_text("utf-8")
    for name, content in {
        "page": "<!DOCTYPE html><html>", "python": "[{'conversations': []}]", "cut": text[: len(text) // 2],
        "splits": json.dumps({"train": json.loads(text), "test": []}),
        "text": json.dumps([{"conversations": json.dumps(json.loads(text)[0]["conversations"])}]),
        "comment": f"// chats\n{text}",
        "capitals": '[{"messages": [{"Role": "user", "Content": "a"}]}]',
    }.items():  # fmt: skip
        (folder / f"{name}.json").write_text(content, "utf-8")
    for name, records in HOPELESS.items():
        (folder / f"{name}.json").write_text(json.dumps(records))
    (folder / "comma.csv").write_text("instruction,output\na,b,c\n")
    (folder / "flags.json").write_text('{"seed": 1,}')
    (folder / "glued.jsonl").write_text('{"conversations": []}{"conversations": []}')
    (folder / "table.parquet").write_text("none")
    record = [{"id": "1", "conversations": [{"from": "human", "value": "?"}, {"from": "gpt", "value": "x"}]}]
    (folder / "latin.json").write_bytes(json.dumps(record).encode().replace(b"?", b"\xe9"))
    orders = [(line.split(), folder) for line, _, _ in OF_COMMANDS.values()]
    for number, (flags, _, _) in enumerate(OF_TRAINING.values()):
        words = training(Path("model"), Path(f"out-{number}"), **{"data_path": "data.json", **flags})
        orders.append((["train", *words], folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")  # no test asks the hub
        return dict(zip([*OF_COMMANDS, *OF_TRAINING], run_commands(orders, SECONDS), strict=True))


@pytest.mark.parametrize("name", [*OF_COMMANDS, *OF_TRAINING])
def test_a_mistake(name: str, said: dict[str, tuple[int | None, str]]) -> None:
    _, status, part = {**OF_COMMANDS, **OF_TRAINING}[name]
    left, text = said[name]
    assert left is not None, f"it was still there after {SECONDS} s: {text[-2000:]}"
    assert left == status and part in " ".join(text.split()), text[-2000:]
    assert "Traceback" not in text and "HfArgumentParser" not in text
    if name in OF_COMMANDS and status == 2:
        assert len(text.splitlines()) == 1, text
