"""Every registered chat template: its self-test, FastChat's texts, and the models' own templates."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from chat_tokenizers import (
    DEEPSEEK_END,
    LEGACY,
    NONLEGACY,
    byte_level_with_specials,
    llama_with_specials,
    named,
)
from family_models import write_family
from fastsft import _C
from fastsft.data.chat import template_check
from fastsft.data.chat.labelling import LabelSettings, make_labeller
from fastsft.data.chat.mask_policy import resolve_policy
from fastsft.data.chat.model_template import ModelTemplate
from fastsft.data.chat.template_choice import choose_template, digest_of
from fastsft.tokenizer import Tokenizer
from golden_text import GOLDEN, human_gpt

NAMES = _C.chat_templates()
# Those that only the model's own text is for.
UNNAMED = {"qwen2.5", "qwen3", "qwen3.5", "llama-3.2", "deepseek-r1", "glm-4.5", "gpt-oss"}
PUBLISHED = sorted({path.stem for path in (GOLDEN / "chat_templates").glob("*.jinja")} - UNNAMED)
TURNS = ("U1", "A1", "U2", "A2")


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_template_is_another_fingerprint(name: str) -> None:
    """The token cache is named by it: a template that was edited must not find its old rows."""
    fingerprint = _C.LabelOptions(mask_policy="spans", chat_template=name, max_length=8).fingerprint
    template = _C.find_chat_template(name)
    parts = ("system", "before_system", "after_system", "before_user", "after_user", "before_assistant",
             "before_stop", "stop_token")  # fmt: skip
    assert all(
        f" {len(text.encode())}:{text} " in fingerprint
        for text in (getattr(template, part) for part in parts)
    )


def explain(native: Any, name: str, messages: list[Any], model: Any = None, **record: Any) -> Any:
    options = _C.LabelOptions(mask_policy="spans", chat_template=name, max_length=4096, on_bad_sample="skip")
    text = json.dumps({"conversations": messages, **record})
    return _C.explain_record(text, _C.Labeller(native, options, model))


def learned_parts(seen: Any) -> list[str]:
    """The text of each learned run of tokens."""
    parts: list[bytes] = []
    was_learned = False
    for _, begin, end, is_learned in seen.tokens:
        if is_learned:
            parts = [*parts[:-1], parts[-1] + seen.text_bytes[begin:end]] if was_learned else [
                *parts, seen.text_bytes[begin:end]]  # fmt: skip
        was_learned = is_learned
    return [part.decode() for part in parts]


def tokenizers_for(name: str) -> list[Any]:
    # U+2581 in a special token is not supported by the non-legacy tokenizer.
    modes = [LEGACY] if "▁" in _C.find_chat_template(name).stop_token else [LEGACY, NONLEGACY]
    return [byte_level_with_specials(), *map(llama_with_specials, modes)]


@pytest.mark.parametrize("name", NAMES)
def test_self_test(name: str) -> None:
    for native in tokenizers_for(name):
        settings = LabelSettings(mask_policy="spans", template=name)
        make_labeller(native, 64, -1, settings, self_test=True)


@pytest.mark.parametrize("name", NAMES)
def test_learned_text_is_each_reply_and_the_stop_token(name: str) -> None:
    template = _C.find_chat_template(name)
    replies = ["Hello.", "你好 😀", "x </s> y"]
    messages = human_gpt(*(text for reply in replies for text in ("Say <unk>.", reply)))
    for native in tokenizers_for(name):
        seen = explain(native, name, messages)
        before = template.before_assistant
        lead = before[len(before) - template.learned_lead :]
        ending = template.before_stop + template.stop_token
        assert learned_parts(seen) == [lead + reply + ending for reply in replies]
        # The tokens cover the text, and no token of data is special.
        assert b"".join(seen.text_bytes[begin:end] for _, begin, end, _ in seen.tokens) == seen.text_bytes
        data = [(begin, end) for begin, end, is_data, _ in seen.segments if is_data]
        for token, begin, end, _ in seen.tokens:
            inside = any(begin < last and first < end for first, last in data)
            assert not (inside and begin < end and native.is_special(token))


@pytest.mark.parametrize("name", NAMES)
def test_aliases_and_record_system(name: str) -> None:
    template = _C.find_chat_template(name)
    for alias in template.aliases:
        assert _C.canonical_template_name(alias) == name
    native = llama_with_specials()
    own = explain(native, name, human_gpt(*TURNS), system="Be brief.")
    plain = explain(native, name, human_gpt(*TURNS))
    assert own.text.count("Be brief.") == 1 and own.text != plain.text
    first = explain(native, name, [{"from": "system", "value": "Be brief."}, *human_gpt(*TURNS)])
    assert first.text == own.text
    if template.system:
        assert plain.text.replace(template.system, "Be brief.") == own.text


# Ours, FastChat's name, what differs on purpose.
FASTCHAT = [
    ("vicuna_v1.1", "vicuna_v1.1", str),
    ("koala", "koala_v1", str),
    ("airoboros", "airoboros_v1", str),
    ("airoboros_v2", "airoboros_v2", str),
    # FastChat ends the text with a stray BOS.
    ("airoboros_v3", "airoboros_v3", lambda text: text.removesuffix("<s>")),
    ("llama-2", "llama-2", lambda text: text.removesuffix("<s>")),
    ("alpaca", "alpaca", str),
    ("mistral", "mistral", str),
    ("qwen", "qwen-7b-chat", str),
    # FastChat writes an empty system turn; Zephyr's own template writes none.
    ("zephyr", "zephyr", lambda text: text.removeprefix("<|system|>\n</s>\n")),
    # FastChat writes BOS as text; ours is an id in front of it.
    ("deepseek-chat", "deepseek-chat", lambda text: text.removeprefix("<\uff5cbegin▁of▁sentence\uff5c>")),
]


@pytest.mark.parametrize(("name", "theirs", "mend"), FASTCHAT, ids=[name for name, *_ in FASTCHAT])
def test_texts_are_those_of_fastchat(name: str, theirs: str, mend: Any) -> None:
    from fastchat.conversation import get_conv_template

    for texts in (TURNS[:2], TURNS, (" u ", " a\n", "x\n", "y ")):
        conversation = get_conv_template(theirs)
        for i, text in enumerate(texts):
            conversation.append_message(conversation.roles[i % 2], text)
        seen = explain(llama_with_specials(), name, human_gpt(*texts))
        assert seen.text == mend(conversation.get_prompt())


# Not in FastChat's wheel: pinned by what the models' authors write.
PINNED = {
    "llama-3": "<|start_header_id|>user<|end_header_id|>\n\nU1<|eot_id|><|start_header_id|>assistant"
    "<|end_header_id|>\n\nA1<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nU2<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nA2<|eot_id|>",
    "gemma": "<start_of_turn>user\nU1<end_of_turn>\n<start_of_turn>model\nA1<end_of_turn>\n"
    "<start_of_turn>user\nU2<end_of_turn>\n<start_of_turn>model\nA2<end_of_turn>\n",
    "phi": "<|user|>\nU1<|end|>\n<|assistant|>\nA1<|end|>\n<|user|>\nU2<|end|>\n<|assistant|>\nA2<|end|>\n",
    "phi-2": "Instruct: U1\nOutput: A1<|endoftext|>\nInstruct: U2\nOutput: A2<|endoftext|>\n",
    "chatml": "<|im_start|>user\nU1<|im_end|>\n<|im_start|>assistant\nA1<|im_end|>\n"
    "<|im_start|>user\nU2<|im_end|>\n<|im_start|>assistant\nA2<|im_end|>\n",
    "alpaca_stanford": "Below is an instruction that describes a task. Write a response that appropriately "
    "completes the request.\n\n### Instruction:\nU1\n\n### Response:\nA1</s>### Instruction:\nU2\n\n"
    "### Response:\nA2</s>",
}


@pytest.mark.parametrize("name", PINNED)
def test_pinned_texts(name: str) -> None:
    assert explain(llama_with_specials(), name, human_gpt(*TURNS)).text == PINNED[name]


def test_every_template_has_its_text_checked() -> None:
    assert {name for name, *_ in FASTCHAT} | set(PINNED) == set(NAMES)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_models_own_template_agrees(name: str) -> None:
    """Text, ids and labels of the Jinja template against the named one of the same family."""
    source = (GOLDEN / "chat_templates" / f"{name}.jinja").read_text("utf-8")
    native = llama_with_specials()
    eos = {"phi": "<|endoftext|>", "deepseek-chat": DEEPSEEK_END}.get(name, "</s>")
    model = ModelTemplate(source, named(native, eos=eos), native)
    family = {"mistral_v0.1": "mistral"}.get(name, name)
    assert model.stop_token == _C.find_chat_template(family).stop_token
    own = explain(native, "model", human_gpt(*TURNS), model)
    ours = explain(native, family, human_gpt(*TURNS))
    text = own.text.removeprefix("<s>")
    if name == "phi":  # ends the whole text with EOS
        text = text.removesuffix("<|endoftext|>")
    if name == "mistral_v0.1":  # the space stands behind the reply instead of in front
        assert text == ours.text.replace("[/INST] ", "[/INST]").replace("</s>", "</s> ")
        assert learned_parts(own) == ["A1</s>", "A2</s>"]
        return
    assert text == ours.text
    assert learned_parts(own) == learned_parts(ours)
    count = len(ours.tokens)
    assert [(t, is_learned) for t, *_, is_learned in own.tokens[:count]] == [
        (t, is_learned) for t, *_, is_learned in ours.tokens
    ]
    model.close()


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_template_is_recognised_only_where_all_probes_agree(name: str) -> None:
    source = (GOLDEN / "chat_templates" / f"{name}.jinja").read_text("utf-8")
    native = llama_with_specials()
    eos = {"deepseek-chat": DEEPSEEK_END}.get(name, "</s>")
    chosen, model = choose_template("spans", None, None, named(native, source, eos=eos), native)
    if name in ("chatml", "qwen", "llama-3", "zephyr", "deepseek-chat"):
        assert (chosen, model) == (name, None)
        assert digest_of(source) in _C.find_chat_template(name).jinja_digests
        chosen, model = choose_template("spans", "model", None, named(native, source, eos=eos), native)
        assert chosen == "model" and model is not None
    else:
        assert chosen == "model" and model is not None


def test_a_broken_template_is_refused_with_the_probe() -> None:
    """The stop token in the next user turn, as FastChat's train_with_template.py labels it."""
    native = llama_with_specials()
    source = (
        "{% for m in messages %}{% if m.role == 'user' %}{{ '</s>' if not loop.first }}USER: {{ m.content }} "
        "{% else %}ASSISTANT: {% generation %}{{ m.content }}{% endgeneration %}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}ASSISTANT: {% else %}</s>{% endif %}"
    )
    settings = LabelSettings(mask_policy="spans", template="model")
    with pytest.raises(ValueError, match=r"\(a\) its last learned id") as caught:
        make_labeller(native, 512, -1, settings, tokenizer=named(native, source), self_test=True)
    assert "▁Paris" in str(caught.value) and "</s>" in str(caught.value)
    endless = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    with pytest.raises(ValueError, match="holds no special token"):
        make_labeller(native, 512, -1, settings, tokenizer=named(native, endless), self_test=True)


