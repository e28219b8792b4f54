"""DataclassParser beside the real HfArgumentParser: the same words, the same namespace or refusal."""

import dataclasses
import random
from enum import Enum
from typing import Any, Literal, Optional, Union

import pytest
import transformers
from fastchat.train.train import DataArguments as TheirDataArguments
from fastchat.train.train import ModelArguments as TheirModelArguments
from fastchat.train.train import TrainingArguments as TheirTrainingArguments

from fastsft.arguments import DataArguments, ModelArguments, TrainingArguments
from fastsft.arguments.parsing.foreign_flags import about_foreign
from fastsft.arguments.parsing.parser import DataclassParser

OURS = (ModelArguments, DataArguments, TrainingArguments)
THEIRS = (TheirModelArguments, TheirDataArguments, TheirTrainingArguments)
WORDS = [
    "1", "0", "-1", "3.5", "2e-5", "1e3", "True", "False", "yes", "NO", "t", "F", "maybe", "None", "", "a b",
    "steps", "epoch", "no", "best", "cosine", "linear", "adamw_torch", "full_shard auto_wrap", "all",
    '{"a": 1}', "path/to/x", "-x", "inputs", "end", "auto", "42.0", "[1]", "--", "5GB", "warning",
]  # fmt: skip


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Kinds:
    """One field a rule of HfArgumentParser."""

    needed: int
    needed_list: list[float]
    undecided: bool
    text: str = "a"
    maybe_text: str | None = None
    old_maybe: Optional[int] = None  # noqa: UP045  the old spelling is a case of its own
    number: float = 0.5
    on: bool = True
    off: bool = False
    unset: bool | None = None
    unset_true: bool | None = True
    colour: Colour = Colour.RED
    size: Literal[1, 2, "many"] = 1
    names: list[str] = dataclasses.field(default_factory=lambda: ["x"])
    maybe_names: list[int] | None = None
    text_or_list: Union[str, list[str]] = ""  # noqa: UP007
    list_or_text: list[str] | str | None = None
    object_or_text: dict[str, Any] | str | None = None
    aliased: int = dataclasses.field(default=1, metadata={"aliases": ["--other_name", "-o"], "help": "h"})


def leave(message):
    raise SystemExit(2)


def outcome(parser, words):
    parser.error = leave  # without the page of usage, which takes most of the time
    try:
        namespace, remaining = parser.parse_known_args(list(words))
    except SystemExit as left:
        return "left", left.code
    values = {k: v for k, v in vars(namespace).items() if k != "config"}
    return values, remaining


def spelled(rng, option):
    kind = rng.random()
    if kind < 0.15:
        short = option[: max(4, rng.randrange(len(option)))]
        # fastsft reads no flag of another trainer as the beginning of its own
        return option if about_foreign(short[2:].replace("-", "_")) else short
    if kind < 0.2:
        return option + "x"
    return option.replace("_", "-") if kind < 0.35 else option


def random_line(rng, options):
    words = []
    for _ in range(rng.randrange(1, 5)):
        option = spelled(rng, rng.choice(options))
        form = rng.random()
        if form < 0.3:
            words.append(f"{option}={rng.choice(WORDS)}")
        elif form < 0.45:
            words.append(option)
        else:
            words += [option, *rng.choices(WORDS, k=rng.choice([1, 1, 1, 2]))]
    return words


def options_of(parser):
    return sorted(
        name for name in parser._option_string_actions if name.startswith("--") and "help" not in name
    )


# bool or str is what HfArgumentParser reads as a boolean; here the words of 5.x are taken as well.
BOTH = "include_num_input_tokens_seen"


def test_random_lines_on_our_classes(capsys):
    rng = random.Random(1)
    real, own = transformers.HfArgumentParser(OURS), DataclassParser(OURS)
    options = [name for name in options_of(real) if BOTH not in name.replace("-", "_")]
    assert len(options) > 300 and set(options_of(own)) - set(options_of(real)) == {"--config"}
    ends = {"left": 0, "parsed": 0}
    for _ in range(4000):
        words = random_line(rng, options)
        expected = outcome(real, words)
        assert outcome(own, words) == expected, words
        ends["left" if expected[0] == "left" else "parsed"] += 1
    assert min(ends.values()) > 500, ends


def test_random_lines_on_theirs(capsys):
    """Names, words and kinds of our fields are those of transformers' own."""
    rng = random.Random(2)
    real, own = transformers.HfArgumentParser(THEIRS), DataclassParser(OURS)
    loosened = ("warmup_steps", "debug", "liger_kernel_config", "parallelism_config", BOTH)
    options = [n for n in options_of(real) if n.replace("-", "_").lstrip("_") not in loosened]
    parsed = 0
    for _ in range(4000):
        option, word = rng.choice(options), rng.choice(WORDS)
        words = [option, word] if rng.random() < 0.5 else [f"{option}={word}"]
        expected, got = outcome(real, words), outcome(own, words)
        if expected[0] == "left":
            assert got == expected, words
            continue
        parsed += 1
        name = next(a.dest for o, a in real._option_string_actions.items() if o == option)
        assert (got[0][name], got[1]) == (expected[0][name], expected[1]), words
    assert parsed > 1000


