"""`--eval_split`: conversations on one side each, drawn by seed and content alone."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pytest

from fastsft import _C
from fastsft.arguments.data import DataArguments
from fastsft.data.data_module import make_supervised_data_module
from fastsft.inspection.data_report import write_data_report
from fastsft.tokenizer import Tokenizer
from golden_text import GOLDEN, MODES, human_gpt

TOKENIZER = Tokenizer.from_pretrained(GOLDEN / "tokenizers" / MODES[0], model_max_length=128)
RECORDS = [{"id": str(i), "conversations": human_gpt(f"question {i}", f"answer {i}")} for i in range(57)]


def load(records: list[Any], tmp_path: Path, share: float, **more: Any) -> dict[str, Any]:
    path = tmp_path / "data.json"
    path.write_text(json.dumps(records))
    given = {
        "eval_data_path": None, "lazy_preprocess": False, "data_cache": "none", "mask_policy": "fastchat",
        **more, "data_path": str(path), "eval_split": share,
    }  # fmt: skip
    return make_supervised_data_module(TOKENIZER, SimpleNamespace(**given))


def texts(dataset: Any) -> list[bytes]:
    return [dataset.native.ids(row).tobytes() for row in range(len(dataset))]


@pytest.mark.parametrize("share", [0.05, 0.1, 0.33, 0.001, 1, 7, 56])
def test_sizes_are_those_of_the_datasets_library(share: float, tmp_path: Path) -> None:
    """LLaMA-Factory and axolotl split with `train_test_split`."""
    size = share if share < 1 else int(share)
    theirs = datasets.Dataset.from_list(RECORDS).train_test_split(test_size=size, seed=1)
    ours = load(RECORDS, tmp_path, share)
    sizes = len(ours["train_dataset"]), len(ours["eval_dataset"])
    assert sizes == (len(theirs["train"]), len(theirs["test"]))


@pytest.mark.parametrize("seed", range(5))
def test_no_conversation_is_on_both_sides(seed: int, tmp_path: Path) -> None:
    """Copies have other ids, places and numbers; those cut at the same token have equal rows, too."""
    long = " word" * 200
    cut = [{"conversations": human_gpt(f"tell {i} {long}", f"{i}")} for i in range(2)]
    labelled_cut = [{"conversations": human_gpt("go on", f"on {long} {i}")} for i in range(3)]
    again = [{**record, "id": f"copy {n}"} for n in range(3) for record in RECORDS[: 10 + 5 * n]]
    sets = load([*RECORDS, *again, *labelled_cut, *cut], tmp_path, 0.3, eval_split_seed=seed)
    train, evaluated = sets["train_dataset"], sets["eval_dataset"]
    assert not set(texts(train)) & set(texts(evaluated)) and len(evaluated) >= 0.25 * len(train)
    assert _C.count_shared_rows(evaluated.native, train.native) == 0
    assert len(train) + len(evaluated) == 57 + 45 + 3 + 2
    assert all(evaluated.native.target_counts() > 0)  # rows without targets are of no use there
    assert train.eval_split == {
        "share": 0.3,
        "seed": seed,
        "conversations": len(evaluated),
        "of": 107,
        "asked": 32,
    }


def test_the_draw_depends_on_seed_and_content_alone(tmp_path: Path) -> None:
    def evaluated(records: list[Any], **more: Any) -> set[bytes]:
        return set(texts(load(records, tmp_path, 12, **more)["eval_dataset"]))

    first = evaluated(RECORDS)
    shuffled = [RECORDS[i] for i in np.random.default_rng(0).permutation(57)]
    assert evaluated(shuffled) == evaluated(RECORDS, data_cache=str(tmp_path / "cache")) == first
    assert evaluated(RECORDS, data_cache=str(tmp_path / "cache")) == first  # read from the cache
    assert evaluated(RECORDS, lazy_preprocess=True) == evaluated(RECORDS, eval_split_seed=42) == first
    assert evaluated(RECORDS, eval_split_seed=7) != first
    more = [{"conversations": human_gpt(f"new {i}", "yes")} for i in range(30)]
    assert len(evaluated([*RECORDS, *more]) & first) >= 3  # new data moves no conversation to training alone


def test_rows_keep_their_order_labels_and_items(tmp_path: Path) -> None:
    whole = load(RECORDS, tmp_path, 0)["train_dataset"]
    sets = load(RECORDS, tmp_path, 0.2)
    for dataset in sets.values():
        places = [texts(whole).index(text) for text in texts(dataset)]
        assert places == sorted(places)
        for row, place in enumerate(places):
            ours, theirs = dataset[row], whole[place]
            assert all((ours[name] == theirs[name]).all() for name in theirs)
            assert dataset.native.learned(row) == whole.native.learned(place)
    assert sets["train_dataset"].untouched_rows() is not None


@pytest.mark.parametrize(
    ("share", "more", "expected"),
    [
        (1.5, {}, r"expected a fraction below 1 or a number .*, got 1.5; 1.5 % is 0.015"),
        (-0.1, {}, r"expected a fraction below 1 or a number of conversations \(0 is off\), got -0.1"),
        ("0.1", {}, "expected a number .*, got '0.1'"),
        (None, {}, "expected a number .*, got None"),
        (True, {}, "expected a number .*, got True"),
        (float("nan"), {}, "got nan"),
        (float("inf"), {}, "got inf"),
        (57, {}, "expected fewer than the 57 conversations with learned tokens of .*data.json"),
        (0.999, {}, "expected fewer than the 57 conversations"),
        (0.1, {"eval_data_path": "other.json"}, "--eval_data_path other.json names other data; leave one"),
    ],
)
def test_refusals(share: Any, more: dict[str, Any], expected: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"--eval_split.*{expected}"):
        load(RECORDS, tmp_path, share, **more)


@pytest.mark.parametrize("flags", [{"overlong": "split"}, {"mask_policy": "spans", "train_turns": "each"}])
def test_a_conversation_in_several_rows_is_not_divided(flags: dict[str, str], tmp_path: Path) -> None:
    turns = [turn for i in range(8) for turn in human_gpt(f"question {i} {'word ' * 30}", f"answer {i}")]
    args = {**vars(DataArguments()), "template": "vicuna_v1.1"} if "train_turns" in flags else {}
    flags = {**args, "data_cache": "none", **flags}
    with pytest.raises(ValueError, match=r"expected a row for each conversation .* name a file with"):
        load([*RECORDS, {"conversations": turns}], tmp_path, 0.1, **flags)
    sets = load(RECORDS, tmp_path, 0.1, **flags)  # each has one row
    assert len(sets["eval_dataset"]) == 6


def test_copies_of_one_conversation_cannot_be_divided(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="with learned tokens are equal, and equal ones are not divided"):
        load([RECORDS[0]] * 6, tmp_path, 2)


def test_many_copies_are_drawn_as_often_as_few(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Half of 40 conversations are there 4 times; 8 rows are asked for, and 2 to 8 conversations drawn."""
    records, drawn = [record for i in range(40) for record in [RECORDS[i]] * (4 if i % 2 else 1)], [0, 0]
    whole = load(records, tmp_path, 0)["train_dataset"]
    copies = [texts(whole).count(text) for text in dict.fromkeys(texts(whole))]
    assert sorted(copies) == [1] * 20 + [4] * 20
    for seed in range(30):
        sets = load(records, tmp_path, 8, eval_split_seed=seed)
        found = texts(sets["eval_dataset"])
        assert 8 <= len(found) <= 11 and not set(found) & set(texts(sets["train_dataset"]))
        said = capsys.readouterr().out
        assert ("(8 asked for; equal ones are not divided)" in said) == (len(found) != 8)
        for text in set(found):
            drawn[found.count(text) == 4] += 1
    few, many = drawn  # with equal chances, the ratio is 1 but for noise
    assert 0.75 < many / few < 1.35


