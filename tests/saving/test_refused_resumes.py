"""What a run does not resume from: another run, other data, another place in the data; what it warns of."""

import pytest

from fastsft import _C, saving
from fastsft.checkpoint import run_identity
from fastsft.checkpoint.run_difference import difference
from fastsft.runtime import messages
from saved_runs import OPTIMIZER, copy
from saving_run import make_trainer


def test_a_damaged_checkpoint_is_not_resumed_by_name(finished, model, tmp_path):
    output = copy(finished, tmp_path, 4)
    path = output / "checkpoint-4" / OPTIMIZER
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{OPTIMIZER}: expected CRC32C"):
        saving.load_checkpoint(make_trainer(model, tmp_path), output / "checkpoint-4")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"gradient_accumulation_steps": 1},
            "batch was 4 .* now it is 2; --gradient_accumulation_steps 2",
        ),
        (
            {"per_device_train_batch_size": 3},
            "batch was 4 .* now it is 6; no accumulation restores it",
        ),
        ({"seed": 7}, "with --seed 42, now it is 7; resume with --seed 42, or start"),
        ({"data_seed": 7}, "with --data_seed 42, now it is 7"),
        ({"dataloader_drop_last": True}, "with --dataloader_drop_last False, now it is True"),
        ({"model_max_length": 31}, "with --model_max_length 32, now it is 31"),
    ],
)
def test_another_run_is_refused(finished, model, tmp_path, options, message):
    trainer = make_trainer(model, tmp_path, **options)
    with pytest.raises(ValueError, match=message):
        saving.load_checkpoint(trainer, finished / "checkpoint-4")


def test_another_data_set_is_refused(finished, model, tmp_path, monkeypatch):
    trainer = make_trainer(model, tmp_path)
    rows, edited = trainer._run.planner.rows.native, _C.TokenDataset()
    for row in range(len(rows)):  # one id is another one; lengths and labels stay
        ids = rows.ids(row)
        ids[1] += row == 3
        edited.append(ids, rows.learned(row))
    trainer._run.planner.rows.native = edited
    with pytest.raises(ValueError, match="other data: texts, order or labels of the conversations differ"):
        saving.load_checkpoint(trainer, finished / "checkpoint-4")


def test_other_parts_of_a_run_in_words():
    labels = {"template": "vicuna_v1.1", "mask_policy": "spans"}, {"template": "qwen", "mask_policy": "spans"}
    assert "other labels (template was vicuna_v1.1, now qwen); resume" in difference("labelling", *labels)
    assert "is of another model" in difference("unit_hashes", ["a"], ["b"])
    assert "on 1,000 conversations, now there are 12" in difference("num_conversations", 1000, 12)


def test_other_adapters_in_words():
    """Both sides are named, also if only modules or dropout differ."""
    eight = {"linears": [["q", 8, 2.0], ["v", 8, 2.0]], "dropout": 0.0, "trained": []}
    sixteen = {**eight, "linears": [["q", 16, 2.0]]}
    assert "without adapters, now the run is with 2 adapters of rank 8;" in difference(
        "adapters", None, eight
    )
    assert "2 adapters of rank 8, now the run is with 1 adapters of rank 16;" in difference(
        "adapters", eight, sixteen
    )
    for other, words in (
        ({**eight, "dropout": 0.1}, ", with other --lora_dropout;"),
        ({**eight, "linears": [["q", 8, 4.0], ["v", 8, 4.0]]}, ", with other modules or --lora_alpha;"),
        ({**eight, "base": "nf4"}, "2 adapters of rank 8, with --q_lora;"),
    ):
        assert words in difference("adapters", eight, other)


def test_a_checkpoint_that_is_not_there(finished, model, tmp_path):
    trainer = make_trainer(model, tmp_path)
    with pytest.raises(ValueError, match=r"there is none; next to it are .*checkpoint-4"):
        saving.load_checkpoint(trainer, finished / "checkpoint-40")


def test_a_data_seed_equal_to_the_seed_is_no_difference(finished, model, tmp_path):
    trainer = make_trainer(model, tmp_path, data_seed=42)
    assert saving.load_checkpoint(trainer, finished / "checkpoint-4")["step"] == 4


def test_a_state_of_another_version_is_refused(tmp_path):
    (tmp_path / "fastsft_state.json").write_text('{"format_version": 1}')
    with pytest.raises(ValueError, match="expected format_version 2, got 1; resume with the version"):
        run_identity.read_run_state(tmp_path)


WARNED = {
    "learning_rate": 0.02, "lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"num_cycles": 0.5},
    "warmup_steps": 1, "warmup_ratio": 0.5, "max_steps": 5, "num_train_epochs": 4, "weight_decay": 0.5,
    "adam_beta1": 0.8, "adam_beta2": 0.8, "adam_epsilon": 1e-6, "max_grad_norm": 0.5,
    "label_smoothing_factor": 0.1, "loss_norm": "micro_batch", "average_tokens_across_devices": False,
    "bf16": True,
}  # fmt: skip


def test_other_differences_warn(finished, model, tmp_path):
    saved = run_identity.read_run_state(finished / "checkpoint-4")
    # Later changes of label smoothing have no effect, as in transformers.
    trainer = make_trainer(model, tmp_path, label_smoothing_factor=WARNED["label_smoothing_factor"])
    for name, value in WARNED.items():
        setattr(trainer.args, name, value)
    with messages.collected() as notices:
        saving.load_checkpoint(trainer, finished / "checkpoint-4")
    said = [text.split(": ", 1)[1] for text in notices.warned]
    kept = {"learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon"}
    there = "; the new value is used, where transformers keeps the checkpoint's"
    assert sorted(said) == sorted(
        f"{n} was {saved[n]}, now it is {v}{there if n in kept else ''}" for n, v in WARNED.items()
    )


@pytest.mark.parametrize(
    ("step", "world_size", "drop_last", "expected"),
    [(0, 1, False, (0, 0)), (1, 1, False, (0, 8)), (2, 1, False, (0, 16)), (3, 1, False, (1, 0)),
     (1, 2, False, (0, 16)), (2, 2, False, (1, 0)), (5, 1, True, (2, 8))],
)  # fmt: skip
def test_position(step, world_size, drop_last, expected):
    """18 conversations, four per device, accumulation two."""
    found = run_identity.data_position(
        step, 18, per_device=4, accumulation=2, world_size=world_size, drop_last=drop_last
    )
    assert (found["epoch"], found["conversations"]) == expected


def test_another_position_of_the_same_step_is_refused(model, tmp_path):
    """Eight conversations, the last ones dropped: two steps an epoch of six rows, or only one."""
    first = {"dataloader_drop_last": True, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 6}
    make_trainer(model, tmp_path, **first, max_steps=2).train()
    other = {**first, "per_device_train_batch_size": 3, "gradient_accumulation_steps": 2}
    saved = tmp_path / "checkpoint-2"
    assert saving.load_checkpoint(make_trainer(model, tmp_path, **first, max_steps=2), saved)["step"] == 2
    with pytest.raises(ValueError, match=r"in epoch 1 after 0 .* be epoch 2 after 0; resume"):
        saving.load_checkpoint(make_trainer(model, tmp_path, **other, max_steps=2), saved)
