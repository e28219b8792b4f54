"""--overlong split: the pieces of FastChat's data/split_long_conversation.py; what it leaves out is named."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_formats import labelled, write_records
from fastsft.data.chat.labelling import LabelSettings, make_labeller
from fastsft.data.data_module import make_supervised_data_module
from fastsft.tokenizer import Tokenizer
from golden_text import GOLDEN, MODES, hf_tokenizer, human_gpt

MODE, LENGTH = MODES[0], 128
TOKENIZER = Tokenizer.from_pretrained(GOLDEN / "tokenizers" / MODE, model_max_length=LENGTH)


def settings(policy: str = "fastchat", overlong: str = "split") -> LabelSettings:
    template = None if policy == "fastchat" else "vicuna_v1.1"
    return LabelSettings(mask_policy=policy, template=template, overlong=overlong)


def records(count: int) -> list[Any]:
    """Conversations of 1 to 9 messages; some texts are longer than a row."""
    chooser = random.Random(5)
    words = ["Paris", "is", "", "a", "capital,", "\u4f60", "of\n", "12345"]

    def text() -> str:
        most = chooser.choice([3, 12, 40, 130])
        return " ".join(chooser.choice(words) for _ in range(chooser.randint(1, most)))

    return [
        {"id": f"r{i}", "conversations": human_gpt(*(text() for _ in range(chooser.randint(1, 9))))}
        for i in range(count)
    ]


def by_fastchat(sources: list[Any]) -> list[Any]:
    from fastchat.data import split_long_conversation as original

    original.tokenizer, original.max_length = hf_tokenizer(MODE, LENGTH), LENGTH
    pieces = [piece for sample in sources for piece in original.split_one_sample(sample)]
    return original.filter_invalid_roles(pieces)


def rows(seen: Any) -> list[list[int]]:
    return [seen.dataset.ids(i).tolist() for i in range(len(seen.dataset))]


@pytest.mark.parametrize("policy", ["fastchat", "spans"])
def test_rows_are_those_of_fastchats_pieces(policy: str, tmp_path: Path) -> None:
    """A row of a split file, and one of the file that FastChat's script writes, record by record."""
    sources = [each for each in records(150) if len(each["conversations"]) > 1]
    pieces = by_fastchat(sources)
    ours = labelled(
        write_records(tmp_path / "d.json", sources),
        make_labeller(TOKENIZER.native, LENGTH, 0, settings(policy)),
    )
    theirs = labelled(
        write_records(tmp_path / "e.json", pieces),
        make_labeller(TOKENIZER.native, LENGTH, 0, settings(policy, "truncate")),
    )
    assert not ours.faults and len(pieces) > len(sources) // 2 and rows(ours) == rows(theirs)
    assert ours.report.entries["split"].count > 20 and ours.report.entries["split_lost"].count > 20


def test_pieces_are_named_after_where_they_begin(tmp_path: Path) -> None:
    long = "word " * 30
    record = {"id": "a", "conversations": human_gpt(long, long, "b", "c", long, long, "d", "e", "tail")}
    path = write_records(tmp_path / "d.json", [record, {"id": "short", "conversations": human_gpt("b", "c")}])
    seen = labelled(path, make_labeller(TOKENIZER.native, LENGTH, 0, settings()))
    split, lost = seen.report.entries["split"], seen.report.entries["split_lost"]
    assert [piece["id"] for piece in by_fastchat([record])] == ["a_0", "a_4"]
    assert (split.first, lost.first) == (["a_0", "a_4"], ["a_4"])
    assert len(seen.dataset) == 3 and seen.report.num_salvaged == 1


def test_what_the_script_leaves_out_is_counted(tmp_path: Path) -> None:
    long = "word " * 70
    first = human_gpt("b", "c")
    sources = [{"id": "one turn", "conversations": human_gpt(long, long)},
               {"id": "assistant first", "conversations": [first[1], first[0]]}]  # fmt: skip
    assert by_fastchat(sources) == []
    seen = labelled(
        write_records(tmp_path / "d.json", sources), make_labeller(TOKENIZER.native, LENGTH, 0, settings())
    )
    assert len(seen.dataset) == 0 and seen.report.num_excluded == 2
    assert seen.report.entries["split_lost"].first == ["one turn", "assistant first"]


def test_the_system_message_goes_with_every_piece(tmp_path: Path) -> None:
    long = "word " * 40
    turns = human_gpt(long, long, long, long, long, long, "b", "c")
    path = write_records(
        tmp_path / "d.json", [{"conversations": [{"from": "system", "value": "Be brief."}, *turns]}]
    )
    seen = labelled(path, make_labeller(TOKENIZER.native, LENGTH, 0, settings("spans")))
    assert len(seen.dataset) == 3
    assert all(TOKENIZER.native.decode(ids).startswith("<s> Be brief. USER: word") for ids in rows(seen))


def test_records_that_cannot_be_split_are_judged_as_they_are(tmp_path: Path) -> None:
    good = human_gpt("b", "c")
    bad = [{"id": 1, "conversations": []},
           {"id": 2, "conversations": [*good, {"from": "bing", "value": "x"}]},
           {"id": 3, "conversations": [*good, {"from": "human", "value": 5}]}, 7]  # fmt: skip
    path = write_records(tmp_path / "d.json", bad)
    plain = labelled(path, make_labeller(TOKENIZER.native, LENGTH, 0, settings(overlong="truncate")))
    split = labelled(path, make_labeller(TOKENIZER.native, LENGTH, 0, settings()))
    assert len(plain.faults) == 4 and list(map(str, split.faults)) == list(map(str, plain.faults))


def test_with_lazy_rows_it_is_refused(tmp_path: Path) -> None:
    path = write_records(tmp_path / "d.json", records(2))
    args = SimpleNamespace(
        data_path=str(path), eval_data_path=None, lazy_preprocess=True, data_cache="none", overlong="split"
    )
    with pytest.raises(ValueError, match="--overlong split makes several rows of a record"):
        make_supervised_data_module(TOKENIZER, args)
