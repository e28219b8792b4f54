"""The directory that is verified, as far as the checks know it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft.doctor.result import NotCheckedError
from fastsft.model.stored_weights import StoredWeights

if TYPE_CHECKING:
    from fastsft.lora.adapter_files import AdapterDirectory
    from fastsft.model.causal_lm import CausalLM
    from fastsft.tokenizer.tokenizer import Tokenizer


@dataclass
class Subject:
    """Each check fills in what later ones need; what is None could not be made.

    trusts_code: a model class of the directory's own code is run.
    """

    directory: Path
    model: CausalLM | None = None
    weights: StoredWeights | None = None
    tokenizer: Tokenizer | None = None
    adapter: AdapterDirectory | None = None
    trusts_code: bool = False

    def need(self, name: str, what: str) -> Any:
        """The attribute `name`; NotCheckedError when an earlier check could not make it."""
        value = getattr(self, name)
        if value is None:
            raise NotCheckedError(f"needs {what}")
        return value

    @property
    def is_adapter(self) -> bool:
        """True for a LoRA adapter, which has no model next to it."""
        return not os.path.lexists(self.directory / "config.json") and os.path.lexists(
            self.directory / "adapter_config.json"
        )

    @property
    def is_checkpoint(self) -> bool:
        """True if a run can be resumed from it, or could be if nothing were missing."""
        return os.path.lexists(self.directory / "fastsft_state.json")
