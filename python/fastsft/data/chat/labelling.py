"""From records to labels: the mask policy, the chat template and what goes with them.

Rules: docs/spec/fastchat_labels.md, sections 4 and 5. For users: docs/templates.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastsft import _C
from fastsft.data.chat.template_check import check_prompt, check_template
from fastsft.data.chat.template_choice import OwnTemplate, TemplateWithTools, choose_template
from fastsft.runtime.terminal import one_line

PROBE_LENGTH = 1 << 16
AUTO = "auto"
EACH = "each"  # of --train_turns
EACH_WITH_THOUGHTS = "each_with_thoughts"  # what its "all" is with templates that rewrite only thoughts
CALL_STOP = "call_stop_token"  # of labelling, what ends calls of tools where it is another token
BOUNDARY = "boundary_tokens"  # of labelling, where they are split
DATE = "template_date"  # of labelling, the day that the template was told
LIMIT = "max_record_bytes"  # of labelling; a longer record stops the run
WHY = "mask_policy_reason"  # of labelling, why auto chose its policy


@dataclass(frozen=True)
class LabelSettings:
    """The policy and its options; the defaults are FastChat's.

    mask_policy: "fastchat", "spans", or "auto", which `policy_choice.settle_policy` decides. template: a name
    of `chat_templates()`, one of FastChat's spellings, "model" for the model's own, or None. train_turns:
    "all", "last", or "each": all, in a row each, which "all" becomes with a model's own template that writes
    earlier replies otherwise than the last; where it does so only with thoughts, for records with thoughts.
    role_map: name in the data -> role. on_bad_sample: "error", "skip", "repair" (spans only), or None for the
    policy's default. overlong: "truncate", or "split" as FastChat's data/split_long_conversation.py does.
    boundary_tokens: of a token that has the end of a prompt and the beginning of its reply: "merge", or
    "split" into those that inference has (spans only).
    template_date: the day that a model's own template is told, in ISO form; None: today. why: in words, where
    auto chose the policy. has_tools: False where no record has tools; then a model's template for such is
    left out (`tool_records.settings_for`).
    """

    mask_policy: str = "fastchat"
    template: str | None = None
    chat_template_name: str | None = None
    train_turns: str = "all"
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
        """From DataArguments; what an object of FastChat's own class lacks has its default."""
        names = (
            "mask_policy",
            "template",
            "chat_template_name",
            "train_turns",
            "role_aliases",
            "on_bad_sample",
            "overlong",
            "boundary_tokens",
            "template_date",
        )
        given = {name: getattr(data_args, name) for name in names if hasattr(data_args, name)}
        roles = parse_role_map(getattr(data_args, "role_map", None))
        return cls(role_map=roles, why=getattr(data_args, "mask_policy_reason", ""), **given)

    @property
    def bad_sample_rule(self) -> str:
        return self.on_bad_sample or ("skip" if self.mask_policy == "spans" else "error")


