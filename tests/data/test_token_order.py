"""Order of the data and counts of tokens beside the real Trainer of transformers."""

import numpy as np
import pytest
import torch
import transformers

from fake_run import Engine, Model
from fastsft import _C
from fastsft.arguments import TrainingArguments
from fastsft.arguments.help import argument_rows
from fastsft.data.epoch_order import epoch_order
from fastsft.data.token_rows import TokenRows
from fastsft.planning.run_plan import EpochGroups
from fastsft.trainer import Trainer


class Items(torch.utils.data.Dataset):
    """Items of the given lengths; the last `padding` ids of each are padding. Ids name the row."""

    def __init__(self, lengths, padding=0):
        self.lengths, self.padding = lengths, padding

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, row):
        ids = torch.full((self.lengths[row],), row + 1)
        mask = torch.ones_like(ids)
        if self.padding:
            mask[-self.padding :] = 0
        labels = torch.where(mask.bool(), ids, -100)
        return {"input_ids": ids, "labels": labels, "attention_mask": mask}


class Least(torch.nn.Module):
    """A model with a loss and nothing else."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, input_ids, labels=None, attention_mask=None):
        return {"loss": (self.weight * input_ids.float()).mean()}


def pad(items):
    return {
        key: torch.nn.utils.rnn.pad_sequence([item[key] for item in items], batch_first=True)
        for key in items[0]
    }


def their_trainer(tmp_path, items, **flags):
    args = transformers.TrainingArguments(
        str(tmp_path), use_cpu=True, report_to="none", disable_tqdm=True, save_strategy="no", **flags
    )
    return transformers.Trainer(Least(), args, train_dataset=items, data_collator=pad)


def our_arguments(**flags):
    return TrainingArguments("out", use_cpu=True, **flags)


@pytest.mark.parametrize("count", [1, 7, 41, 300])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_group_by_length(tmp_path, count, accumulation):
    lengths = np.random.default_rng(count).integers(3, 40, count).tolist()
    flags = {
        "group_by_length": True, "per_device_train_batch_size": 3, "seed": 7,
        "gradient_accumulation_steps": accumulation,
    }  # fmt: skip
    trainer = their_trainer(tmp_path, Items(lengths), **flags)
    transformers.set_seed(7)
    loader = trainer.get_train_dataloader()
    rows = TokenRows.from_dataset(list(Items(lengths)), 64)
    for epoch in range(3):
        theirs = [int(row[0]) - 1 for batch in loader for row in batch["input_ids"]]
        assert epoch_order(our_arguments(**flags), rows, epoch).tolist() == theirs


def test_group_by_length_of_padded_items_is_a_permutation_of_its_own():
    """FastChat pads every item, so that there is nothing to group."""
    rows = TokenRows.from_dataset(list(Items([16] * 21, padding=4)), 16)
    order = epoch_order(our_arguments(train_sampling_strategy="group_by_length"), rows, 0)
    assert sorted(order) == list(range(21)) and set(rows.lengths) == {12}
    assert order.tolist() != _C.epoch_order(21, 42, 0).tolist()


def test_lengths_of_a_column():
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_list([
        {"input_ids": [1] * 5, "labels": [1] * 5, "length": length, "n": row}
        for row, length in enumerate([3, 9, 5])
    ])  # fmt: skip
    rows = TokenRows.from_dataset(table, 16)
    assert rows.item_lengths("length").tolist() == [3, 9, 5]
    assert rows.item_lengths("n").tolist() == [0, 1, 2]
    assert rows.item_lengths("missing").tolist() == rows.item_lengths().tolist() == [5, 5, 5]
    assert epoch_order(our_arguments(group_by_length=True), rows, 0)[0] == 1
    assert epoch_order(our_arguments(group_by_length=True, length_column_name="n"), rows, 0)[0] == 2


def test_sequential():
    rows = TokenRows.from_dataset(Items([4] * 9), 8)
    args = our_arguments(train_sampling_strategy="sequential")
    assert [epoch_order(args, rows, epoch).tolist() for epoch in (0, 1)] == [list(range(9))] * 2


def test_old_and_new_name_of_grouping():
    assert our_arguments(group_by_length=True).train_sampling_strategy == "group_by_length"
    assert our_arguments(train_sampling_strategy="group_by_length").group_by_length
    with pytest.raises(ValueError, match="contradict"):
        our_arguments(group_by_length=True, train_sampling_strategy="sequential")


@pytest.mark.usefixtures("fake_saving")
@pytest.mark.parametrize("counted", ["all", "non_padding"])
def test_tokens_seen(tmp_path, counted):
    lengths, flags = [16] * 11, {
        "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "num_train_epochs": 2,
        "logging_steps": 2, "include_num_input_tokens_seen": counted, "include_tokens_per_second": True,
    }  # fmt: skip
    theirs = their_trainer(tmp_path, Items(lengths, padding=5), **flags)
    theirs.train()
    ours = Trainer(
        Model(Engine()),
        args=TrainingArguments(
            str(tmp_path), use_cpu=True, disable_tqdm=True, plot_loss=False, save_strategy="no",
            model_max_length=16, **flags,
        ),
        train_dataset=Items(lengths, padding=5),
    )  # fmt: skip
    ours.train()
    mine, other = ours.state.log_history, theirs.state.log_history
    assert [list(entry) for entry in mine] == [list(entry) for entry in other]
    for a, b in zip(mine, other, strict=True):
        assert (a["step"], a["num_input_tokens_seen"]) == (b["step"], b["num_input_tokens_seen"])
        assert a["train_tokens_per_second"] > 0
    assert mine[-1]["num_input_tokens_seen"] == 22 * (16 if counted == "all" else 11)
    seconds = mine[-1]["train_runtime"]
    assert mine[-1]["train_tokens_per_second"] * seconds == pytest.approx(2 * 11 * 16, rel=0.05)


@pytest.mark.parametrize("size", [17, 24, 8])
@pytest.mark.parametrize("drop_last", [False, True])
def test_split_batches_deal_as_accelerate(monkeypatch, size, drop_last):
    from accelerate.data_loader import BatchSamplerShard

    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    args = our_arguments(
        per_device_train_batch_size=8, split_batches=True, dataloader_drop_last=drop_last,
        train_sampling_strategy="sequential",
    )  # fmt: skip
    assert args.train_batch_size == 4 and args.accelerator_config["split_batches"]
    groups = EpochGroups(args, TokenRows.from_dataset(Items([4] * size), 8), 0, None)
    sampler = torch.utils.data.BatchSampler(range(size), 8, drop_last)
    shards = [list(BatchSamplerShard(sampler, 2, rank, split_batches=True)) for rank in range(2)]
    ours = [groups.reference(step) for step in range(len(shards[0]))]
    assert [[group[rank][0] for group in ours] for rank in range(2)] == shards
    with pytest.raises(ValueError, match="use a multiple of 2"):
        our_arguments(per_device_train_batch_size=3, split_batches=True)
    with pytest.raises(ValueError, match="with evaluation on several ranks"):
        our_arguments(split_batches=True, eval_strategy="epoch")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"dispatch_batches": True}, "dispatch_batches; leave it out"),
        ({"use_seedable_sampler": False}, "use_seedable_sampler false"),
        ({"gradient_accumulation_kwargs": {"num_steps": 2}}, "num_steps"),
        ({"use_configured_state": True}, "use_configured_state"),
        ({"even": True}, "unknown keys"),
    ],
)
def test_settings_of_accelerate_that_are_refused(config, message):
    with pytest.raises(ValueError, match=message):
        our_arguments(accelerator_config=config)


def test_the_table_of_arguments_says_so():
    (row,) = [row for row in argument_rows() if row.name == "accelerator_config"]
    assert "; use_seedable_sampler false, dispatch_batches, use_configured_state and num_steps raise" in str(
        row
    )


def test_uneven_batches_only_alone(monkeypatch):
    our_arguments(accelerator_config={"even_batches": False})
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="even_batches false on several ranks"):
        our_arguments(accelerator_config='{"even_batches": "false"}')
