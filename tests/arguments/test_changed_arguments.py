"""Arguments that a script changes after they were made are checked, and derive what hangs on them, again."""

import copy
import dataclasses
import pickle

import pytest

from fastsft.arguments import TrainingArguments
from fastsft.arguments.from_transformers import as_arguments
from fastsft.arguments.support import support_of
from fastsft.runtime import messages as notices

FIELDS = {field.name: field for field in dataclasses.fields(TrainingArguments) if field.init}
REFUSED = sorted(name for name, field in FIELDS.items() if support_of(field).treatment == "REJECT")


def made(tmp_path, **flags):
    return TrainingArguments(str(tmp_path), use_cpu=True, **flags)


def refused_value(name):
    """A value that the field refuses, of its own type."""
    default = FIELDS[name].default
    return 7 if type(default) is int else True if type(default) is bool else "something"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("fp16_full_eval", True, "does not support --fp16_full_eval without --fp16"),
        ("optim", "paged_adamw_8bit", "use --optim adamw_torch, or .*sgd, adafactor, adamw_8bit"),
        ("deepspeed", "nowhere.json", "nowhere.json"),
        ("lr_scheduler_type", "zigzag", "--lr_scheduler_type: expected one of"),
    ],
)
def test_a_value_that_is_set_later_is_refused_too(tmp_path, name, value, message):
    args = made(tmp_path)
    before = getattr(args, name)
    setattr(args, name, value)
    with pytest.raises(ValueError, match=message):
        as_arguments(args)
    setattr(args, name, before)
    assert as_arguments(args) is args


def test_nothing_is_said_twice_and_nothing_changes(tmp_path, caplog, monkeypatch):
    given = {
        "evaluation_strategy": "steps", "logging_steps": 7, "load_best_model_at_end": True, "save_steps": 14,
        "warmup_steps": 3, "split_batches": True, "resume_from_checkpoint": "True", "torch_compile": True,
    }  # fmt: skip
    args = made(tmp_path, **given)
    before = args.resolved_values()
    monkeypatch.setattr(notices, "_said", set())
    caplog.clear()
    as_arguments(args)
    assert args.resolved_values() == before
    assert [record.message for record in caplog.records] == [
        "--torch_compile has no effect: performance only: the engine is compiled"
    ]


@pytest.mark.parametrize(
    ("flags", "change", "derived"),
    [
        ({"eval_strategy": "steps"}, {"logging_steps": 7}, {"eval_steps": 7}),
        (
            {"evaluation_strategy": "steps"},
            {"eval_strategy": "no"},
            {"eval_strategy": "no", "do_eval": False},
        ),
        ({"metric_for_best_model": "loss"}, {"metric_for_best_model": "rouge"}, {"greater_is_better": True}),
        ({"group_by_length": True}, {"group_by_length": False}, {"train_sampling_strategy": "random"}),
        ({"group_by_length": True}, {"train_sampling_strategy": "random"}, {"group_by_length": False}),
        ({}, {"split_batches": True}, {"split_batches": True}),
        ({"push_to_hub_model_id": "a"}, {"hub_model_id": "b/c"}, {"hub_model_id": "b/c"}),
    ],
)
def test_what_hangs_on_a_change_follows_it(tmp_path, flags, change, derived):
    args = made(tmp_path, **flags)
    for name, value in change.items():
        setattr(args, name, value)
    as_arguments(args)
    assert {name: getattr(args, name) for name in derived} == derived


def test_a_setter_sets_what_already_stood_there(tmp_path):
    args = made(tmp_path, evaluation_strategy="steps", logging_steps=5)
    args.set_evaluate(strategy="steps", steps=9)
    assert (args.eval_strategy, args.eval_steps, args.do_eval) == ("steps", 9, True)


def test_copies_change_alone(tmp_path):
    args = made(tmp_path, eval_strategy="steps", logging_steps=5)
    for other in (copy.copy(args), copy.deepcopy(args), pickle.loads(pickle.dumps(args))):
        other.logging_steps = 3
        as_arguments(other)
        assert (other.eval_steps, as_arguments(args).eval_steps) == (3, 5)


@pytest.mark.parametrize("name", REFUSED)
def test_a_default_of_a_subclass_is_refused_as_a_flag_is(tmp_path, name):
    kind = dataclasses.make_dataclass(
        "Mine",
        [(name, FIELDS[name].type, dataclasses.field(default=refused_value(name)))],
        bases=(TrainingArguments,),
    )
    with pytest.raises(ValueError, match=f"does not support --{name}"):
        kind(str(tmp_path), use_cpu=True)
    kind(str(tmp_path), use_cpu=True, **{name: FIELDS[name].default})


def test_optimizers_and_what_does_not_go_with_them(tmp_path):
    for optim in ("sgd", "adafactor", "adamw_8bit", "adamw_bnb_8bit"):
        assert made(tmp_path, optim=optim).optim == optim
        with pytest.raises(ValueError, match=f"--optim_dtype bfloat16 .* --optim {optim} does not have"):
            made(tmp_path, optim=optim, optim_dtype="bfloat16")
    assert made(tmp_path, adafactor=True).optim == "adafactor"
