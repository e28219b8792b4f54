"""Each choice of replies on 200 drawn conversations, against transformers' texts; pairs of flags."""

from __future__ import annotations

import copy
import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fastsft import _C
from fastsft.data.chat.labelling import LabelSettings, make_labeller
from fastsft.tokenizer import Tokenizer
from fastsft.tokenizer.transformers_tokenizer import find_native_tokenizer
from golden_text import GOLDEN, MODES
from published_models import write_published
from reply_choices import CHOICES, replies_of
from template_conversations import TOOLS, Message, call, gives, says, system, user
from template_table import Judge

NATIVE = _C.load_tokenizer(str(GOLDEN / "tokenizers" / MODES[0]))[0]
COUNT = 200
Drawn = tuple[list[Message], Any]


def drawn(seed: str) -> Iterator[Drawn]:
    """Yield conversations without end: one to five turns, with system texts, thoughts and calls."""
    dice = random.Random(seed)
    while True:
        names = itertools.count()
        has_tools, has_thoughts = dice.random() < 0.5, dice.random() < 0.4
        messages = [system(f"Rule {next(names)}.")] if dice.random() < 0.4 else []
        for _ in range(dice.randint(1, 5)):
            messages.append(user(f"Ask {next(names)}?"))
            for number in range(dice.randint(0, 2) if has_tools else 0):
                asked = call("weather", {"city": f"City {next(names)}"}, number + 1)
                messages += [
                    says("", _thought(dice, names, has_thoughts), [asked]),
                    gives(f"result {next(names)}", number=number + 1),
                ]
            messages.append(says(f"Reply {next(names)}.", _thought(dice, names, has_thoughts)))
        yield messages, TOOLS if has_tools else None


def _thought(dice: random.Random, names: Iterator[int], is_wanted: bool) -> str:
    return f"Thought {next(names)}." if is_wanted and dice.random() < 0.6 else ""


@pytest.mark.covering
@pytest.mark.parametrize("name", ["qwen3", "llama-3.1", "qwen2.5", "glm-4.6"])
@pytest.mark.parametrize("choice", CHOICES)
def test_two_hundred_conversations(choice: str, name: str, tmp_path: Path) -> None:
    choose, settings = CHOICES[choice]
    judge, compared, chosen_replies = Judge(tmp_path, name, **settings), 0, 0
    given, kept = [], []
    for messages, tools in drawn(f"{choice} {name}"):
        expected = judge.reference.replies(messages, tools)
        if any(reply.refused or reply.lost for reply in expected):
            continue
        marked = copy.deepcopy(messages)
        chosen = choose(marked)
        replies = replies_of(messages)
        kept.append([expected[replies.index(i)] for i in chosen])
        given.append({"id": str(compared), "messages": marked, **({"tools": tools} if tools else {})})
        compared, chosen_replies = compared + 1, chosen_replies + len(chosen)
        if compared == COUNT:
            break
    seen = judge.label(given)
    found = [
        (ids[:begin], ids[begin:end])
        for i in range(len(seen.dataset))
        for ids in [seen.dataset.ids(i).tolist()]
        for begin, end in seen.dataset.learned(i)
    ]
    assert found == [(list(reply.context), list(reply.learned)) for replies in kept for reply in replies]
    assert compared == COUNT and chosen_replies > COUNT / 2
    unlearned = sum(not replies for replies in kept)
    assert unlearned == (seen.report.entries["not_trained"].count if unlearned else 0)


# Flag: its other values.
FLAGS: dict[str, tuple[Any, ...]] = {
    "train_turns": ("last", "each"),
    "learn": ("last", "after_last_user", "marked"),
    "learn_tool_calls": (False,),
    "learn_thoughts": ("filled", "none"),
    "overlong": ("split",),
    "boundary_tokens": ("split",),
    "on_bad_sample": ("error", "repair"),
}
VALUES = [(name, value) for name, values in FLAGS.items() for value in values]
PAIRS = [(one, other) for one, other in itertools.combinations(VALUES, 2) if one[0] != other[0]]
# Pairs that choose other replies, or count from the end of a conversation that is cut in pieces.
REFUSED = {
    (("train_turns", "last"), ("learn", "after_last_user")): "choose other replies",
    (("train_turns", "last"), ("learn", "marked")): "choose other replies",
    (("train_turns", "last"), ("overlong", "split")): "only the last piece",
    (("learn", "last"), ("overlong", "split")): "only the last piece",
    (("learn", "after_last_user"), ("overlong", "split")): "only the last piece",
}
TAKING = ("learn", "learn_tool_calls", "learn_thoughts")


def test_all_pairs_of_flags(tmp_path: Path) -> None:
    """A pair is refused with both names; flags that take replies away learn what both alone learn."""
    model = write_published(tmp_path / "model", "qwen3")
    tokenizer = Tokenizer.from_pretrained(model, model_max_length=1024)
    native = find_native_tokenizer(tokenizer)
    assert native is not None
    dice = drawn("pairs")
    conversations = [next(dice) for _ in range(20)]
    records = []
    for messages, tools in conversations:
        marked = copy.deepcopy(messages)
        CHOICES["marked"][0](marked)
        records.append({"messages": marked, **({"tools": tools} if tools else {})})

    def learned(**given: Any) -> set[tuple[tuple[int, ...], int]]:
        """The learned places, each with the ids up to the reply's end."""
        settings = LabelSettings(mask_policy="spans", template="model", **given)
        labeller = make_labeller(native, 1024, 0, settings, tokenizer=tokenizer)
        seen = _C.label_text(json.dumps(records), labeller).dataset
        return {
            (tuple(seen.ids(i).tolist()[:end]), place)
            for i in range(len(seen))
            for begin, end in seen.learned(i)
            for place in range(begin, end)
        }

    alone = {value: learned(**dict([value])) for value in VALUES if value[0] in TAKING}
    assert len(set(map(len, alone.values()))) > 3
    for one, other in PAIRS:
        if (one, other) in REFUSED:
            with pytest.raises(ValueError, match=rf"--{other[0]} {other[1]}.*{REFUSED[one, other]}"):
                learned(**dict([one, other]))
        elif one[0] in TAKING and other[0] in TAKING:
            assert learned(**dict([one, other])) == alone[one] & alone[other], (one, other)
        else:
            make_labeller(
                native, 1024, 0, LabelSettings(mask_policy="spans", template="model", **dict([one, other])),
                tokenizer=tokenizer,
            )  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [pair for pair in VALUES if pair[0] in (*TAKING, "train_turns")])
def test_fastchats_policy_refuses_each_choice(name: str, value: Any) -> None:
    settings = LabelSettings(mask_policy="fastchat", template="vicuna_v1.1")
    shown = "learn" if value == "last" else name  # the new name of --train_turns last
    with pytest.raises(ValueError, match=f"--{shown} {value} needs --mask_policy spans"):
        make_labeller(NATIVE, 512, 0, replace(settings, **{name: value}))
