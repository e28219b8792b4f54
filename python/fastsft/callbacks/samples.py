"""Sample replies (`--sample_prompts`) in log entries: a list of dictionaries with `prompt` and `reply`.

`expected` is the reply in the data, if the prompt is from there.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

SAMPLES = "samples"  # key of the log entries with sample replies
_MOST_PROMPT = 300  # characters of a prompt's end that are shown


def shown_prompt(sample: Mapping[str, str]) -> str:
    """Return the prompt's end, which has the question."""
    text = sample["prompt"]
    return text if len(text) <= _MOST_PROMPT else f"... {text[-_MOST_PROMPT:]}"


def sample_markdown(sample: Mapping[str, str]) -> str:
    """Return a prompt as a quotation and its reply, for trackers that show Markdown."""
    return f"{textwrap.indent(shown_prompt(sample), '> ', lambda line: True)}\n\n{sample['reply']}"
