"""transformers' own TrainingArguments, as a script of FastChat makes them, handed to our Trainer."""

import dataclasses
import inspect

import pytest
import transformers

from fastsft.arguments import TrainingArguments
from fastsft.arguments.from_transformers import as_arguments
from fastsft.runtime import messages as notices
from fastsft.trainer import Trainer
from fastsft.trainer.compat import overrides as preflight

THEIRS = {field.name: field for field in dataclasses.fields(transformers.TrainingArguments) if field.init}
# What means the same in other words, or is settled by the place where the program runs.
SETTLED = {
    "report_to", "logging_dir", "accelerator_config", "lr_scheduler_kwargs", "fsdp_config", "warmup_ratio",
    "include_num_input_tokens_seen", "warmup_steps",
}  # fmt: skip


@dataclasses.dataclass
class Script(transformers.TrainingArguments):
    """As FastChat's: two fields that fastsft knows, and one that it does not."""

    cache_dir: str | None = None
    optim: str = "adamw_torch"
    model_max_length: int = 512
    flavour: str = "plain"


def test_every_field_keeps_its_value(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(notices, "_said", set())
    given = Script(
        str(tmp_path), use_cpu=True, learning_rate=3e-4, lr_scheduler_type="cosine", warmup_ratio=0.1,
        eval_strategy="epoch", save_strategy="epoch", save_total_limit=3, logging_steps=1, max_steps=7,
        gradient_accumulation_steps=4, weight_decay=0.1, seed=5, model_max_length=77, flavour="strong",
        load_best_model_at_end=True, report_to="none", lr_scheduler_kwargs={"num_cycles": 2},
        accelerator_config={"split_batches": False},
    )  # fmt: skip
    adopted = as_arguments(given)
    assert type(adopted) is TrainingArguments
    for name in THEIRS.keys() - SETTLED:
        theirs = getattr(given, name)
        ours = getattr(adopted, name)
        assert ours == getattr(theirs, "value", theirs) or (ours in (None, [], "") and not theirs), name
    assert adopted.get_warmup_steps(100) == given.get_warmup_steps(100) == 10
    assert (adopted.model_max_length, adopted.flavour) == (77, "strong")
    assert adopted.lr_scheduler_kwargs == {"num_cycles": 2} and adopted.report_to == []
    assert not [record for record in caplog.records if "has no effect" in record.message]
    assert as_arguments(adopted) is adopted


def test_what_is_refused_from_the_command_line_is_refused(tmp_path):
    with pytest.raises(ValueError, match="use --optim adamw_torch"):
        as_arguments(Script(str(tmp_path), use_cpu=True, optim="lion_8bit"))
    with pytest.raises(TypeError, match=r"expected args to be fastsft.TrainingArguments.*got dict"):
        as_arguments({"output_dir": str(tmp_path)})
    assert as_arguments(None).output_dir == "tmp_trainer"


def test_trackers_that_fastsft_does_not_know_are_left_out(tmp_path, caplog, monkeypatch):
    pytest.importorskip("tensorboard")
    monkeypatch.setattr(notices, "_said", set())
    given = Script(str(tmp_path), use_cpu=True, report_to=["clearml", "tensorboard"])
    assert as_arguments(given).report_to == ["tensorboard"]
    assert "--report_to clearml: fastsft reports to mlflow, tensorboard, wandb only" in caplog.text


@pytest.mark.parametrize(
    "name",
    ["compute_loss", "training_step", "create_optimizer", "get_train_dataloader", "_evaluate", "_save",
     "_load_best_model", "_load_from_checkpoint", "_rotate_checkpoints", "_save_optimizer_and_scheduler",
     "floating_point_ops", "_remove_unused_columns"],
)  # fmt: skip
def test_steps_of_ones_own_are_refused(name):
    own = type("Own", (Trainer,), {name: lambda self, *given: None})
    with pytest.raises(ValueError, match=rf"Own\.{name} would never be called"):
        own("model")


# Overridden, they lose nothing: only scripts call them.
HARMLESS = {
    "get_num_trainable_parameters", "get_learning_rates", "get_optimizer_group", "hyperparameter_search",
    "metrics_format",
}  # fmt: skip


def test_every_method_of_transformers_is_there_refused_or_harmless():
    theirs = {name for name, value in vars(transformers.Trainer).items() if inspect.isfunction(value)}
    refused = {name for names, _, _ in preflight._NEVER_CALLED for name in names}
    assert len(theirs) > 80
    assert theirs - set(dir(Trainer)) - refused == HARMLESS & theirs
    assert not HARMLESS & refused and not HARMLESS & set(dir(Trainer))


def test_a_save_of_ones_own_is_told_that_checkpoints_do_without_it(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(notices, "_said", set())
    own = type("Own", (Trainer,), {"save_model": lambda self, *given: None})
    with pytest.raises(ValueError, match="is not a directory"):
        own("./model", TrainingArguments(str(tmp_path), use_cpu=True))
    assert "Own.save_model: checkpoints do not go through it" in caplog.text


def test_subclasses_may_do_what_is_called(tmp_path):
    own = type("Own", (Trainer,), {"log": lambda self, *given: None})
    with pytest.raises(ValueError, match=r"model_name_or_path: \./model is not a directory"):
        own("./model", TrainingArguments(str(tmp_path), use_cpu=True))


@pytest.mark.parametrize(
    ("name", "value"),
    [("model_init", dict), ("compute_loss_func", max), ("optimizers", (object(), None)),
     ("optimizer_cls_and_kwargs", (object, {}))],
)  # fmt: skip
def test_parts_that_have_no_place_are_refused(name, value):
    with pytest.raises(ValueError, match=f"Trainer: {name} has no place here"):
        Trainer("model", **{name: value})


def test_methods_that_only_report_may_be_ones_own(tmp_path):
    own = dataclasses.dataclass(type("Own", (Script,), {
        "to_dict": lambda self: {}, "to_sanitized_dict": lambda self: {}, "to_json_string": lambda self: "",
    }))  # fmt: skip
    assert as_arguments(own(str(tmp_path), use_cpu=True, seed=5)).seed == 5
    given = transformers.Seq2SeqTrainingArguments(str(tmp_path), use_cpu=True, seed=6)
    assert as_arguments(given).seed == 6
    bad = type("Bad", (Script,), {"get_warmup_steps": lambda self, steps: 3})
    with pytest.raises(ValueError, match=r"Bad\.get_warmup_steps would never be called"):
        as_arguments(bad(str(tmp_path), use_cpu=True))
