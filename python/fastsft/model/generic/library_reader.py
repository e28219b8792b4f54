"""Logits of a model of transformers, token by token, with its own cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fastsft.model.generic.empty_model import FAULTS, first_line

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from transformers import PreTrainedModel


class LibraryReader:
    """A Reader of generation.py: the model of a directory, by transformers' own forward.

    dtype: "float32" or "bfloat16". change: makes another value of a parameter, by its name.
    trust_remote_code: code of the directory is run. is_whole: of a vision-text model.
    ValueError for a directory that transformers does not
    open.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        dtype: str,
        device: str,
        change: Callable[[str, torch.Tensor], torch.Tensor] | None = None,
        trust_remote_code: bool = False,
        is_whole: bool = False,
    ) -> None:
        from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

        kind = AutoModelForImageTextToText if is_whole else AutoModelForCausalLM
        try:
            model: PreTrainedModel = kind.from_pretrained(
                str(directory),
                dtype=getattr(torch, "float32" if change else dtype),
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=trust_remote_code,
            )
        except (OSError, *FAULTS) as error:
            raise ValueError(f"{directory}: transformers does not open it: {first_line(error)}") from error
        if change:
            for name, parameter in model.named_parameters():
                parameter.data = change(name, parameter.data)
        model.eval()
        self._model: PreTrainedModel = model.to(  # a wrapper hides `self`
            device=device, dtype=getattr(torch, dtype)
        )
        self._ids: list[int] = []
        self._cache: object = None
        self._num_cached = 0

    @property
    def max_positions(self) -> int | None:
        """As the configuration says, by any of its names."""
        found = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        return found if isinstance(found, int) and found > 0 else None

    def read(self, ids: npt.NDArray[np.int64]) -> torch.Tensor:
        """As Reader's. What is not in the cache is computed again."""
        self._ids += [int(token) for token in ids]
        device = self._model.device
        new = torch.tensor([self._ids[self._num_cached :]], device=device)
        mask = torch.ones(1, len(self._ids), dtype=torch.long, device=device)
        with torch.inference_mode():
            out = self._model(input_ids=new, attention_mask=mask, past_key_values=self._cache, use_cache=True)
        self._cache = getattr(out, "past_key_values", None)
        self._num_cached = 0 if self._cache is None else len(self._ids)
        logits: torch.Tensor = out.logits[0, -1].float()
        return logits

    def truncate(self, length: int) -> None:
        """As Reader's. Not every cache can be cut: what is left is read again."""
        if length != len(self._ids):
            self._ids, self._cache, self._num_cached = self._ids[:length], None, 0
