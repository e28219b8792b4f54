"""A token that holds the end of a prompt and the beginning of its reply: counted, split where asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from fastsft import _C
from fastsft.data.chat.labelling import LabelSettings, describe, make_labeller
from fastsft.data.chat.mask_policy import resolve_policy
from fastsft.tokenizer import Tokenizer
from fastsft.tokenizer.transformers_tokenizer import find_native_tokenizer
from published_models import CHATML, write_tokenizer

LENGTH = 2048
SOURCE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}{{ gap }}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{{ gap }}{% endif %}"
)
# What prompts end with, and replies that join it: line breaks, blanks, letters.
JOINED = {"\n": ("\nHo", "\n\n\nHo", "\n  Ho"), " ": (" Ho", "\nHo"), "e": ("r", "n is")}


class Seen:
    """Records as a file of them is labelled."""

    def __init__(self, folder: Path, gap: str, *records: Any, **settings: Any) -> None:
        source = "{% set gap = " + json.dumps(gap) + " %}" + SOURCE
        self.model = write_tokenizer(folder / "m", source, CHATML, {"eos_token": "<|im_end|>"})
        tokenizer = Tokenizer.from_pretrained(self.model, model_max_length=LENGTH)
        native = find_native_tokenizer(tokenizer)
        assert native is not None
        chosen = LabelSettings(mask_policy="spans", template="model", **settings)
        using = make_labeller(native, LENGTH, 0, chosen, tokenizer=tokenizer, self_test=True)
        seen = _C.label_text(json.dumps(list(records)), using)
        self.report, self.labelling = seen.report, describe(using)
        self.rows = [
            (seen.dataset.ids(i).tolist(), seen.dataset.learned(i)) for i in range(len(seen.dataset))
        ]


def chat(*texts: str) -> dict[str, Any]:
    return {
        "messages": [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    }


def ids_of(model: Path, text: str) -> list[int]:
    ids: list[int] = PreTrainedTokenizerFast.from_pretrained(model)(text, add_special_tokens=False)[
        "input_ids"
    ]
    return ids


@pytest.mark.covering
@pytest.mark.parametrize(
    ("gap", "reply"), [(gap, reply) for gap, replies in JOINED.items() for reply in replies]
)
def test_split_rows_are_the_ids_of_the_prompt_and_of_the_reply(gap: str, reply: str, tmp_path: Path) -> None:
    """By transformers: both encoded alone, as a server reads the one and a model writes the other."""
    record = chat("Hi", reply)
    merged, split = (
        Seen(tmp_path / "a", gap, record),
        Seen(tmp_path / "b", gap, record, boundary_tokens="split"),
    )
    prompt, end = f"<|im_start|>user{gap}Hi<|im_end|>\n<|im_start|>assistant{gap}", f"{reply}<|im_end|>"
    front, own = ids_of(split.model, prompt), ids_of(split.model, end)
    rest = ids_of(split.model, "\n")
    assert split.rows == [([*front, *own, *rest], [(len(front), len(front) + len(own))])]
    whole = ids_of(merged.model, f"{prompt}{end}\n")
    assert merged.rows[0][0] == whole
    is_joined = whole != split.rows[0][0]
    assert (merged.report.entries.get("boundary_tokens") is not None) == is_joined
    assert ("boundary_tokens" in split.report.entries) == is_joined


def test_rows_are_counted_with_the_first_token(tmp_path: Path) -> None:
    seen = Seen(tmp_path, "\n", chat("Hi", "\nHo"), chat("Hi", "Ho"), chat("He", "\n\nHa", "Hu", "\nHm"))
    told = seen.report.entries["boundary_tokens"]
    assert told.count == 2 and told.actions == {"noted": 2}
    assert '"\\n\\n", which inference never makes; --boundary_tokens split' in told.reason


def test_every_reply_of_a_row_is_split(tmp_path: Path) -> None:
    seen = Seen(tmp_path, "\n", chat("Hi", "\nHo", "He", "\nHa"), boundary_tokens="split")
    ((ids, spans),) = seen.rows
    assert [ids[begin:end] for begin, end in spans] == [
        ids_of(seen.model, f"\n{text}<|im_end|>") for text in ("Ho", "Ha")
    ]
    assert seen.labelling["boundary_tokens"] == "split"
    header = ids_of(seen.model, "assistant\n")
    for begin, _ in spans:
        assert ids[begin - len(header) : begin] == header


def test_rows_without_such_a_token_are_the_same(tmp_path: Path) -> None:
    records = [chat("Hi", "Ho", "He", " Ha"), chat("Hi", "é你😀")]
    merged = Seen(tmp_path / "a", "\n", *records)
    split = Seen(tmp_path / "b", "\n", *records, boundary_tokens="split")
    assert merged.rows == split.rows and "boundary_tokens" not in merged.report.entries
    assert "boundary_tokens" not in merged.labelling


def test_the_flag_chooses_spans_and_is_refused_with_fastchats_labels(tmp_path: Path) -> None:
    model = write_tokenizer(tmp_path / "m", SOURCE, CHATML, {"eos_token": "<|im_end|>"})
    tokenizer = Tokenizer.from_pretrained(model, model_max_length=LENGTH)
    settled = resolve_policy(LabelSettings(mask_policy="auto", boundary_tokens="split"), tokenizer)
    assert settled.mask_policy == "spans" and settled.why.startswith("--boundary_tokens split")
    native = find_native_tokenizer(tokenizer)
    assert native is not None
    with pytest.raises(ValueError, match="--boundary_tokens split needs --mask_policy spans"):
        make_labeller(native, LENGTH, 0, LabelSettings(boundary_tokens="split"), tokenizer=tokenizer)