def test_a_tokenizer_without_the_stop_token_is_refused() -> None:
    settings = LabelSettings(mask_policy="spans", template="chatml")
    native = _C.load_tokenizer(str(GOLDEN / "tokenizers" / LEGACY))[0]
    with pytest.raises(ValueError, match=r"ends replies with <\|im_end\|>, and this tokenizer has no such"):
        make_labeller(native, 512, -1, settings, self_test=True)


def test_choice() -> None:
    native = llama_with_specials()
    with pytest.raises(ValueError, match=r"--template: airoboros, .*zephyr"):
        choose_template("spans", None, None, named(native), native)
    with pytest.raises(ValueError, match=r"unknown chat template .*llama-2, llama-3"):
        choose_template("spans", "vicuna-7b", None, named(native), native)
    assert choose_template("fastchat", None, None, None, native) == ("vicuna_v1.1", None)
    with pytest.raises(ValueError, match="not defined for the template chatml"):
        make_labeller(native, 64, 0, LabelSettings(template="chatml"))


def test_stop_token_outside_generation_config() -> None:
    assert template_check.warn_of_stop(2, [2], "</s>") is None
    assert "id 7" in str(template_check.warn_of_stop(7, [2], "<|im_end|>"))


ENDED_BY_EOS = [name for name in NAMES if _C.find_chat_template(name).stop_token == "</s>"]
LLAMA_3_BOS = "<|begin_of_text|>"


