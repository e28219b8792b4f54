"""Every recorded conversation, both tokenizer modes, three lengths, all edge cases: FastChat's labels."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from fastsft import _C
from fastsft.data.chat.labelling import make_labeller
from fastsft.tokenizer import Tokenizer
from fastsft.tokenizer.transformers_tokenizer import called_tokenizer
from golden_text import (
    CONVERSATIONS,
    GOLDEN,
    MODES,
    conversation_file,
    digest,
    hf_tokenizer,
    read_records,
    read_rows,
)
from releases import of_release_4

PAD = 0
rows_of, records_of = cache(read_rows), cache(read_records)  # to be read only


@cache
def load(mode: str) -> Any:
    return Tokenizer.from_pretrained(GOLDEN / "tokenizers" / mode).native


def recorded_form(dataset: Any, row: int) -> tuple[list[int], list[int]]:
    ids, labels, _ = (array[0].tolist() for array in _C.padded_rows(dataset, row, row + 1, 2048, PAD))
    size = max((i + 1 for i, token in enumerate(ids) if token != PAD), default=0)
    assert set(labels[size:]) <= {-100}
    return ids[:size], labels[:size]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("length", [128, 512, 2048])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_data_files(name: str, length: int, mode: str) -> None:
    goldens = read_rows("labels", f"{name}.{mode}.{length}")
    labelled = _C.label_file(str(conversation_file(name)), make_labeller(load(mode), length, PAD))
    dataset, dropped = labelled.dataset, set(labelled.report.dropped)
    assert not labelled.faults
    assert len(dataset) == len(goldens) == labelled.report.num_records
    for row, golden in enumerate(goldens):
        ids, labels = recorded_form(dataset, row)
        assert (len(ids), digest(ids, labels)) == (golden["length"], golden["hash"]), row
        assert sum(label != -100 for label in labels) == golden["label_tokens"]
        assert (row in dropped) == golden["dropped"]
    assert labelled.report.num_learned == sum(golden["label_tokens"] for golden in goldens)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("length", [64, 512])
@pytest.mark.parametrize("number", range(63))
def test_edge_cases(number: int, length: int, mode: str) -> None:
    golden = rows_of("labels_full", f"edge_cases.{mode}.{length}")[number]
    record = records_of("edge_cases")[number]
    labelled = _C.label_text(json.dumps([record]), make_labeller(load(mode), length, PAD))
    if "error" in golden:
        assert [fault.kind for fault in labelled.faults] == [golden["error"]]
        return
    assert recorded_form(labelled.dataset, 0) == (golden["ids"], golden["labels"])
    assert labelled.report.num_dropped == golden["dropped"]
    if golden["dropped"]:
        counted, real, turns = golden["mismatch"]
        assert labelled.report.warnings == [
            f"WARNING: tokenization mismatch: {counted} vs. {real}. #turn = {turns}. (ignored)"
        ]


@pytest.mark.parametrize("mode", MODES)
def test_first_ten_verbatim(mode: str) -> None:
    for name in CONVERSATIONS:
        goldens = read_rows("labels_full", f"{name}.{mode}.512")
        dataset = _C.label_file(str(conversation_file(name)), make_labeller(load(mode), 512, PAD)).dataset
        for row, golden in enumerate(goldens):
            assert recorded_form(dataset, row) == (golden["ids"], golden["labels"])


@pytest.mark.parametrize("mode", MODES)
def test_number_of_threads_changes_nothing(mode: str) -> None:
    tokenizer, path = load(mode), str(conversation_file("sharegpt_multi_turn"))
    one, many = (
        _C.label_file(path, make_labeller(tokenizer, 512, PAD, num_threads=n)).dataset for n in (1, 5)
    )
    rows = range(len(one))
    assert [one.learned(i) for i in rows] == [many.learned(i) for i in rows]
    assert all((one.ids(i) == many.ids(i)).all() for i in rows)


@of_release_4("its own LlamaTokenizer cuts some texts in another way")
@pytest.mark.parametrize("mode", MODES)
def test_a_tokenizer_object_gives_the_same(mode: str) -> None:
    records = read_records("edge_cases")
    goldens = read_rows("labels_full", f"edge_cases.{mode}.64")
    sound = [record for record, golden in zip(records, goldens, strict=True) if "error" not in golden]
    native, called = (
        _C.label_text(json.dumps(sound), make_labeller(tokenizer, 64, PAD, num_threads=1))
        for tokenizer in (load(mode), called_tokenizer(hf_tokenizer(mode, 64)))
    )
    rows = range(len(sound))
    assert [native.dataset.learned(i) for i in rows] == [called.dataset.learned(i) for i in rows]
    assert all((native.dataset.ids(i) == called.dataset.ids(i)).all() for i in rows)
    assert native.report.warnings == called.report.warnings
