"""With vicuna_v1.1 the spans policy makes FastChat's recorded ids and labels of every sample that FastChat
accepts (docs/spec/fastchat_labels.md, section 4.2), in both tokenizer modes, truncated too."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastsft import _C
from fastsft.data.chat.labelling import LabelSettings, make_labeller
from fastsft.tokenizer import Tokenizer
from golden_text import (
    CONVERSATIONS,
    GOLDEN,
    MODES,
    conversation_file,
    digest,
    hf_tokenizer,
    human_gpt,
    read_records,
    read_rows,
)

SPECIALS = ("<s>", "</s>", "<unk>")
SPANS = LabelSettings(mask_policy="spans", template="vicuna_v1.1")


def labeller(mode: str, length: int) -> Any:
    native = Tokenizer.from_pretrained(GOLDEN / "tokenizers" / mode).native
    return make_labeller(native, length, -1, SPANS)


@functools.cache
def both(mode: str, length: int) -> tuple[Any, Any]:
    """Our labeller, and transformers' tokenizer."""
    return labeller(mode, length), hf_tokenizer(mode, length)


def ids_and_labels(dataset: Any, row: int) -> tuple[list[int], list[int]]:
    ids = dataset.ids(row).tolist()
    labels = [-100] * len(ids)
    for begin, end in dataset.learned(row):
        labels[begin:end] = ids[begin:end]
    return ids, labels


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("length", [128, 512, 2048])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_data_files(name: str, length: int, mode: str) -> None:
    goldens = read_rows("labels", f"{name}.{mode}.{length}")
    labelled = _C.label_file(str(conversation_file(name)), labeller(mode, length))
    report = labelled.report
    unlabelled = [row for row, golden in enumerate(goldens) if golden["label_tokens"] == 0]
    kept = [golden for golden in goldens if golden["label_tokens"] > 0]
    assert not any(golden["dropped"] for golden in goldens)
    assert (report.num_records, report.num_excluded) == (len(goldens), len(unlabelled))
    assert len(labelled.dataset) == len(kept)
    for row, golden in enumerate(kept):
        ids, labels = ids_and_labels(labelled.dataset, row)
        assert (len(ids), digest(ids, labels)) == (golden["length"], golden["hash"]), row
    if unlabelled:
        assert report.entries["no_reply_left"].actions == {"excluded": len(unlabelled)}


@pytest.mark.variants("512-llama2_nonlegacy")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("length", [64, 512])
def test_edge_cases(length: int, mode: str) -> None:
    goldens = read_rows("labels_full", f"edge_cases.{mode}.{length}")
    compared = 0
    for record, golden in zip(read_records("edge_cases"), goldens, strict=True):
        if "error" in golden or golden["dropped"] or not any(label != -100 for label in golden["labels"]):
            continue
        texts = [message["value"] for message in record["conversations"]]
        if any(not text or any(special in text for special in SPECIALS) for text in texts):
            continue
        labelled = _C.label_text(json.dumps([record]), labeller(mode, length))
        assert ids_and_labels(labelled.dataset, 0) == (golden["ids"], golden["labels"]), record
        compared += 1
    assert compared >= 25


@pytest.mark.parametrize("mode", MODES)
def test_special_texts_in_data_are_spelt_out(mode: str) -> None:
    native = Tokenizer.from_pretrained(GOLDEN / "tokenizers" / mode).native
    record = {"conversations": [{"from": "human", "value": "what is </s> <s><unk>?"},
                                {"from": "gpt", "value": "</s> ends<unk>"}]}  # fmt: skip
    seen = _C.explain_record(json.dumps(record), make_labeller(native, 512, -1, SPANS))
    tokens = [(token, seen.text_bytes[begin:end]) for token, begin, end, _ in seen.tokens]
    assert [token for token, _ in tokens if token < 3] == [1, 2]
    assert tokens[-1] == (2, b"</s>")
    assert b"".join(part for _, part in tokens) == seen.text_bytes
    learned = b"".join(seen.text_bytes[begin:end] for _, begin, end, is_learned in seen.tokens if is_learned)
    assert learned == b" </s> ends<unk></s>"
    assert [finding.remark for finding in seen.findings] == ["embedded_special"]
    # The ids of SentencePiece for the whole, where "</s>" in a text has no meaning.
    plain = native.encode(seen.text_bytes[: -len(b"</s>")], True)
    assert [token for token, _ in tokens][1:-1] == plain


PIECES = (
    "Hello",
    " ",
    "\n",
    "你好",
    "😀",
    "USER:",
    "a b",
    "\t",
    "!",
    "1 ",
    "ER",
    "I am",
    "  ",
    "[INST]",
    "▁x",
)
TEXT = st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join)
CONVERSATION = st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=6)


@pytest.mark.variants("llama2_legacy")
@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=80, deadline=None)
@given(turns=CONVERSATION, length=st.sampled_from([48, 64, 100, 400]))
def test_any_accepted_conversation(mode: str, turns: list[tuple[str, str]], length: int) -> None:
    """Against FastChat itself: docs/spec/fastchat_labels.md, section 8.3, rule 3."""
    from fastchat.train import train

    native, theirs = both(mode, length)
    messages = human_gpt(*(text for turn in turns for text in turn))
    expected = train.preprocess([messages], theirs)
    labels = expected["labels"][0].tolist()
    labelled = _C.label_text(json.dumps([{"conversations": messages}]), native)
    if all(label == -100 for label in labels):
        return  # dropped or cut: FastChat learns nothing of it
    ids, ours = ids_and_labels(labelled.dataset, 0)
    padding = length - len(ids)
    assert ids + [0] * padding == expected["input_ids"][0].tolist()
    assert ours + [-100] * padding == labels
