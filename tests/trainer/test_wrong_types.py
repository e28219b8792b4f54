"""A call from Python with a value of a wrong type: the message has expected, got, where and the way out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import fastsft.train as script
from e2e.command_line import TRAINER
from fastsft import _C, CausalLM, DataArguments, EarlyStoppingCallback, Tokenizer, Trainer, TrainingArguments
from fastsft.data.item_rows import append_item
from fastsft.runtime.given_types import explained_call

MODEL, DATA = str(TRAINER / "model_untied"), str(TRAINER / "data" / "first50.json")
TURNS = [[{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]]
CALLS: dict[str, tuple[Callable[[Tokenizer], object], type[Exception], str]] = {
    "a number as output": (
        lambda _: TrainingArguments(output_dir=5), ValueError, "output_dir: expected a text, got 5; ",
    ),
    "steps of no text": (
        lambda _: TrainingArguments("o", profile_steps=None), ValueError, "expected a text, got None; give",
    ),
    "names as a place": (
        lambda _: TrainingArguments({"output_dir": "o"}), ValueError, "expected a text, got {'output_dir'",
    ),
    "a number of trackers": (
        lambda _: TrainingArguments("o", report_to=5), ValueError, "a text or a list of texts, got 5; ",
    ),
    "no model": (lambda _: CausalLM.from_pretrained(None), TypeError, "path, got None; give the directory"),
    "a name of transformers": (
        lambda _: CausalLM.from_pretrained(MODEL, torch_dtype="auto"), TypeError,
        "unexpected keyword argument 'torch_dtype'; it takes model_name_or_path, config, cache_dir",
    ),
    "a method of transformers": (
        lambda _: CausalLM.from_pretrained(MODEL).generate, AttributeError, "no attribute 'generate'; ",
    ),
    "no directory of a tokenizer": (lambda _: Tokenizer.from_pretrained(5), TypeError, "path, got 5; "),
    "a template of transformers": (
        lambda tok: tok.apply_chat_template, AttributeError, "'apply_chat_template'; transformers'",
    ),
    "a text as ids": (lambda tok: tok.decode(["a"]), TypeError, r"as in [1, 2], got ['a']; encode"),
    "a number as a token": (
        lambda tok: tok.convert_tokens_to_ids(5), TypeError, "text of one token, got 5; ",
    ),
    "a file to save into": (
        lambda tok: tok.save_pretrained(DATA), FileExistsError, "got a file; choose another",
    ),
    "no tokenizer": (lambda tok: script.preprocess(TURNS, None), TypeError, "tokenizer, got None; "),
    "no conversations": (
        lambda tok: script.preprocess(None, tok), TypeError, "list of records, got None; ",
    ),
    "the name of a file": (
        lambda tok: script.SupervisedDataset(DATA, tok), TypeError, "raw_data: expected a list of",
    ),
    "a record of other fields": (
        lambda tok: script.SupervisedDataset([{"x": 1}], tok), KeyError,
        "no \"conversations\", got {'x': 1}; expected {\"conversations\": ",
    ),
    "arguments of data in a dictionary": (
        lambda tok: script.make_supervised_data_module(tok, {"data_path": DATA}), TypeError,
        'write DataArguments(data_path="FILE")',
    ),
    "a list of files": (
        lambda tok: script.make_supervised_data_module(tok, DataArguments(data_path=[DATA])),
        TypeError, 'as one text, as in "a.json,b.json"',
    ),
    "the name of a tokenizer": (
        lambda tok: Trainer(model=MODEL, tokenizer=MODEL), TypeError, "Trainer: tokenizer: expected a",
    ),
    "a callback without a list": (
        lambda _: Trainer(model=MODEL, callbacks=EarlyStoppingCallback), TypeError,
        "write callbacks=[...]",
    ),
    "a name of another trainer": (
        lambda _: Trainer(model=MODEL, max_seq_length=5), TypeError,
        "unexpected keyword argument 'max_seq_length'; it takes model, args,",
    ),
    "a mistyped name": (
        lambda _: Trainer(model=MODEL, trian_dataset=[]), TypeError, "the nearest is train_dataset; it",
    ),
    "a shorter name": (
        lambda _: EarlyStoppingCallback(patience=3), TypeError, "it takes early_stopping_patience, ",
    ),
    "a text as a threshold": (
        lambda _: EarlyStoppingCallback(1, "x"), TypeError, "a number, such as 0.001, got 'x'",
    ),
    "a mistyped argument": (
        lambda _: TrainingArguments("o").max_stepz, AttributeError, "'max_stepz'; fastsft args lists all",
    ),
    "a mistyped argument of data": (
        lambda _: DataArguments().data_pth, AttributeError, "'data_pth'; fastsft args lists all",
    ),
    "an id beyond the vocabulary": (
        lambda tok: setattr(tok, "pad_token_id", 32000), ValueError, "an id below 32000, got 32000; convert",
    ),
    "roles in a dictionary": (
        lambda tok: script.make_supervised_data_module(
            tok, DataArguments(data_path=DATA, mask_policy="spans", role_map={"bot": "assistant"})
        ),
        ValueError, "expected name=role,..., such as bot=assistant, got {'bot'",
    ),
    "a batch as a row": (
        lambda _: append_item(_C.TokenDataset(), {"input_ids": [[1, 2]], "labels": [[1, 2]]}, 0), ValueError,
        "one dimension, got the shape [1, 2]; an item is one row",
    ),
    "a number of arguments": (lambda _: script.train(5), TypeError, "got 5; write train(model_name"),
}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_pretrained(MODEL, model_max_length=64)


@pytest.mark.parametrize("name", CALLS)
def test_a_call(name: str, tokenizer: Tokenizer) -> None:
    call, kind, part = CALLS[name]
    with pytest.raises(kind) as raised:
        call(tokenizer)
    assert part in str(raised.value)


def test_a_padding_token_is_set_by_its_id() -> None:
    tokenizer = Tokenizer.from_pretrained(MODEL)
    tokenizer.pad_token_id = tokenizer.eos_token_id
    assert (tokenizer.pad_token, tokenizer.pad_token_id) == ("</s>", 2)
    tokenizer.pad_token_id = None
    assert tokenizer.pad_token is None


def test_an_error_of_a_property_is_kept() -> None:
    class Other(CausalLM):
        @property
        def broken(self) -> object:
            return self.config.no_such_key

    with pytest.raises(AttributeError, match=r"config\.json has no key 'no_such_key'"):
        _ = Other.from_pretrained(MODEL).broken


def test_a_type_error_of_the_function_itself_is_kept() -> None:
    @explained_call
    def add(first: object, second: object) -> object:
        return first + second  # type: ignore[operator]

    with pytest.raises(TypeError, match=r"^unsupported operand"):
        add(1, "a")
    with pytest.raises(TypeError, match=r"missing 1 required .*'second'; it takes first, second$"):
        add(1)  # type: ignore[call-arg]
