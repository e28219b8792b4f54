"""Published chat templates, each with what a person reads off it: tests/golden/chat_templates/NOTICE.md."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import published_models
from family_models import TEMPLATES
from template_reference import Published

_BAR = "\uff5c"
_IM = ("<|im_start|>assistant\n",), ("<|im_end|>",), {"eos_token": "<|im_end|>"}
_IM_BOS = (*_IM[:2], {"bos_token": "<|startoftext|>", "eos_token": "<|im_end|>"})
_LLAMA = (
    ("<|start_header_id|>assistant<|end_header_id|>\n\n",), ("<|eot_id|>", "<|eom_id|>"),
    {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"})  # fmt: skip
_MISTRAL = ("[/INST]", "[/TOOL_RESULTS]"), ("</s>",), {"bos_token": "<s>", "eos_token": "</s>"}
_DEEPSEEK = (
    (
        *(f"<{_BAR}{name}{_BAR}>" for name in ("Assistant", "tool▁outputs▁end", "tool▁output▁end")),
        "</function_results>\n\n",
    ),
    (f"<{_BAR}end▁of▁sentence{_BAR}>",),
    {"bos_token": f"<{_BAR}begin▁of▁sentence{_BAR}>", "eos_token": f"<{_BAR}end▁of▁sentence{_BAR}>"},
)
_GEMMA = ("<start_of_turn>model\n",), ("<end_of_turn>",), {"bos_token": "<bos>", "eos_token": "<end_of_turn>"}
_PHI = ("<|assistant|>\n",), ("<|end|>",), {"eos_token": "<|endoftext|>"}
_GRANITE = (
    ("<|start_of_role|>assistant<|end_of_role|>",),
    ("<|end_of_text|>",),
    {"eos_token": "<|end_of_text|>"},
)
_GLM = ("<|assistant|>",), (), {"eos_token": "<|endoftext|>"}
_KIMI = ("<|im_assistant|>assistant<|im_middle|>",), ("<|im_end|>",), {"eos_token": "<|im_end|>"}
_HARMONY = ("<|start|>assistant",), ("<|return|>", "<|call|>", "<|end|>"), {"eos_token": "<|return|>"}
_NEXT = ("<|user|>", "<|observation|>")

PUBLISHED: dict[str, Published] = {
    "bielik-3": Published(*_IM_BOS),
    "cohere2": Published(
        ("<|CHATBOT_TOKEN|><|START_RESPONSE|>",),
        ("<|END_OF_TURN_TOKEN|>",),
        {"bos_token": "<BOS_TOKEN>", "eos_token": "<|END_OF_TURN_TOKEN|>"},
    ),
    "deepseek-r1-distill": Published(*_DEEPSEEK, as_text=True, null=True),
    "deepseek-v3": Published(*_DEEPSEEK, as_text=True, null=True),
    "deepseek-v3.1": Published(*_DEEPSEEK),
    "deepseek-v3.2": Published(*_DEEPSEEK),
    "devstral-2507": Published(*_MISTRAL),
    "gemma-2": Published(*_GEMMA),
    "gemma-3": Published(*_GEMMA),
    "gemma-4": Published(
        ("<|turn>model\n", "<tool_response|>"),
        ("<turn|>", "<|tool_response>"),
        {"bos_token": "<bos>", "eos_token": "<turn|>"},
    ),
    "glm-4.5": Published(*_GLM, next_turn=_NEXT),
    "glm-4.6": Published(*_GLM, next_turn=_NEXT),
    "glm-4.7-flash": Published(*_GLM, next_turn=_NEXT),
    "gpt-oss": Published(*_HARMONY, thoughts="thinking"),
    "gpt-oss-training": Published(*_HARMONY, thoughts="thinking"),
    "granite-3.3": Published(*_GRANITE),
    "granite-4.0": Published(*_GRANITE),
    "hermes-3": Published(*_IM_BOS, tool_template="hermes-3-tool_use"),
    "kimi-k2": Published(*_KIMI),
    "kimi-k2-thinking": Published(*_KIMI),
    "kimi-k2-thinking-ids": Published(*_KIMI),
    "lfm2": Published(*_IM_BOS),
    "lfm2.5": Published(*_IM_BOS, thoughts="thinking"),
    "llama-3": Published(*_LLAMA),
    "llama-3.1": Published(*_LLAMA),
    "llama-3.2": Published(*_LLAMA),
    "mimo-vl": Published(*_IM),
    "minimax-m2": Published(("]~b]ai\n",), ("[e~[",), {"bos_token": "]~!b[", "eos_token": "[e~["}),
    "ministral-3": Published(*_MISTRAL),
    "mistral-nemo": Published(*_MISTRAL),
    "mistral-small-3": Published(*_MISTRAL),
    "mistral-small-3.2": Published(*_MISTRAL),
    "mistral-v0.3": Published(*_MISTRAL),
    "muse-glimmer": Published(
        ("<|start|>assistant",), ("<|eot|>",), {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot|>"}
    ),
    "nemotron-3": Published(*_IM),
    "nemotron-nano-2": Published(
        ("<SPECIAL_11>Assistant\n",), ("<SPECIAL_12>",), {"eos_token": "<SPECIAL_12>"}
    ),
    "phi-3": Published(*_PHI),
    "phi-3.5": Published(*_PHI),
    "phi-4": Published(("<|im_end|><|im_start|>assistant<|im_sep|>", "<|im_end|>"), *_IM[1:]),
    "qwen2.5": Published(*_IM),
    "qwen2.5-training": Published(*_IM),
    "qwen3": Published(*_IM),
    "qwen3-2507": Published(*_IM),
    "qwen3-coder": Published(*_IM),
    "qwen3-training": Published(*_IM),
    "qwen3.5": Published(*_IM),
    "qwen3.6": Published(*_IM),
    "qwen3.8": Published(*_IM),
    "qwq": Published(*_IM),
    "seed-oss": Published(
        ("<seed:bos>assistant\n",), ("<seed:eos>",), {"bos_token": "<seed:bos>", "eos_token": "<seed:eos>"}
    ),
    "smollm3": Published(*_IM),
    "solar-open": Published(
        ("<|begin|>assistant",), ("<|end|>", "<|calls|>"), {"eos_token": "<|end|>"}, thoughts="reasoning"
    ),
    "step-3.5": Published(*_IM_BOS),
}

_FILES = {"gemma-2": "gemma", "phi-3": "phi", "hermes-3": "chatml"}  # of another name
# As its publisher has it: calls have the record's ids, and nothing is appended to a list, which the sandbox
# of transformers forbids. Each text becomes the other.
_WITH_IDS = (
    (
        r"'functions.' \+ tool_call\['function'\]\['name'\] \+ ':' \+ \(tool_call_counter.value \| string\)",
        "tool_call['id']",
    ),
    (r"    \{%- set tool_call_counter.value = .*\n    \{%- set _ = tool_response_queue.*\n", ""),
    (
        r"\{%- if tool_response_queue.ids -%\}(.|\n)*?\{%- endif -%\}",
        "{%- set tool_call_id = message.tool_call_id -%}",
    ),
)
CONTROL = re.compile(
    rf"<\|[^|<>\s]+\|>|<{_BAR}[^{_BAR}<>\s]+{_BAR}>|\[/?[A-Z_]{{3,}}\]|\[gMASK\]|<sop>|</?s>|<bos>|<BOS_TOKEN>|<(?:start|end)_of_turn>"
    r"|<SPECIAL_\d+>|<seed:[be]os>|\]~!?b\[?\]?|\[e~\[|<\|[a-z_]+>|<[a-z_]+\|>"
)


def source_of(name: str) -> str:
    """The template's text."""
    if name == "kimi-k2-thinking-ids":
        source = source_of("kimi-k2-thinking")
        for pattern, text in _WITH_IDS:
            source, count = re.subn(pattern, text, source)
            assert count in (1, 2)
        return source
    own = TEMPLATES / f"{_FILES.get(name, name)}.jinja"
    if own.is_file():
        return own.read_text("utf-8")
    with zipfile.ZipFile(TEMPLATES / "published.zip") as archive:
        return archive.read(f"{name}.jinja").decode()


def write_model(folder: Path, name: str) -> Path:
    """A byte-level tokenizer with the template's control tokens, and its text."""
    of = PUBLISHED[name]
    source = source_of(name)
    tool_source = source_of(of.tool_template) if of.tool_template else ""
    found = [*CONTROL.findall(source + tool_source), *of.ends, *of.named.values(), *(of.next_turn or ())]
    controls = tuple(dict.fromkeys(each for each in found if each != "<|endoftext|>"))
    published_models.write_tokenizer(folder, source, controls, of.named)
    if tool_source:
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text(tool_source, "utf-8")
    return folder
