"""Templates with `{% generation %}` blocks: our labels next to the mask of transformers, token by token."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerFast

import published_models
from family_models import TEMPLATES
from fastsft import _C
from fastsft.data.chat.labelling import LabelSettings, make_labeller
from fastsft.tokenizer import Tokenizer
from published_templates import CONTROL, PUBLISHED
from template_conversations import Message
from template_reference import Published, Reference, without_lost_turns

ARCHIVE = TEMPLATES / "generation_blocks.zip"
LENGTH = 1 << 14
# TRL's file, without `_training`: the published template whose tokens and fields it has.
_LIKE = {
    "cohere": "cohere2", "deepseek_r1_distill": "deepseek-r1-distill", "deepseekv3": "deepseek-v3.1",
    "diffusion_gemma": "gemma-4", "gemma": "gemma-2", "gemma3": "gemma-3", "glm4moe": "glm-4.5",
    "gptoss": "gpt-oss", "lfm2_v2": "lfm2", "llama3": "llama-3", "muse_glimmer": "muse-glimmer",
    "phi3": "phi-3", "phi3_5": "phi-3.5",
}  # fmt: skip
_FAMILIES = {
    "qwen": "qwen2.5", "nemotron_3": "nemotron-3", "lfm2_2_5": "lfm2.5", "idefics": "phi-3",
    "smolvlm": "phi-3", "llava": "mistral-nemo",
}  # fmt: skip
# They write the texts of lists of parts alone, and here a content is a text: fastsft refuses them.
OF_PICTURES = ("idefics3_training", "llava_next_training", "smolvlm_training")


def names() -> list[str]:
    with zipfile.ZipFile(ARCHIVE) as archive:
        return [Path(name).stem for name in archive.namelist()]


def source_of(name: str) -> str:
    """The template's text."""
    with zipfile.ZipFile(ARCHIVE) as archive:
        return archive.read(f"{name}.jinja").decode()


def published(name: str) -> Published:
    base = name.removesuffix("_training")
    family = next((like for start, like in _FAMILIES.items() if base.startswith(start)), base)
    return PUBLISHED[_LIKE.get(base, family)]


def write_model(folder: Path, name: str, of: Published) -> Path:
    """A byte-level tokenizer with the template and its control tokens."""
    source = source_of(name)
    found = [*CONTROL.findall(source), *of.ends, *of.named.values(), *(of.next_turn or ())]
    controls = tuple(dict.fromkeys(each for each in found if each != "<|endoftext|>"))
    return published_models.write_tokenizer(folder, source, controls, of.named)


class Row(NamedTuple):
    ids: list[int]
    learned: list[bool]


class Marked(NamedTuple):
    """A conversation as transformers marks it.

    beyond, prompt: the marked tokens after the end of a reply, and of the prompt for it, which `row` has not.
    open: True if the last reply has no token that ends it. last: where the last reply begins."""

    row: Row
    beyond: int
    prompt: int
    open: bool
    last: int


class Masks:
    """The mask of transformers, without the prompt and without what follows the end of a reply."""

    def __init__(self, model: Path, of: Published) -> None:
        self._of = of
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(model)
        self.reference = Reference(model, of)
        self.ends = {self.tokenizer.convert_tokens_to_ids(end) for end in (*of.ends, *(of.next_turn or ()))}
        self.ends_by_next = bool(of.next_turn)

    def of(self, messages: list[Message], tools: Any) -> Marked | str:
        """The mask of the replies; the error's text if the template refuses the conversation."""
        chat = [self.reference.message(message) for message in messages]
        replies = [i for i, message in enumerate(chat) if message["role"] == "assistant"]
        try:
            made = self._render(chat, tools, return_assistant_tokens_mask=True, return_dict=True)
            text = self._render(chat, tools, tokenize=False)
            texts = [
                self._render(chat[:i], tools, tokenize=False, add_generation_prompt=True) for i in replies
            ]
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            return str(error) or type(error).__name__
        ids, mask = list(made["input_ids"]), [bool(bit) for bit in made["assistant_masks"]]
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        offsets = encoded["offset_mapping"]
        for place in range(1, len(ids)):  # of a character of several tokens it may mark the first alone
            mask[place] = mask[place] or (mask[place - 1] and offsets[place] == offsets[place - 1])
        prompts = [sum(end <= _common(text, each) for _, end in offsets) for each in texts]
        learned, beyond, prompt = list(mask), 0, 0
        for begin, end in _runs(mask):
            stop = max((i + 1 for i in range(begin, end) if ids[i] in self.ends), default=0)
            known = max((each for each in prompts if begin < each <= end), default=begin)
            for place in (*range(begin, known), *range(stop or end, end)):
                learned[place] = False
            beyond, prompt = beyond + end - (stop or end), prompt + known - begin
        return Marked(Row(ids, learned), beyond, prompt, False, prompts[-1])

    def _render(self, chat: list[Message], tools: Any, **more: Any) -> Any:
        return self.tokenizer.apply_chat_template(chat, tools=tools, **more)


def _common(text: str, prompt: str) -> int:
    """How many characters of the prompt a text has, without a part of a tag."""
    pairs = zip(text, prompt, strict=False)
    kept = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(text), len(prompt)))
    cut = [tag.start() for tag in re.finditer(r"<[^<>\s]*>", prompt) if tag.start() < kept < tag.end()]
    return cut[0] if cut else kept


