"""Templates with `{% generation %}` blocks learn what transformers' assistant mask marks, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from assistant_masks import OF_PICTURES, MaskJudge, names
from template_conversations import CONVERSATIONS

TEXT = [name for name in names() if name not in OF_PICTURES]
# Blocks beyond the end and from the prompt, rows of their own, channels, calls without an end, lost calls,
# ends of the next turn.
KINDS = (
    "qwen2_5_training", "lfm2_2_5", "gptoss_training", "diffusion_gemma_training", "gemma3_training",
    "glm4moe_training", "qwen3_5_nothink_training", "deepseek_r1_distill_training",
)  # fmt: skip
OUTCOMES = {"equal", "equal + end", "equal + prompt", "equal + end + prompt", "refused", "left out", "lost"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in KINDS else pytest.mark.thorough) for n in TEXT]
)
def test_labels_are_the_mask_of_transformers(name: str, tmp_path: Path) -> None:
    """Except what docs/templates.md names."""
    judge = MaskJudge(tmp_path / "m", name)
    found = {kind: judge.judge(*conversation) for kind, conversation in CONVERSATIONS.items()}
    assert not {kind: outcome for kind, outcome in found.items() if outcome not in OUTCOMES}
    assert sum(outcome.startswith("equal") for outcome in found.values()) >= 13


def test_templates_of_pictures_are_refused_with_a_reason(tmp_path: Path) -> None:
    for name in OF_PICTURES:
        with pytest.raises(ValueError, match="chat template"):
            MaskJudge(tmp_path / name, name)


def test_the_archive_has_all_of_trls_templates_with_blocks() -> None:
    assert len(names()) == 34 and set(KINDS) <= set(TEXT)
