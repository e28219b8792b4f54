"""The common parts of checks: the subjects that they examine, how they run, and their results as text."""

from __future__ import annotations

import os
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft.runtime.launch import launch
from fastsft.runtime.messages import Notices, collected
from fastsft.runtime.terminal import visible

if TYPE_CHECKING:
    from fastsft import _C
    from fastsft.arguments import DataArguments, LoraArguments, ModelArguments, TrainingArguments
    from fastsft.data.token_rows import TokenRows
    from fastsft.lora.adapter_files import AdapterDirectory
    from fastsft.model.causal_lm import CausalLM
    from fastsft.model.stored_weights import StoredWeights
    from fastsft.tokenizer.tokenizer import Tokenizer

OK, WARNING, FAILED, UNCHECKED = "ok", "warning", "failed", "not checked"
_COLOURS = {OK: "32", WARNING: "33", FAILED: "1;31", UNCHECKED: "2"}
_MARK_WIDTH, _NAME_WIDTH = 13, 15
_MOST_LINES = 6


@dataclass(frozen=True)
class Result:
    """The result of a check.

    mark: `ok`, `warning`, `failed` or `not checked`. way_out: a hint at a remedy, unless the mark is `ok`.
    """

    name: str
    mark: str
    text: str
    way_out: str = ""


class ProblemError(Exception):
    """Raised by a check that failed, or with `mark` WARNING by a check that only warns."""

    def __init__(self, text: str, way_out: str = "", mark: str = FAILED) -> None:
        super().__init__(text)
        self.way_out, self.mark = way_out, mark


class NotCheckedError(Exception):
    """Raised by a check that cannot be carried out; the message is the reason."""


class Examined:
    """Base class for the subjects that checks examine.

    Checks set attributes that later checks need; an attribute stays None if a check could not set it.
    """

    def need(self, name: str, description: str) -> Any:
        """Return the attribute `name`. NotCheckedError, with `description`, for None."""
        value = getattr(self, name)
        if value is None:
            raise NotCheckedError(f"needs {description}")
        return value


@dataclass
class ExaminedRun(Examined):
    """A run before training.

    values: the parsed value of each flag. ranks: number of ranks that will train. records: number of records
    to read from each data file. given: the source of each given flag. rows: the rows made from the records
    that were read. has_all_rows: True if all records were read.
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
    rows: TokenRows | None = None
    has_all_rows: bool = False

    @property
    def resolved_args(self) -> TrainingArguments:
        """The resolved arguments, which an earlier check has set."""
        assert self.args is not None
        return self.args

    @property
    def resolved_data_args(self) -> DataArguments:
        """The data arguments, which an earlier check has set."""
        assert self.data_args is not None
        return self.data_args

    @property
    def opened_model(self) -> CausalLM:
        """The model, which an earlier check has opened."""
        assert self.model is not None
        return self.model

    @property
    def output_dir(self) -> Path:
        return Path(self.need("args", "the configuration").output_dir or ".")


@dataclass
class ExaminedDirectory(Examined):
    """A directory with a model, an adapter or a checkpoint. trusts_code: True if the model's code may run."""

    directory: Path
    model: CausalLM | None = None
    weights: StoredWeights | None = None
    tokenizer: Tokenizer | None = None
    adapter: AdapterDirectory | None = None
    trusts_code: bool = False

    @property
    def is_adapter(self) -> bool:
        """True if the directory has a LoRA adapter, and no model."""
        return not os.path.lexists(self.directory / "config.json") and os.path.lexists(
            self.directory / "adapter_config.json"
        )

    @property
    def is_checkpoint(self) -> bool:
        """True if the directory has a run's state, from which a run resumes unless files are missing."""
        return os.path.lexists(self.directory / "fastsft_state.json")


@contextmanager
def as_rank0(ranks: int) -> Iterator[None]:
    """Set the environment variables of rank 0 among `ranks` ranks, unless a launcher has set them."""
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


def examined(name: str, check: Callable[[], str], way_out: str) -> Result:
    """Run a check and return its result; an exception becomes a result, too.

    A successful check with warnings has the mark `warning`. way_out: the hint if the error has none.
    """
    with collected() as notices, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", UserWarning)
        try:
            mark, text, out = OK, check(), ""
        except NotCheckedError as error:
            mark, text, out = UNCHECKED, str(error), ""
        except ProblemError as error:
            mark, text, out = error.mark, str(error), error.way_out or way_out
        except Exception as error:
            mark, text, out = FAILED, _message(error), way_out
    notices.warned += [str(item.message) for item in warned if issubclass(item.category, UserWarning)]
    return _with_notices(Result(name, mark, text, out), notices)


def _message(error: Exception) -> str:
    named = isinstance(error, ValueError | RuntimeError) and str(error)
    return str(error) if named else f"{type(error).__name__}: {error}"


def _with_notices(result: Result, notices: Notices) -> Result:
    lines = [result.text, *notices.told, *notices.warned]
    mark = WARNING if result.mark == OK and notices.warned else result.mark
    return Result(result.name, mark, "\n".join(lines), result.way_out)


def result_text(result: Result, width: int, colour: bool) -> str:
    """Return the result as text, wrapped to `width` columns; the hint begins with an arrow."""
    lines = visible(result.text).expandtabs().splitlines()
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], f"({len(lines) - _MOST_LINES} more lines)"]
    lines += [f"-> {visible(result.way_out)}"] if result.way_out and result.mark != OK else []
    indent = _MARK_WIDTH + _NAME_WIDTH
    wrapped = [part for line in lines for part in _wrapped(line, max(width - indent, 20))]
    mark = f"{result.mark:<{_MARK_WIDTH}}"
    head = f"\x1b[{_COLOURS[result.mark]}m{mark}\x1b[0m" if colour else mark
    return "\n".join(
        f"{' ' * indent if number else f'{head}{result.name:<{_NAME_WIDTH}}'}{line}".rstrip()
        for number, line in enumerate(wrapped or [""])
    )


def _wrapped(line: str, width: int) -> list[str]:
    return textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [""]


def count_text(results: Iterable[Result]) -> str:
    """Count the results by mark, such as `11 ok, 1 warning, 1 failed`."""
    counts = Counter(result.mark for result in results)
    plural = "s" if counts[WARNING] != 1 else ""
    parts = [f"{counts[OK]} ok", f"{counts[WARNING]} warning{plural}", f"{counts[FAILED]} failed"]
    return ", ".join([*parts, *([f"{counts[UNCHECKED]} not checked"] if counts[UNCHECKED] else [])])
