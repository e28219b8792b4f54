"""Tokenizers of models whose published templates have ways of their own to end replies and begin thoughts."""

from __future__ import annotations

import json
from pathlib import Path

import byte_level_files
from family_models import TEMPLATES

# Found in any text, but no control tokens, as the files of Qwen3 and GLM have them.
THOUGHTS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
BAR = "\uff5c"
R1 = tuple(f"<{BAR}{name}{BAR}>" for name in (
    "User", "Assistant", "begin▁of▁sentence", "end▁of▁sentence", "tool▁calls▁begin", "tool▁call▁begin",
    "tool▁sep", "tool▁call▁end", "tool▁calls▁end", "tool▁outputs▁begin", "tool▁output▁begin",
    "tool▁output▁end", "tool▁outputs▁end",
))  # fmt: skip
HARMONY = tuple(f"<|{name}|>" for name in ("start", "message", "channel", "end", "return", "call"))
GLM = ("[gMASK]", "<sop>", *(f"<|{name}|>" for name in ("system", "user", "assistant", "observation")))
CHATML = ("<|im_start|>", "<|im_end|>")
# Template: control tokens, named tokens.
MODELS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "deepseek-r1": (R1, {"bos_token": R1[2], "eos_token": R1[3]}),
    "glm-4.5": (GLM, {"eos_token": "<|endoftext|>"}),
    "gpt-oss": (HARMONY, {"eos_token": "<|return|>"}),
    "qwen3.5": (CHATML, {"eos_token": "<|im_end|>"}),
    "qwen3": (CHATML, {"eos_token": "<|im_end|>"}),
}


def write_tokenizer(
    folder: Path,
    template: str,
    controls: tuple[str, ...],
    named: dict[str, str],
    plain: tuple[str, ...] = THOUGHTS,
) -> Path:
    """A byte-level tokenizer with these control tokens, plain added ones, and the chat template's text."""
    content = byte_level_files.small_qwen2()
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    first = len(content["model"]["vocab"])
    content["added_tokens"] = [
        {"id": first + i, "content": text, "special": text not in plain, **flags}
        for i, text in enumerate((*controls, *plain))
    ]
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<|endoftext|>", **named}
    byte_level_files.write_directory(folder, json.dumps(content), kind)
    (folder / "chat_template.jinja").write_text(template, "utf-8")
    return folder


def write_published(folder: Path, name: str) -> Path:
    """Of `MODELS[name]`, with its published template."""
    return write_tokenizer(folder, (TEMPLATES / f"{name}.jinja").read_text("utf-8"), *MODELS[name])
