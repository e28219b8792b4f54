"""Named templates that LLaMA-Factory has under the same name, and writes otherwise."""

from __future__ import annotations

# The difference, by the name that was given. Those of gemma, phi and chatml write the same text.
_DIFFERENCES = {
    "qwen": 'a record without a system text gets "You are Qwen, created by Alibaba Cloud. You are a helpful '
    'assistant." there, and "You are a helpful assistant." here',
    "mistral": "[INST] Hi[/INST] Ho there, [INST] Hi [/INST] Ho here, and a blank line follows a system "
    "text, here a line break",
    "zephyr": 'there no line break follows </s>, and a record without a system text gets "You are Zephyr, a '
    'helpful assistant."',
    "alpaca": "there texts begin on a line of their own, after ### Instruction: and ### Response:, as they "
    "do here in alpaca_stanford",
    "vicuna": "there no space is behind a system text and in front of replies; here it is FastChat's",
}


def namesake_line(name: str) -> str:
    """A line about LLaMA-Factory's template of this name; "" where it has none, or the same."""
    if name not in _DIFFERENCES:
        return ""
    return (
        f"--template {name}: LLaMA-Factory's template of this name is another: {_DIFFERENCES[name]}; "
        "--template model is the model's own"
    )
