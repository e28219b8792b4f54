"""Go templates are executed as Go 1.27 executed them (tests/golden/go_templates)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fastsft.data.chat.ollama.go_execution import render_go

RECORDED = json.loads(
    (Path(__file__).parents[1] / "golden" / "go_templates" / "cases.json").read_text("utf-8")
)


@pytest.mark.parametrize(
    "case", RECORDED["cases"], ids=lambda case: case["template"][-60:].encode("unicode_escape").decode()
)
def test_the_text_is_that_of_go(case: dict[str, Any]) -> None:
    if "error" in case:
        with pytest.raises(ValueError, match="a Go template: "):
            render_go(case["template"], RECORDED["data"], RECORDED["day"])
    else:
        assert render_go(case["template"], RECORDED["data"], RECORDED["day"]) == case["text"]
