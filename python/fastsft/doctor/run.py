"""The run that is examined, as far as the checks know it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft.doctor.result import NotCheckedError
from fastsft.runtime.launch import launch

if TYPE_CHECKING:
    from fastsft import _C
    from fastsft.arguments import DataArguments, LoraArguments, ModelArguments, TrainingArguments
    from fastsft.data.token_rows import TokenRows
    from fastsft.model.causal_lm import CausalLM


@dataclass
class Run:
    """values: of every flag as parsed. ranks: that will train. records: of each data file that are looked at.

    given: the flags that were given, and by what.

    Each check fills in what later ones need; what is None could not be made.
    """

    values: dict[str, Any]
    ranks: int = 1
    records: int = 200
    given: Mapping[str, str] = field(default_factory=dict)
    model_args: ModelArguments | None = None
    data_args: DataArguments | None = None
    args: TrainingArguments | None = None
    lora_args: LoraArguments | None = None
    model: CausalLM | None = None
    shapes: list[tuple[str, list[int]]] = field(default_factory=list)
    weights_dtype: str | None = None
    tokenizer: object = None
    labeller: _C.Labeller | None = None
    rows: TokenRows | None = None  # TokenRows of the records that were looked at
    has_all_rows: bool = False

    def need(self, name: str, what: str) -> Any:
        """The attribute `name`; NotCheckedError when an earlier check could not make it."""
        value = getattr(self, name)
        if value is None:
            raise NotCheckedError(f"needs {what}")
        return value

    @property
    def settled_args(self) -> TrainingArguments:
        """`args`, for checks that come after one that needs them."""
        assert self.args is not None
        return self.args

    @property
    def settled_data_args(self) -> DataArguments:
        """The same of `data_args`."""
        assert self.data_args is not None
        return self.data_args

    @property
    def opened_model(self) -> CausalLM:
        """The same of `model`."""
        assert self.model is not None
        return self.model

    @property
    def output_dir(self) -> Path:
        return Path(self.need("args", "the configuration").output_dir or ".")


@contextmanager
def as_first_of(ranks: int) -> Iterator[None]:
    """Inside, this process looks to all code like rank 0 of a run that it would start itself."""
    if ranks == 1 or launch().world_size > 1:
        yield
        return
    count = str(ranks)
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    before = dict(os.environ)
    os.environ.update(place)
    try:
        yield
    finally:
        for name in place:
            os.environ.pop(name, None)
            if name in before:
                os.environ[name] = before[name]