def test_two_conversations_leave_one_to_train_on(tmp_path: Path) -> None:
    for seed in range(4):
        sets = load([RECORDS[0]] * 3 + [RECORDS[1]] * 3, tmp_path, 5, eval_split_seed=seed)
        assert [len(dataset) for dataset in sets.values()] == [3, 3]


def test_the_report_has_the_figures_of_each_part(tmp_path: Path) -> None:
    bad = {"conversations": human_gpt("question", "")}
    sets = load([*RECORDS, bad], tmp_path, 10)
    report = json.loads(write_data_report(tmp_path, sets).read_text())
    whole = json.loads(write_data_report(tmp_path, load([*RECORDS, bad], tmp_path, 0)).read_text())["train"]
    for name, dataset in (("train", sets["train_dataset"]), ("eval", sets["eval_dataset"])):
        entry, rows = report[name], range(len(dataset))
        assert entry["records"] == len(dataset)
        assert entry["tokens"] == sum(len(dataset.native.ids(row)) for row in rows)
        spans = [span for row in rows for span in dataset.native.learned(row)]
        assert entry["learned_tokens"] == sum(end - begin for begin, end in spans)
        assert entry["whole_file"].items() <= whole.items()
    for name in ("records", "tokens", "learned_tokens"):
        assert report["train"][name] + report["eval"][name] == whole[name]
