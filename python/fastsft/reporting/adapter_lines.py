"""Lines about the adapters of a run, and about opening what it saved."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from fastsft.reporting.reported_model import ReportedAdapters, ReportedModel

_UNITS = ((1e9, "B"), (1e6, "M"), (1e3, "k"))


def trained_line(model: ReportedModel) -> str:
    """`LoRA r 8, alpha 16 on q_proj, v_proj: 1.2 M of 6.7 B parameters (0.018%)`; else `all ...`."""
    if model.adapter_facts() is None:
        return f"all {model.num_parameters():,} parameters"
    adapted = cast("ReportedAdapters", model)  # only adapted models have facts
    settings, targets = adapted.settings, adapted.targets
    ranks = sorted({each.rank for each in targets.adapters})
    rank = f"{ranks[0]}" if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]}"
    trained, total = adapted.num_trained_parameters(), model.num_parameters()
    words = [f"r {rank}", f"alpha {settings.lora_alpha:g}{' by sqrt(r)' if settings.use_rslora else ''}"]
    if settings.lora_dropout:
        words.append(f"dropout {settings.lora_dropout:g}")
    modules = ", ".join(targets.modules)
    more = f" and {len(targets.trained)} tensors of the model" if targets.trained else ""
    counts = f"{count_text(trained)} of {count_text(total)} parameters ({100 * trained / total:.2g}%)"
    base = ", base model in 4 bits (NF4)" if adapted.four_bits else ""
    return f"LoRA {', '.join(words)} on {modules}{more}: {counts}{base}"


def count_text(count: int) -> str:
    """`6.7 B`, `1.2 M`, `3 k`: two digits, or those of a whole number."""
    for size, unit in _UNITS:
        if count >= size:
            return f"{count / size:.3g} {unit}" if count >= 100 * size else f"{count / size:.2g} {unit}"
    return str(count)


def how_to_open_adapter(directory: Path) -> Iterator[str]:
    """Lines of Python, and the command that merges."""
    yield "from peft import AutoPeftModelForCausalLM"
    yield f'model = AutoPeftModelForCausalLM.from_pretrained("{directory.absolute()}")'


def merge_command(directory: Path) -> str:
    """The command that makes a model of the adapter in `directory`."""
    folder = str(directory)
    return f"fastsft merge {shlex.quote(folder)} {shlex.quote(folder.rstrip('/') + '-merged')}"