def test_random_lines_on_every_kind_of_field(capsys):
    rng = random.Random(3)
    real, own = transformers.HfArgumentParser(Kinds), DataclassParser(Kinds)
    assert options_of(real) == [name for name in options_of(own) if name != "--config"]
    options = [*options_of(real), "-o"]
    words = [*WORDS, "red", "blue", "many", "2"]
    for _ in range(6000):
        line = ["--needed", "1", "--needed_list", "2"] if rng.random() < 0.9 else []
        line += [word if rng.random() < 0.8 else rng.choice(words) for word in random_line(rng, options)]
        assert outcome(own, line) == outcome(real, line), line


@pytest.mark.parametrize("parser", [transformers.HfArgumentParser, DataclassParser])
class TestFilesAndRest:
    def test_args_file_flag(self, parser, tmp_path):
        (tmp_path / "a.args").write_text("--seed 1 --learning_rate 1e-3")
        (tmp_path / "b.args").write_text("--seed 2\n--max_steps 5")
        words = ["--from", str(tmp_path / "a.args"), "--from", str(tmp_path / "b.args"), "--max_steps", "9"]
        (args,) = parser(TrainingArguments).parse_args_into_dataclasses(
            [*words, "--use_cpu"], args_file_flag="--from"
        )
        assert (args.seed, args.learning_rate, args.max_steps) == (2, 1e-3, 9)

    def test_file_beside_the_program(self, parser, tmp_path, monkeypatch):
        (tmp_path / "train.args").write_text("--seed 1 --max_steps 5")
        monkeypatch.setattr("sys.argv", [str(tmp_path / "train.py"), "--seed", "3", "--use_cpu"])
        (args,) = parser(TrainingArguments).parse_args_into_dataclasses()
        assert (args.seed, args.max_steps) == (3, 5)
        (args,) = parser(TrainingArguments).parse_args_into_dataclasses(look_for_args_file=False)
        assert args.max_steps == -1

    def test_at_file(self, parser, tmp_path):
        (tmp_path / "flags").write_text("--seed\n4\n")
        made = parser(TrainingArguments, fromfile_prefix_chars="@")
        (args,) = made.parse_args_into_dataclasses([f"@{tmp_path / 'flags'}", "--use_cpu"])
        assert args.seed == 4

    def test_remaining_strings(self, parser):
        words = ["--seed", "4", "--use_cpu", "True", "stray", "--unknown", "1"]
        *_, rest = parser(OURS).parse_args_into_dataclasses(words, return_remaining_strings=True)
        assert rest == ["stray", "--unknown", "1"]

    def test_arguments_besides_the_dataclasses(self, parser):
        made = parser([TrainingArguments])
        made.add_argument("--mine", type=int)
        args, space = made.parse_args_into_dataclasses(["--mine", "3", "--use_cpu"])
        assert (vars(space), args.seed) == ({"mine": 3}, 42)

    def test_group_of_arguments(self, parser):
        @dataclasses.dataclass
        class Grouped:
            _argument_group_name = "mine"
            number: int = 1

        made = parser(Grouped)
        assert "mine" in made.format_help()
        assert made.parse_args_into_dataclasses(["--number", "2"])[0].number == 2

    def test_unions_of_others_are_no_flags(self, parser):
        made = dataclasses.make_dataclass("Made", [("value", int | float, 1)])
        with pytest.raises(ValueError, match="Optional"):
            parser(made)


@pytest.mark.parametrize(
    ("words", "hints"),
    [
        (["--lerning_rate", "1e-3"], ["--lerning_rate: the nearest known flag is --learning_rate"]),
        (["--lerning_rate=1", "x"], ["the nearest known flag is --learning_rate", "'x' follows no flag"]),
        (["c.yaml"], ["'c.yaml' follows no flag; a file of flags is given as --config c.yaml"]),
        (["--seed", "1", "train.py"], ["a script is started by torchrun or python"]),
        (["-o", "a"], ["unknown flag -o: write --output_dir"]),
        (["--seed", "1", "b.json"], ["several files of data are one value: --data_path a.json,b.json"]),
        (["x", "--seed", "1", "y"], ["'x' follows no flag; a value with spaces needs quotes", "'y' follows"]),
    ],
)
def test_words_that_no_option_takes(words, hints):
    with pytest.raises(ValueError) as caught:
        DataclassParser(TrainingArguments).parse_args_into_dataclasses(words, look_for_args_file=False)
    assert all(hint in str(caught.value) for hint in hints)
    assert "1e-3" not in str(caught.value) and "HfArgumentParser" not in str(caught.value)


def test_a_mistake_is_one_line(capsys):
    with pytest.raises(SystemExit) as left:
        DataclassParser(TrainingArguments, prog="train.py").parse_args_into_dataclasses(["--seed", "x"])
    assert left.value.code == 2
    line = "train.py: error: --seed: expected a whole number, got 'x'; train.py --help all lists all flags\n"
    assert capsys.readouterr().err == line