@pytest.mark.parametrize("adds_bos", [True, False])
@pytest.mark.parametrize("name", ENDED_BY_EOS)
def test_a_template_without_its_stop_token_ends_with_eos(name: str, adds_bos: bool, tmp_path: Path) -> None:
    """As FastChat's and Stanford's trainers and axolotl write it: the text, with the tokenizer's EOS."""
    model = write_family(tmp_path / "model", "llama3")
    if adds_bos:
        add_bos(model / "tokenizer.json")
    tokenizer = Tokenizer.from_pretrained(model, model_max_length=512)
    native = tokenizer.native
    settled = resolve_policy(LabelSettings(mask_policy="spans", template=name), tokenizer)
    assert settled.why == f"{name} with replies that end with <|eot_id|>"
    assert resolve_policy(settled, tokenizer) == settled
    labeller = make_labeller(native, 512, 0, settled, tokenizer=tokenizer)
    tokens = _C.explain_record(json.dumps({"conversations": human_gpt(*TURNS)}), labeller).tokens
    expected = published_text(name).replace("</s>", "<|eot_id|>").replace("<s>", LLAMA_3_BOS)
    text = native.decode([token[0] for token in tokens])
    is_first = adds_bos or _C.find_chat_template(name).bos != _C.BosRule.TOKENIZER
    assert text == LLAMA_3_BOS * is_first + expected
    learned = "".join(native.decode([token[0]]) for token in tokens if token[3])
    assert re.sub(r"\s", "", learned) == "A1<|eot_id|>A2<|eot_id|>"


