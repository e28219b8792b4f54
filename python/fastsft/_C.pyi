"""
fastsft: native core
"""

from __future__ import annotations
import collections.abc
import numpy
import numpy.typing
import torch
import typing

__all__: list[str] = [
    "AddedToken",
    "CalledTokenizer",
    "DataFault",
    "DataReport",
    "Engine",
    "LabelledData",
    "LlamaSettings",
    "NamedIds",
    "ReportEntry",
    "StepResult",
    "TokenDataset",
    "Tokenizer",
    "TokenizerFiles",
    "chat_templates",
    "label_file",
    "label_text",
    "load_tokenizer",
    "make_llama_tokenizer",
    "padded_rows",
    "torch_version",
    "with_cuda",
]

class NamedIds:
    def __init__(
        self,
        bos: typing.SupportsInt | typing.SupportsIndex = -1,
        eos: typing.SupportsInt | typing.SupportsIndex = -1,
        unk: typing.SupportsInt | typing.SupportsIndex = -1,
        pad: typing.SupportsInt | typing.SupportsIndex = -1,
    ) -> None: ...
    @property
    def bos(self) -> int: ...
    @bos.setter
    def bos(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def eos(self) -> int: ...
    @eos.setter
    def eos(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def pad(self) -> int: ...
    @pad.setter
    def pad(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def unk(self) -> int: ...
    @unk.setter
    def unk(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...

class AddedToken:
    def __init__(
        self,
        id: typing.SupportsInt | typing.SupportsIndex,
        text: str,
        strips_left: bool = False,
        strips_right: bool = False,
    ) -> None: ...
    @property
    def id(self) -> int: ...
    @property
    def text(self) -> str: ...

class LlamaSettings:
    add_bos: bool
    add_eos: bool
    add_prefix_space: bool
    legacy: bool
    named: NamedIds
    def __init__(self) -> None: ...
    @property
    def added(self) -> list[AddedToken]: ...
    @added.setter
    def added(self, arg0: collections.abc.Sequence[AddedToken]) -> None: ...
    @property
    def spaced_ids(self) -> set[int]: ...
    @spaced_ids.setter
    def spaced_ids(self, arg0: collections.abc.Set[typing.SupportsInt | typing.SupportsIndex]) -> None: ...
    @property
    def special_ids(self) -> set[int]: ...
    @special_ids.setter
    def special_ids(self, arg0: collections.abc.Set[typing.SupportsInt | typing.SupportsIndex]) -> None: ...

class TokenizerFiles:
    @property
    def model_max_length(self) -> int: ...
    @property
    def padding_side(self) -> str: ...
    @property
    def settings(self) -> LlamaSettings: ...

class Tokenizer:
    def decode(
        self,
        ids: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        skip_special_tokens: bool = False,
    ) -> str: ...
    def encode(self, text: str, split_special_tokens: bool = False) -> list[int]: ...
    def encode_batch(
        self, texts: collections.abc.Sequence[str], split_special_tokens: bool = False
    ) -> list[list[int]]: ...
    def encode_with_offsets(
        self, text: str, split_special_tokens: bool = False
    ) -> tuple[list[int], list[tuple[int, int]]]: ...
    def find_token(self, text: str) -> int: ...
    def token_text(self, id: typing.SupportsInt | typing.SupportsIndex) -> str: ...
    @property
    def named(self) -> NamedIds: ...
    @property
    def vocab_size(self) -> int: ...

class CalledTokenizer(Tokenizer):
    def __init__(
        self,
        encode: collections.abc.Callable[
            [str], collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]
        ],
        legacy: collections.abc.Callable[[], bool],
        named: NamedIds,
    ) -> None: ...

class TokenDataset:
    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def append(
        self,
        ids: typing.Annotated[numpy.typing.ArrayLike, numpy.int32],
        learned: collections.abc.Sequence[
            tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]
        ],
    ) -> None: ...
    def ids(self, row: typing.SupportsInt | typing.SupportsIndex) -> numpy.typing.NDArray[numpy.int32]: ...
    def learned(self, row: typing.SupportsInt | typing.SupportsIndex) -> list[tuple[int, int]]: ...
    def length(self, row: typing.SupportsInt | typing.SupportsIndex) -> int: ...
    def lengths(self) -> numpy.typing.NDArray[numpy.int64]: ...
    def num_targets(self, row: typing.SupportsInt | typing.SupportsIndex) -> int: ...
    def target_counts(self) -> numpy.typing.NDArray[numpy.int64]: ...
    @property
    def num_tokens(self) -> int: ...

class DataFault:
    def __str__(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def message(self) -> int: ...
    @property
    def record(self) -> int: ...

class ReportEntry:
    @property
    def count(self) -> int: ...
    @property
    def first(self) -> list[str]: ...

class DataReport:
    def summary(self) -> str: ...
    @property
    def dropped(self) -> list[int]: ...
    @property
    def entries(self) -> dict[str, ReportEntry]: ...
    @property
    def num_dropped(self) -> int: ...
    @property
    def num_learned(self) -> int: ...
    @property
    def num_records(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_without_labels(self) -> int: ...
    @property
    def warnings(self) -> list[str]: ...

class LabelledData:
    @property
    def dataset(self) -> TokenDataset: ...
    @property
    def faults(self) -> list[DataFault]: ...
    @property
    def report(self) -> DataReport: ...

class StepResult:
    @property
    def finite(self) -> bool: ...
    @property
    def grad_norm(self) -> float: ...
    @property
    def loss(self) -> float: ...

class Engine:
    def __init__(
        self,
        config_json: str,
        *,
        compute_dtype: str = "float32",
        strategy: str = "no_shard",
        recompute: str = "selective",
        gather_group: str = "",
        reduce_group: str = "",
        num_threads: typing.SupportsInt | typing.SupportsIndex = 0,
        max_positions: typing.SupportsInt | typing.SupportsIndex = 0,
    ) -> None: ...
    def gradients(
        self,
        dataset: TokenDataset,
        rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
        weights: typing.Annotated[numpy.typing.ArrayLike, numpy.float64],
        *,
        label_smoothing: typing.SupportsFloat | typing.SupportsIndex = 0.0,
    ) -> tuple[float, dict[str, torch.Tensor]]: ...
    def logits(
        self,
        input_ids: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
        lengths: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    ) -> torch.Tensor: ...
    def loss(
        self,
        dataset: TokenDataset,
        rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
        weights: typing.Annotated[numpy.typing.ArrayLike, numpy.float64],
        *,
        label_smoothing: typing.SupportsFloat | typing.SupportsIndex = 0.0,
    ) -> float: ...
    def memory(self) -> dict[str, int]: ...
    def named_parameters(self) -> dict[str, torch.Tensor]: ...
    def publish(self) -> None: ...
    def set_parameter(self, name: str, value: torch.Tensor) -> None: ...
    def train_step(
        self,
        dataset: TokenDataset,
        micro_batches: collections.abc.Sequence[typing.Annotated[numpy.typing.ArrayLike, numpy.int64]],
        weights: collections.abc.Sequence[typing.Annotated[numpy.typing.ArrayLike, numpy.float64]],
        *,
        learning_rate: typing.SupportsFloat | typing.SupportsIndex,
        beta1: typing.SupportsFloat | typing.SupportsIndex = 0.9,
        beta2: typing.SupportsFloat | typing.SupportsIndex = 0.999,
        eps: typing.SupportsFloat | typing.SupportsIndex = 1e-08,
        weight_decay: typing.SupportsFloat | typing.SupportsIndex = 0.0,
        max_grad_norm: typing.SupportsFloat | typing.SupportsIndex = 1.0,
        label_smoothing: typing.SupportsFloat | typing.SupportsIndex = 0.0,
    ) -> StepResult: ...
    @property
    def config_json(self) -> str: ...
    @property
    def num_non_embedding_parameters(self) -> int: ...
    @property
    def num_parameters(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def step_count(self) -> int: ...
    @step_count.setter
    def step_count(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def unit_hashes(self) -> list[str]: ...
    @property
    def unit_names(self) -> list[str]: ...
    @property
    def unit_sizes(self) -> list[int]: ...
    @property
    def world_size(self) -> int: ...

def chat_templates() -> list[str]: ...
def label_file(
    path: str,
    tokenizer: Tokenizer,
    max_length: typing.SupportsInt | typing.SupportsIndex,
    pad_id: typing.SupportsInt | typing.SupportsIndex,
    num_threads: typing.SupportsInt | typing.SupportsIndex = 0,
    chat_template: str = "vicuna_v1.1",
) -> LabelledData: ...
def label_text(
    text: str,
    tokenizer: Tokenizer,
    max_length: typing.SupportsInt | typing.SupportsIndex,
    pad_id: typing.SupportsInt | typing.SupportsIndex,
    num_threads: typing.SupportsInt | typing.SupportsIndex = 0,
    chat_template: str = "vicuna_v1.1",
    where: str = "conversations",
) -> LabelledData: ...
def load_tokenizer(directory: str) -> tuple[Tokenizer, TokenizerFiles]: ...
def make_llama_tokenizer(vocab_file: str, settings: LlamaSettings) -> Tokenizer: ...
def padded_rows(
    dataset: TokenDataset,
    begin: typing.SupportsInt | typing.SupportsIndex,
    end: typing.SupportsInt | typing.SupportsIndex,
    width: typing.SupportsInt | typing.SupportsIndex,
    pad_id: typing.SupportsInt | typing.SupportsIndex,
) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64]]: ...

torch_version: str
with_cuda: bool
