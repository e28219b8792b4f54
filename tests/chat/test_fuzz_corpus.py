"""What the fuzz programs began with and what they found, once more without them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from chat_tokenizers import llama_with_specials
from fastsft import _C

CORPUS = Path(__file__).parents[1] / "fuzz" / "corpus"


def files(name: str) -> Any:
    found = sorted((CORPUS / name).iterdir())
    assert found
    return pytest.mark.parametrize("path", found, ids=[path.name for path in found])


def labeller(template: str, **settings: Any) -> Any:
    options = _C.LabelOptions(
        mask_policy="spans", chat_template=template, on_bad_sample="skip", **{"max_length": 4096, **settings}
    )
    return _C.Labeller(llama_with_specials(), options, None)


def label(read: Any, **settings: Any) -> Any:
    try:
        labelled = _C.label_inputs([_C.DataInput("data", read)], labeller("vicuna_v1.1", **settings))
    except ValueError as error:
        return str(error).split(" [")[0]  # the excerpt ends with the block
    return labelled.report.to_json(), labelled.dataset.checksum()


@files("dataset_json")
def test_data_in_small_blocks_is_data_in_one(path: Path) -> None:
    small, whole = io.BytesIO(path.read_bytes()), io.BytesIO(path.read_bytes())
    assert label(lambda size: small.read(min(size, 7))) == label(whole.read)


@files("labels")
@pytest.mark.parametrize("learn", ["all", "last", "after_last_user", "marked"])
def test_labels_of_blocks_and_threads_are_the_same(learn: str, path: Path) -> None:
    split, each = {"overlong": "split", "max_length": 60}, {"train_turns": "each", "learn_thoughts": "none"}
    for more in ({}, split, each):
        small, whole = io.BytesIO(path.read_bytes()), io.BytesIO(path.read_bytes())
        first = label(lambda size, text=small: text.read(min(size, 7)), learn=learn, num_threads=3, **more)
        assert first == label(whole.read, learn=learn, num_threads=1, **more)


@files("template_rendering")
def test_tokens_of_data_are_never_special(path: Path) -> None:
    native = llama_with_specials()
    for template in _C.chat_templates():
        chosen = labeller(template)
        seen = _C.explain_record(path.read_text("utf-8"), chosen)
        assert b"".join(seen.text_bytes[a:b] for _, a, b, _ in seen.tokens) in (seen.text_bytes, b"")
        stop = native.find_token(_C.find_chat_template(template).stop_token)
        runs = sum(
            token == stop and learned and (i + 1 == len(seen.tokens) or not seen.tokens[i + 1][3])
            for i, (token, _, _, learned) in enumerate(seen.tokens)
        )
        assert runs == sum(token == stop for token, *_, learned in seen.tokens if learned)


@files("sentencepiece_model")
@pytest.mark.parametrize("legacy", [False, True])
def test_tokens_of_small_models_cover_their_texts(legacy: bool, path: Path) -> None:
    settings = _C.LlamaSettings()
    settings.legacy, settings.add_bos = legacy, False
    settings.added, settings.special_ids = [_C.AddedToken(1, "</s>")], {1}
    if path.name == "joined.model" and not legacy:
        with pytest.raises(ValueError, match="joins words"):
            _C.make_llama_tokenizer(str(path), settings)
        return
    tokenizer = _C.make_llama_tokenizer(str(path), settings)
    text = "Hello \u2581 aaaa</s>  caf\u00e9 \u4e2d\u6587\n".encode()
    ids, offsets = tokenizer.encode_with_offsets(text)
    assert b"".join(text[begin:end] for begin, end in offsets) == text
    assert all(0 <= each < tokenizer.vocab_size for each in ids) and ids.count(1) == 1
