"""--config FILE: flags in YAML or JSON."""

import json

import pytest

from fastsft.arguments import DataArguments, ModelArguments, TrainingArguments
from fastsft.arguments.parsing.parser import DataclassParser

YAML = """
model_name_or_path: path/to/llama
data-path: d.json
lazy_preprocess: true
learning_rate: 2e-5        # YAML 1.1 reads a word
num_train_epochs: 3
bf16: yes
fsdp: full_shard auto_wrap
fsdp_config: {backward_prefetch: backward_pre}
lr_scheduler_type: cosine
lr_scheduler_kwargs: {num_cycles: 2}
eval_strategy: no
save_total_limit: null
label_names: [labels]
seed: 7
"""


def parse(path, *words):
    parser = DataclassParser((ModelArguments, DataArguments, TrainingArguments))
    return parser.parse_args_into_dataclasses(
        ["--use_cpu", "--logging_dir", "x", "--config", str(path), *words]
    )


def written(tmp_path, text, name="run.yaml"):
    (tmp_path / name).write_text(text)
    return tmp_path / name


@pytest.mark.parametrize(
    ("name", "text"), [("run.json", '{"seed": 7, "data_path": "d.json"}'), ("run.yaml", YAML)]
)
def test_a_byte_order_mark_is_left_out(tmp_path, name, text):
    """As editors of Windows put it in front; in a file of words, too."""
    _, data, args = parse(written(tmp_path, f"\ufeff{text}", name))
    assert (data.data_path, args.seed) == ("d.json", 7)
    words = written(tmp_path, "\ufeff--seed 8", "run.args")
    parser = DataclassParser((TrainingArguments,))
    (args,) = parser.parse_args_into_dataclasses(["--use_cpu"], args_filename=str(words))
    assert args.seed == 8


def test_yaml(tmp_path):
    model, data, args = parse(written(tmp_path, YAML))
    assert (model.model_name_or_path, data.data_path, data.lazy_preprocess) == (
        "path/to/llama",
        "d.json",
        True,
    )
    assert (args.learning_rate, args.num_train_epochs, args.bf16, args.seed) == (2e-5, 3.0, True, 7)
    assert (args.sharding_strategy, args.eval_strategy, args.save_total_limit) == ("full_shard", "no", None)
    assert args.lr_scheduler_kwargs == {"num_cycles": 2} and args.label_names == ["labels"]
    assert args.fsdp_config["backward_prefetch"] == "backward_pre"


def test_json_is_the_same(tmp_path):
    import yaml

    content = yaml.safe_load(YAML)
    assert parse(written(tmp_path, json.dumps(content), "run.json")) == parse(written(tmp_path, YAML))


def test_the_command_line_wins(tmp_path):
    path = written(tmp_path, "seed: 7\nbf16: true\nmax_steps: 5\nlogging_first_step: true\n")
    args = parse(path, "--seed", "8", "--bf16", "False")[2]
    assert (args.seed, args.bf16, args.max_steps, args.logging_first_step) == (8, False, 5, True)