def _runs(mask: list[bool]) -> list[tuple[int, int]]:
    text = "".join("1" if bit else "0" for bit in mask)
    return [match.span() for match in re.finditer("1+", text)]


class MaskJudge:
    """A template with blocks: what is learned here, and by the mask of transformers."""

    def __init__(self, folder: Path, name: str) -> None:
        of = published(name)
        model = write_model(folder, name, of)
        tokenizer = Tokenizer.from_pretrained(model, model_max_length=LENGTH)
        settings = LabelSettings(mask_policy="spans", template="model")
        self._labeller = make_labeller(
            tokenizer.native, LENGTH, 0, settings, tokenizer=tokenizer, self_test=True
        )
        self._masks = Masks(model, of)

    def rows(self, messages: list[Message], tools: Any) -> tuple[list[Row], set[str]]:
        """Our rows, and the names of what was noted."""
        record = {"id": "r", "messages": messages, **({"tools": tools} if tools else {})}
        seen = _C.label_text(json.dumps([record]), self._labeller)
        rows = []
        for number in range(len(seen.dataset)):
            learned = [False] * len(seen.dataset.ids(number))
            for begin, end in seen.dataset.learned(number):
                learned[begin:end] = [True] * (end - begin)
            rows.append(Row(seen.dataset.ids(number).tolist(), learned))
        return rows, set(seen.report.entries)

    def judge(self, messages: list[Message], tools: Any) -> str:
        """equal, and what transformers marks besides (+ end, + prompt); refused, left out, lost, differs."""
        rows, remarks = self.rows(messages, tools)
        lost = self._masks.reference.loses_calls(messages, tools)
        if lost and "tool_call" in remarks:
            return self._without_calls(rows, messages, tools)
        marked = self._masks.of(messages, tools)
        if isinstance(marked, str):
            return "refused" if not rows and "template_refuses" in remarks else f"differs: refused {marked}"
        found = list(self._of_each(messages, tools))
        if "template_refuses" in remarks:
            return self._without_refused(rows, found, messages)
        found = [marked] if len(rows) == 1 else found
        if len(found) != len(rows) or not all(map(self._is_same, rows, found)):
            return f"differs: {remarks}"
        beyond = " + end" if any(each.beyond for each in found) else ""
        return f"equal{beyond}{' + prompt' if any(each.prompt for each in found) else ''}"

    def _without_refused(self, rows: list[Row], found: list[Marked], messages: list[Message]) -> str:
        """A reply whose block lacks its end, or its call, is left out; the others are learned."""
        replies = [message for message in messages if message["role"] == "assistant"]
        wanting = [each.open or not self._has_calls(each, m) for each, m in zip(found, replies, strict=True)]
        left = iter(found)
        is_part = all(any(self._is_same(row, each) for each in left) for row in rows)
        return (
            "left out"
            if is_part and len(rows) < len(found) and (rows or any(wanting))
            else "differs: refused"
        )

    def _has_calls(self, marked: Marked, reply: Message) -> bool:
        text = self._masks.tokenizer.decode([i for i, bit in zip(*marked.row, strict=True) if bit])
        return all(call["function"]["name"] in text for call in reply.get("tool_calls", ()))

    def _without_calls(self, rows: list[Row], messages: list[Message], tools: Any) -> str:
        """Turns of a call alone are left out, and a text next to a call is not learned."""
        kept = without_lost_turns(messages)
        texts = {message["content"] for message in messages if message.get("tool_calls")}
        if not any(m["role"] == "assistant" and m["content"] not in texts for m in kept):
            return "lost" if not rows else "differs: a lost call is learned"
        marked = self._masks.of(kept, tools)
        if isinstance(marked, str):
            return "differs: refused" if rows else "refused"
        if len(rows) != 1:
            return "differs: rows"
        learned, decode = list(marked.row.learned), self._masks.tokenizer.decode
        for begin, end in _runs(learned):
            if any(text and text in decode(marked.row.ids[begin:end]) for text in texts):
                learned[begin:end] = [False] * (end - begin)
        return "lost" if rows[0] == Row(marked.row.ids, learned) else "differs: lost"

    def _of_each(self, messages: list[Message], tools: Any) -> Iterator[Marked]:
        """What transformers marks of each reply, in the conversation up to it."""
        for end, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            marked = self._masks.of(messages[: end + 1], tools)
            assert not isinstance(marked, str)
            ids, learned = marked.row
            last = [bit and place >= marked.last for place, bit in enumerate(learned)]
            without = not any(ids[place] in self._masks.ends for place, bit in enumerate(last) if bit)
            yield marked._replace(row=Row(ids, last), open=without and not self._masks.ends_by_next)

    def _is_same(self, ours: Row, theirs: Marked) -> bool:
        """True if ids and labels are equal, or only the context differs, which is that of the prompt."""
        if ours == theirs.row:
            return True
        begin, end = _runs(theirs.row.learned)[-1]
        mine = _runs(ours.learned)
        reply = ours.ids[mine[0][0] :] if mine else []
        run = theirs.row.ids[begin:]
        size = len(reply)
        in_prompt = self._masks.tokenizer.decode(run[: len(run) - size])
        before = self._masks.tokenizer.decode(ours.ids[: mine[0][0]]) if mine else ""
        is_last = len(mine) == 1 and mine[0][1] - mine[0][0] == size - (len(theirs.row.ids) - end)
        return is_last and run[len(run) - size :] == reply and before.endswith(in_prompt)
