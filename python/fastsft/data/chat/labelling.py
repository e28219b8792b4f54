"""Make the labeller of a run from its mask policy, chat template and label options.

The rules are in docs/spec/fastchat_labels.md, sections 4 and 5; users read docs/templates.md.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from fastsft import _C
from fastsft.data.chat.model_template import read_day
from fastsft.data.chat.template_check import check_prompt, check_template, check_thoughts
from fastsft.data.chat.template_choice import OwnTemplate, TemplateWithTools, choose_template
from fastsft.runtime.messages import warn_once
from fastsft.runtime.terminal import one_line

PROBE_LENGTH = 1 << 16
AUTO = "auto"
EACH = "each"  # value of --train_turns: each reply in a row of its own
# The internal value for --train_turns all if the template rewrites only the thoughts of earlier replies.
EACH_WITH_THOUGHTS = "each_with_thoughts"
# Key in `describe`: the token that ends tool calls, if this is not the stop token.
CALL_STOP = "call_stop_token"
BOUNDARY = "boundary_tokens"  # key in `describe`, present if boundary tokens are split
SYSTEM = "default_system"  # key in `describe`, present if --default_system is given
DATE = "template_date"  # key in `describe`: the date passed to the template
# Keys in `describe`, present if their values are not these: the flags that choose what is learned.
LEARNED: dict[str, object] = {"learn": "all", "learn_tool_calls": True, "learn_thoughts": "all"}
LIMIT = "max_record_bytes"  # key in labelled rows: the record limit; a longer record stops the run
WHY = "mask_policy_reason"  # key in `describe`: the reason for the choice of --mask_policy auto


@dataclass(frozen=True)
class LabelSettings:
    """The mask policy and its options. The defaults are those of FastChat.

    mask_policy: "fastchat", "spans" or "auto", which `mask_policy.resolve_policy` resolves. template: a
    name in `chat_templates()`, FastChat's spelling of such a name, "model" for the model's own template,
    or None for the policy's default. train_turns: "all" replies of a record in one row, or "each" in a
    row of its own; "last" is the old name of learn="last". If the model's own template rewrites earlier
    replies, "all" becomes "each"; if the template rewrites only thoughts, "all" becomes
    "each_with_thoughts". learn: the replies to learn: "all", "last", "after_last_user", or "marked" (with
    "train": true). learn_tool_calls: False to leave out replies that call tools. learn_thoughts: the
    <think> blocks to learn in these replies: "all", "filled" (with text), or "none". default_system: the
    system text of records without one; None for that of the template. role_map: maps role names in the
    data to roles. on_bad_sample: "error", "skip", "repair" (spans only), or None for the policy's
    default. overlong: "truncate", or "split" as in FastChat's data/split_long_conversation.py.
    boundary_tokens: the rule for a token that spans the end of a prompt and the beginning of its reply:
    "merge" keeps the token, "split" replaces it by the tokens of inference (spans only). template_date:
    the date that a model's own template sees, in ISO form; None for today. why: the reason for the choice
    of "auto". has_tools: False if no record has tools; the model's tool template is then ignored
    (`conversation_labels.detect_tools`).
    """

    mask_policy: str = "fastchat"
    template: str | None = None
    chat_template_name: str | None = None
    train_turns: str = "all"
    learn: str = "all"
    learn_tool_calls: bool = True
    learn_thoughts: str = "all"
    default_system: str | None = None
    role_map: dict[str, str] = field(default_factory=dict)
    role_aliases: bool = False
    on_bad_sample: str | None = None
    overlong: str = "truncate"
    boundary_tokens: str = "merge"
    template_date: str | None = None
    why: str = ""
    has_tools: bool = True

    @classmethod
    def from_arguments(cls, data_args: object) -> LabelSettings:
        """Read the settings from DataArguments.

        Fields that `data_args` lacks, such as an object of FastChat's class, keep their defaults.
        """
        others = ("role_map", "why", "has_tools")
        names = [field.name for field in fields(cls) if field.name not in others]
        given = {name: getattr(data_args, name) for name in names if hasattr(data_args, name)}
        roles = parse_role_map(getattr(data_args, "role_map", None))
        return cls(role_map=roles, why=getattr(data_args, "mask_policy_reason", ""), **given)

    @property
    def learned_replies(self) -> str:
        """The value of `learn`, or "last" by the old flag. ValueError if both flags choose replies."""
        if self.train_turns == "last" and self.learn not in ("all", "last"):
            raise ValueError(
                f"--train_turns last and --learn {self.learn} choose other replies; leave --train_turns out"
            )
        return "last" if self.train_turns == "last" else self.learn

    @property
    def bad_sample_rule(self) -> str:
        return self.on_bad_sample or ("skip" if self.mask_policy == "spans" else "error")


def parse_role_map(text: str | None) -> dict[str, str]:
    """Parse a text such as "narrator=system,alice=user". ValueError if an item has no name or no role."""
    roles = {}
    if not isinstance(text, str | None):
        raise ValueError(f"--role_map: expected name=role,..., such as bot=assistant, got {text!r:.60}")
    for item in (text or "").split(",") if text else []:
        name, _, role = (part.strip() for part in item.partition("="))
        if not name or not role:
            raise ValueError(f"--role_map: expected name=role,..., such as bot=assistant, got {text!r}")
        roles[name] = role
    return roles


def make_labeller(
    native: _C.Tokenizer,
    max_length: int,
    pad_id: int,
    settings: LabelSettings | None = None,
    *,
    tokenizer: object = None,
    num_threads: int = 0,
    self_test: bool = False,
    prompts: bool = False,
) -> _C.Labeller:
    """Return the labeller for a native tokenizer. It makes rows of at most `max_length` ids.

    pad_id: the padding id; -1 for none (spans only). tokenizer: the Python tokenizer of `native`, whose own
    chat template may be used. num_threads: thread count; 0 for the core count, but at most eight. self_test:
    refuse a template whose labels of a sample conversation are wrong (template_check.py). prompts: with the
    model's own template, render only the tokens before a record's last reply (`ModelTemplate.prompts`).
    ValueError if options contradict each other, the template is unknown, or the policy cannot use the
    tokenizer.
    """
    chosen = settings or LabelSettings()
    name, model = choose_template(
        chosen.mask_policy, chosen.template, chosen.chat_template_name, tokenizer, native,
        chosen.template_date, chosen.has_tools,
    )  # fmt: skip

    if chosen.template_date is not None and not (model and model.asks_for_date):
        warn_once(
            f"--template_date {read_day(chosen.template_date)}: no effect, the template asks for no date"
        )
    learn = chosen.learned_replies
    turns = _turns(chosen.train_turns, learn, model)
    stop = model.stop_token if model else str(_C.find_chat_template(name).stop_token)

    own: dict[str, Any] = {} if model is None else {
        "chat_template_digest": model.digest, "template_fields": model.fields,
        "template_date": model.date if model.asks_for_date else "", "call_stop_token": model.call_stop_token,
    }  # fmt: skip

    def build(length: int, render: Callable[..., Any] | None) -> _C.Labeller:
        options = _C.LabelOptions(
            mask_policy=chosen.mask_policy, chat_template=name, stop_token=stop, max_length=length,
            pad_id=pad_id, num_threads=num_threads, train_turns=turns, role_map=chosen.role_map,
            learn=learn, learn_tool_calls=chosen.learn_tool_calls, learn_thoughts=chosen.learn_thoughts,
            role_aliases=chosen.role_aliases, on_bad_sample=chosen.bad_sample_rule, overlong=chosen.overlong,
            boundary_tokens=chosen.boundary_tokens, default_system=chosen.default_system or "", **own,
        )  # fmt: skip
        return _C.Labeller(native, options, render)

    parts = [model.default, model.tools] if isinstance(model, TemplateWithTools) else [model]
    if chosen.learn_thoughts != "all":
        check_thoughts([part for part in parts if part], chosen.learn_thoughts)
    for part in parts if self_test else []:
        if part:
            check_prompt(part)
        has_lead, ending = bool(part and part.marks_replies), part.reply_ending if part else stop
        probed = build(PROBE_LENGTH, part)
        check_template(probed, native, stop, has_lead=has_lead, ending=ending)
    return build(max_length, model.prompts if model and prompts else model)


def _turns(requested: str, learn: str, model: OwnTemplate | None) -> str:
    if requested != "all" or learn == "last" or model is None:
        return "each" if requested == "each" else "all"
    return EACH if model.rewrites else EACH_WITH_THOUGHTS if model.rewrites_thoughts else "all"


def describe(labeller: _C.Labeller, why: str = "") -> dict[str, str]:
    """Return mask policy, template and stop token, with the keys of data_report.json.

    Further keys are present only if their values are not the defaults: call_stop_token, boundary_tokens,
    learn, learn_tool_calls, learn_thoughts, default_system, train_turns (if replies have rows of their
    own) and template_date (if the template uses the date). why: the reason for the choice of
    --mask_policy auto.
    """
    options = labeller.options
    learned = {name: getattr(options, name) for name in LEARNED}
    return {
        "mask_policy": options.mask_policy,
        "template": options.chat_template,
        "stop_token": options.stop_token,
        **({CALL_STOP: options.call_stop_token} if options.call_stop_token else {}),
        **({"train_turns": turns} if (turns := options.train_turns) in (EACH, EACH_WITH_THOUGHTS) else {}),
        **{name: value for name, value in learned.items() if value != LEARNED[name]},
        **({SYSTEM: options.default_system} if options.default_system else {}),
        **({BOUNDARY: options.boundary_tokens} if options.boundary_tokens != "merge" else {}),
        **({DATE: options.template_date} if options.template_date else {}),
        **({WHY: why} if why else {}),
    }


def describe_labels(labelling: Mapping[str, Any], more: str = "") -> str:
    """Return `describe`'s result as one line of text. more: text to insert before the reason."""
    stop = one_line(labelling["stop_token"])
    chosen = [f"--{name} {labelling[name]}" for name in LEARNED if name in labelling]
    if labelling.get(SYSTEM):
        chosen.append(f"--{SYSTEM} {textwrap.shorten(one_line(labelling[SYSTEM]), 60, placeholder=' ...')}")
    more = f"{''.join(f', {flag}' for flag in chosen)}{more}"
    if labelling.get("train_turns") == EACH:
        more = f", each reply in a row of its own{more}"
    if labelling.get("train_turns") == EACH_WITH_THOUGHTS:
        more = f", replies of records with thoughts in rows of their own{more}"
    why = f"; {labelling[WHY]}" if labelling.get(WHY) else ""
    policy, template = labelling["mask_policy"], labelling["template"]
    return f"--mask_policy {policy}, template {template}, stop token {stop}{more}{why}"


def labels_of(dataset: object) -> str | None:
    """Return `describe_labels` for a data set that fastsft labelled; None if a script made the labels."""
    labelling = getattr(dataset, "labelling", None)
    if not isinstance(labelling, Mapping) or "mask_policy" not in labelling:
        return None
    return describe_labels(labelling)


def label_identity(labelling: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of `labelling` that affect labels: all except reason, record limit and date."""
    return {name: value for name, value in labelling.items() if name not in (WHY, DATE, LIMIT)}