def test_required_fields_may_stand_in_the_file_alone(tmp_path):
    import dataclasses

    made = dataclasses.make_dataclass("Made", [("needed", int)])
    path = written(tmp_path, "needed: 3")
    (found,) = DataclassParser(made).parse_args_into_dataclasses(["--config", str(path)])
    assert found.needed == 3
    with pytest.raises(SystemExit):
        DataclassParser(made).parse_args_into_dataclasses([])


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        (
            "learnig_rate: 1",
            "a.yaml",
            r"unknown key 'learnig_rate'; the nearest known flag is --learning_rate",
        ),
        ("seed: many", "a.yaml", "seed: expected a whole number, got 'many'"),
        ("seed: 1.5", "a.yaml", r"seed: expected int, got float 1\.5"),
        ("bf16: 3", "a.yaml", "bf16: expected bool, got int 3"),
        ("bf16: maybe", "a.yaml", "expected True or False"),
        ("seed: null", "a.yaml", "seed: expected int, got nothing"),
        ("lr_scheduler_type: cosin", "a.yaml", "lr_scheduler_type: expected one of linear, cosine"),
        ("max_steps: [1]", "a.yaml", "max_steps: expected int, got a list"),
        ("template_date: [1]", "a.yaml", r"template_date: expected str or none, got a list \[1\]"),
        ("template_date: true", "a.yaml", "template_date: expected str or none, got bool True"),
        ("seed: 1\nrun_name: a\nseed: 2", "a.yaml", "seed is there twice, in lines 1 and 3"),
        ("seed: 1\n\tlora: true", "a.yaml", r"line 2, `lora: true`: .* indents with spaces"),
        ("seed = 1", "a.yaml", "as in `learning_rate: 1e-5`, got text"),
        ("seed: 1\nlora = true", "a.yaml", r"line 2, `lora = true`: .* with a space after the colon"),
        ("run_name: a: b", "a.yaml", "line 1, `run_name: a: b`: .* quote a value with a colon"),
        ("bf16: {on: 1}", "a.yaml", "bf16: expected bool, got an object .* flags are not nested"),
        ("model_max_length: 4k", "a.yaml", "expected a whole number, got '4k'; write 4096 or 4000"),
        ("save_dtype: bf16", "a.yaml", "float32, bfloat16, got 'bf16'; the nearest is bfloat16"),
        ("seed: 1\nrun_name: 2026-13-01", "a.yaml", "is not YAML: month must be in"),
        ("save_total_limit: x.5", "a.yaml", "expected a whole number"),
        ("save_total_limit: [1]", "a.yaml", "save_total_limit: expected int or none, got a list"),
        ("data_path: [a.json, 1]", "a.yaml", r"data_path: expected str, got a list \['a\.json', 1\]"),
        ("data_path: ['a,b.json']", "a.yaml", "data_path: expected str, got a list"),
        ("data_path: []", "a.yaml", "data_path: expected str, got a list"),
        ("output_dir: [a, b]", "a.yaml", "output_dir: expected str or none, got a list"),
        ("seed: 1\nse-ed: 2", "a.yaml", "unknown key 'se-ed'"),
        ("max_steps: 1\nmax-steps: 2", "a.yaml", "is there twice"),
        ("- a", "a.yaml", "expected names of flags with values, as in .*, got a list"),
        ("a: [", "a.yaml", "is not YAML"),
        ("{", "a.json", "not JSON: "),
        ("seed: 1", "a.txt", r"expected a \.yaml, \.yml or \.json file"),
    ],
)
def test_mistakes_are_named(tmp_path, text, name, message):
    with pytest.raises(ValueError, match=message):
        parse(written(tmp_path, text, name))


NEUTRAL = """
fp16: "False"
adafactor: false
sharded_ddp: false
debug: ""
xpu_backend: ""
past_index: "-1"
tp_size: 1
dispatch_batches: null
optim_args: null
auto_find_batch_size: null
mp_parameters: ""
"""


def test_neutral_values_of_refused_fields(tmp_path):
    args = parse(written(tmp_path, NEUTRAL))[2]
    assert (args.fp16, args.past_index, args.tp_size, args.sharded_ddp) == (False, -1, 1, False)
    with pytest.raises(ValueError, match=r"^fastsft does not support --sharded_ddp simple"):
        parse(written(tmp_path, "sharded_ddp: simple"))
    with pytest.raises(ValueError, match="sharded_ddp: expected str, got bool True"):
        parse(written(tmp_path, "sharded_ddp: true"))


def test_missing_file(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        parse(tmp_path / "none.yaml")


def test_an_empty_file_changes_nothing(tmp_path):
    assert parse(written(tmp_path, ""))[2].seed == 42


@pytest.mark.parametrize(
    "word", ["010", "12:30:45", "1_000", "0x10", "1.50", "1e3", ".inf", "2026-01-02 03:04:05", "+7"]
)
def test_the_text_counts_where_a_word_is_wanted(tmp_path, word):
    """YAML 1.1 makes 8 of the first, 45045 of the second."""
    text = f"run_name: {word}\noutput_dir: {word}\n"
    args = parse(written(tmp_path, text))[2]
    assert (args.run_name, args.output_dir) == (word, word)
    assert parse(written(tmp_path, f"<<: {{run_name: {word}}}\n"))[2].run_name == word
    assert parse(written(tmp_path, f"<<: {{run_name: a}}\nrun_name: {word}\n"))[2].run_name == word


def test_values_that_yaml_makes_of_words(tmp_path):
    text = (
        "template_date: 2026-01-02\nmax_shard_size: 1000\nrun_name: 7\n"
        "data_path: [a.json, 'b/*.jsonl:0.5']\neval_data_path:\n- c.json\n"
    )
    _, data, args = parse(written(tmp_path, text))
    assert (data.template_date, args.max_shard_size, args.run_name) == ("2026-01-02", "1000", "7")
    assert (data.data_path, data.eval_data_path) == ("a.json,b/*.jsonl:0.5", "c.json")
