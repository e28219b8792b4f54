"""Values that Python gives: converted as a command line would, or refused with what was expected."""

from pathlib import Path

import numpy as np
import pytest

from fastsft.arguments import TrainingArguments


def made(tmp_path, **flags):
    return TrainingArguments(str(tmp_path), **{"use_cpu": True, **flags})


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("learning_rate", "2e-5", 2e-5),
        ("learning_rate", np.float32(0.5), 0.5),
        ("max_steps", "12", 12),
        ("max_steps", 12.0, 12),
        ("seed", np.int64(3), 3),
        ("bf16", "False", False),
        ("bf16", "yes", True),
        ("bf16", np.bool_(True), True),
        ("gradient_checkpointing", 1, True),
        ("warmup_steps", "0.25", 0.25),
        ("neftune_noise_alpha", "5", 5.0),
        ("data_seed", None, None),
        ("max_grad_norm", None, 0.0),
        ("max_grad_norm", float("inf"), float("inf")),
        ("cache_dir", Path("here"), "here"),
        ("average_tokens_across_devices", None, None),
    ],
)
def test_values_get_the_type_of_their_field(tmp_path, name, given, value):
    found = getattr(made(tmp_path, **{name: given}), name)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("learning_rate", "fast", "a number, got 'fast'"),
        ("learning_rate", -1e-5, "0 or more, got -1e-05"),
        ("learning_rate", float("inf"), "0 or more, got inf"),
        ("learning_rate", float("nan"), "a number, got nan"),
        ("learning_rate", True, "a number, got True"),
        ("learning_rate", [1e-5], r"a number, got \[1e-05\]"),
        ("adam_beta1", 1.5, "0 or more and below 1, got 1.5"),
        ("adam_beta2", 1.0, "0 or more and below 1, got 1.0"),
        ("adam_epsilon", -1e-8, "0 or more"),
        ("weight_decay", -0.1, "0 or more, got -0.1"),
        ("max_grad_norm", -1, r"0 \(off\) or more, got -1"),
        ("num_train_epochs", -1, "more than 0, got -1; or give --max_steps"),
        ("num_train_epochs", 0, "more than 0, got 0; or give --max_steps"),
        ("bf16", "maybe", "True or False, got 'maybe'"),
        ("bf16", 2, "True or False, got 2"),
        ("use_cpu", 0.5, "True or False, got 0.5"),
        ("max_steps", 1.5, "a whole number, got 1.5"),
        ("max_steps", "1e3", "a whole number, got '1e3'"),
        ("per_device_train_batch_size", True, "a whole number, got True"),
        ("per_device_train_batch_size", float("inf"), "a whole number, got inf"),
        ("per_device_train_batch_size", None, "a whole number, got None"),
        ("weight_decay", None, "a number, got None"),
        ("seed", -1, "0 or more and below 2\\^63, got -1"),
        ("ddp_timeout", 0, "at least 1, got 0"),
    ],
)
def test_other_values_are_refused(tmp_path, name, given, expected):
    with pytest.raises(ValueError, match=f"--{name}: expected {expected}"):
        made(tmp_path, **{name: given})


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("use_mps_device", "False", False),
        ("use_mps_device", 0, False),
        ("past_index", "-1", -1),
        ("past_index", -1.0, -1),
        ("tp_size", "1", 1),
        ("tp_size", "0", 0),
        ("dispatch_batches", "false", False),
        ("auto_find_batch_size", np.bool_(False), False),
        ("sharded_ddp", False, False),
        ("debug", [""], []),
    ],
)
def test_neutral_values_of_refused_fields_may_be_words(tmp_path, name, given, value):
    found = getattr(made(tmp_path, **{name: given}), name)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("past_index", "0"),
        ("tp_size", "2"),
        ("tp_size", True),
    ],
)
def test_other_words_for_refused_fields_are_refused(tmp_path, name, given):
    with pytest.raises(ValueError, match=f"^fastsft does not support --{name}"):
        made(tmp_path, **{name: given})


def test_epochs_do_not_matter_beside_steps(tmp_path):
    assert made(tmp_path, num_train_epochs=-1, max_steps=4).max_steps == 4