def add_bos(path: Path) -> None:
    """Let a tokenizer begin texts with BOS, as Llama 3's does."""
    content = json.loads(path.read_text("utf-8"))
    number = next(t["id"] for t in content["added_tokens"] if t["content"] == LLAMA_3_BOS)
    begin = {"SpecialToken": {"id": LLAMA_3_BOS, "type_id": 0}}
    text, pair = ({"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB"))
    content["post_processor"] = {"type": "Sequence", "processors": [
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
        {"type": "TemplateProcessing", "single": [begin, text], "pair": [begin, text, begin, pair],
         "special_tokens": {LLAMA_3_BOS: {"id": LLAMA_3_BOS, "ids": [number], "tokens": [LLAMA_3_BOS]}}},
    ]}  # fmt: skip
    path.write_text(json.dumps(content), "utf-8")


def published_text(name: str) -> str:
    """The text of `TURNS` as FastChat writes it; pinned, if it does not."""
    from fastchat.conversation import get_conv_template

    found = [(theirs, mend) for ours, theirs, mend in FASTCHAT if ours == name]
    if not found:
        return PINNED[name]
    conversation = get_conv_template(found[0][0])
    for i, turn in enumerate(TURNS):
        conversation.append_message(conversation.roles[i % 2], turn)
    return str(found[0][1](conversation.get_prompt()))