def parse_role_map(text: str | None) -> dict[str, str]:
    """`"narrator=system,alice=user"` as a dictionary. ValueError for an item without a name or a role."""
    roles = {}
    for item in (text or "").split(",") if text else []:
        name, _, role = (part.strip() for part in item.partition("="))
        if not name or not role:
            raise ValueError(f"--role_map: expected name=role,..., got {text!r}")
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
    """The native labeller (_C.Labeller) for a native tokenizer, rows of at most `max_length` ids.

    pad_id: what fills rows up; -1 for none, which only spans takes. tokenizer: the object that `native`
    represents, whose own chat template may be used. self_test: refuse a template whose labels of a probe are
    wrong (data/chat/template_check.py). prompts: with the model's own template the tokens of a record are
    those before its last reply (`ModelTemplate.prompts`). ValueError for options that contradict each other,
    an unknown template, and a tokenizer that the policy cannot use.
    """
    chosen = settings or LabelSettings()
    name, model = choose_template(
        chosen.mask_policy, chosen.template, chosen.chat_template_name, tokenizer, native,
        chosen.template_date, chosen.has_tools,
    )  # fmt: skip

    turns = _turns(chosen.train_turns, model)
    stop = model.stop_token if model else str(_C.find_chat_template(name).stop_token)

    def build(length: int, render: Callable[..., Any] | None) -> _C.Labeller:
        options = _C.LabelOptions(
            mask_policy=chosen.mask_policy,
            chat_template=name,
            chat_template_digest=model.digest if model else "",
            template_fields=model.fields if model else [],
            template_date=model.date if model and model.asks_for_date else "",
            stop_token=stop,
            call_stop_token=model.call_stop_token if model else "",
            max_length=length,
            pad_id=pad_id,
            num_threads=num_threads,
            train_turns=turns,
            role_map=chosen.role_map,
            role_aliases=chosen.role_aliases,
            on_bad_sample=chosen.bad_sample_rule,
            overlong=chosen.overlong,
            boundary_tokens=chosen.boundary_tokens,
        )
        return _C.Labeller(native, options, render)

    parts = [model.default, model.tools] if isinstance(model, TemplateWithTools) else [model]
    for part in parts if self_test else []:
        if part:
            check_prompt(part)
        check_template(
            build(PROBE_LENGTH, part),
            native,
            stop,
            train_turns=turns,
            has_lead=bool(part and part.marks_replies),
            ending=part.reply_ending if part else stop,
        )
    return build(max_length, model.prompts if model and prompts else model)


def _turns(asked: str, model: OwnTemplate | None) -> str:
    if asked != "all" or model is None:
        return asked
    return EACH if model.rewrites else EACH_WITH_THOUGHTS if model.rewrites_thoughts else asked


def describe(labeller: _C.Labeller, why: str = "") -> dict[str, str]:
    """Policy, template and stop token of a labeller, as data_report.json names them. why: auto chose.

    call_stop_token: only where it is another. boundary_tokens: only where they are split. train_turns: only
    where replies have rows of their own. template_date: only where the template asks for one.
    """
    options = labeller.options
    return {
        "mask_policy": options.mask_policy,
        "template": options.chat_template,
        "stop_token": options.stop_token,
        **({CALL_STOP: options.call_stop_token} if options.call_stop_token else {}),
        **({"train_turns": turns} if (turns := options.train_turns) in (EACH, EACH_WITH_THOUGHTS) else {}),
        **({BOUNDARY: options.boundary_tokens} if options.boundary_tokens != "merge" else {}),
        **({DATE: options.template_date} if options.template_date else {}),
        **({WHY: why} if why else {}),
    }


def label_words(labelling: Mapping[str, Any], more: str = "") -> str:
    """One line of what `describe` says, in the words of every page. more: comes before the reason."""
    stop = one_line(labelling["stop_token"])
    if labelling.get("train_turns") == EACH:
        more = f", each reply in a row of its own{more}"
    if labelling.get("train_turns") == EACH_WITH_THOUGHTS:
        more = f", replies of records with thoughts in rows of their own{more}"
    why = f"; {labelling[WHY]}" if labelling.get(WHY) else ""
    policy, template = labelling["mask_policy"], labelling["template"]
    return f"--mask_policy {policy}, template {template}, stop token {stop}{more}{why}"


def labels_of(dataset: object) -> str | None:
    """`label_words` of a data set that fastsft labelled; None where a script made the labels."""
    labelling = getattr(dataset, "labelling", None)
    if not isinstance(labelling, Mapping) or "mask_policy" not in labelling:
        return None
    return label_words(labelling)


def what_counts(labelling: Mapping[str, Any]) -> dict[str, Any]:
    """Without the reason and the limit, which change no label, and the date, with which they may or not."""
    return {name: value for name, value in labelling.items() if name not in (WHY, DATE, LIMIT)}
