"""
fastsft: native core
"""

from __future__ import annotations

import collections.abc
import typing

import numpy
import numpy.typing
import torch

__all__: list[str] = [
    "AddedToken",
    "AtomicDirectory",
    "CalledTokenizer",
    "DataFault",
    "DataReport",
    "Engine",
    "FileDigest",
    "GroupPlan",
    "LabelledData",
    "LlamaSettings",
    "Manifest",
    "NamedIds",
    "ReportEntry",
    "SafetensorsReader",
    "SafetensorsWriter",
    "Schedule",
    "StepResult",
    "TensorEntry",
    "TensorSpec",
    "TokenDataset",
    "Tokenizer",
    "TokenizerFiles",
    "WeightLoader",
    "available_bytes",
    "chat_templates",
    "count_parameters",
    "crc32c",
    "crc32c_portable",
    "digest_file",
    "epoch_order",
    "label_file",
    "label_text",
    "list_checkpoints",
    "load_model",
    "load_tokenizer",
    "load_training_state",
    "make_llama_tokenizer",
    "micro_batch_count",
    "padded_rows",
    "parallel_threads",
    "path_inside",
    "plan_group",
    "plan_shards",
    "publish_weights",
    "rank_micro_batches",
    "read_manifest",
    "read_weight_map",
    "remove_leftovers",
    "replace_file",
    "rotate_checkpoints",
    "save_model",
    "save_training_state",
    "schedule_names",
    "sync_directory",
    "sync_file",
    "torch_version",
    "verify_directory",
    "weight_files",
    "with_cuda",
]

class FileDigest:
    def __init__(
        self,
        name: str,
        size: typing.SupportsInt | typing.SupportsIndex,
        crc32c: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...
    @property
    def crc32c(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...

class TensorEntry:
    @property
    def begin(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def end(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> list[int]: ...

class SafetensorsReader:
    def __init__(self, path: str) -> None: ...
    def bytes(self, name: str) -> bytes: ...
    @property
    def metadata(self) -> dict[str, str]: ...
    @property
    def tensors(self) -> list[TensorEntry]: ...

class TensorSpec:
    def __init__(
        self,
        name: str,
        dtype: str,
        shape: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
    ) -> None: ...

class SafetensorsWriter:
    def __init__(
        self,
        path: str,
        specs: collections.abc.Sequence[TensorSpec],
        metadata: collections.abc.Mapping[str, str] = {},
    ) -> None: ...
    def finish(self) -> FileDigest: ...
    def write(self, data: bytes) -> None: ...

class Manifest:
    def __init__(
        self,
        step: typing.SupportsInt | typing.SupportsIndex,
        world_size: typing.SupportsInt | typing.SupportsIndex,
        layout_hash: str,
        files: collections.abc.Sequence[FileDigest],
    ) -> None: ...
    @property
    def files(self) -> list[FileDigest]: ...
    @property
    def layout_hash(self) -> str: ...
    @property
    def step(self) -> int: ...
    @property
    def world_size(self) -> int: ...

class AtomicDirectory:
    def __init__(self, parent: str, label: str) -> None: ...
    def commit(self, name: str, manifest: Manifest) -> str: ...
    def discard(self) -> None: ...
    @property
    def path(self) -> str: ...

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
    def checksum(self) -> int: ...
    def ids(self, row: typing.SupportsInt | typing.SupportsIndex) -> numpy.typing.NDArray[numpy.int32]: ...
    def learned(self, row: typing.SupportsInt | typing.SupportsIndex) -> list[tuple[int, int]]: ...
    def length(self, row: typing.SupportsInt | typing.SupportsIndex) -> int: ...
    def lengths(self) -> numpy.typing.NDArray[numpy.int64]: ...
    def num_targets(self, row: typing.SupportsInt | typing.SupportsIndex) -> int: ...
    def target_counts(self) -> numpy.typing.NDArray[numpy.int64]: ...
    @property
    def max_id(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...

class GroupPlan:
    @property
    def micro_batches(self) -> list[numpy.typing.NDArray[numpy.int64]]: ...
    @property
    def num_targets(self) -> int: ...
    @property
    def weights(self) -> list[numpy.typing.NDArray[numpy.float64]]: ...

class Schedule:
    def __init__(
        self,
        name: str,
        *,
        learning_rate: typing.SupportsFloat | typing.SupportsIndex,
        warmup_steps: typing.SupportsInt | typing.SupportsIndex,
        total_steps: typing.SupportsInt | typing.SupportsIndex,
        options: collections.abc.Mapping[str, typing.SupportsFloat | typing.SupportsIndex | str] = {},
    ) -> None: ...
    def rate(self, step: typing.SupportsInt | typing.SupportsIndex) -> float: ...

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
    def vocab_size(self) -> int: ...
    @property
    def world_size(self) -> int: ...

class WeightLoader:
    def __init__(self, engine: Engine) -> None: ...
    def finish(self, where: str) -> list[str]: ...
    def set(self, name: str, tensor: torch.Tensor, where: str) -> None: ...

def available_bytes(path: str) -> int: ...
def chat_templates() -> list[str]: ...
def count_parameters(config_json: str) -> int: ...
def crc32c(data: bytes, previous: typing.SupportsInt | typing.SupportsIndex = 0) -> int: ...
def crc32c_portable(data: bytes, previous: typing.SupportsInt | typing.SupportsIndex = 0) -> int: ...
def digest_file(path: str) -> FileDigest: ...
def epoch_order(
    size: typing.SupportsInt | typing.SupportsIndex,
    seed: typing.SupportsInt | typing.SupportsIndex,
    epoch: typing.SupportsInt | typing.SupportsIndex,
) -> numpy.typing.NDArray[numpy.int64]: ...
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
def list_checkpoints(output_directory: str) -> list[str]: ...
def load_model(engine: Engine, directory: str) -> list[str]: ...
def load_tokenizer(directory: str) -> tuple[Tokenizer, TokenizerFiles]: ...
def load_training_state(engine: Engine, directory: str) -> None: ...
def make_llama_tokenizer(vocab_file: str, settings: LlamaSettings) -> Tokenizer: ...
def micro_batch_count(
    size: typing.SupportsInt | typing.SupportsIndex,
    batch_size: typing.SupportsInt | typing.SupportsIndex,
    world_size: typing.SupportsInt | typing.SupportsIndex = 1,
    drop_last: bool = False,
) -> int: ...
def padded_rows(
    dataset: TokenDataset,
    begin: typing.SupportsInt | typing.SupportsIndex,
    end: typing.SupportsInt | typing.SupportsIndex,
    width: typing.SupportsInt | typing.SupportsIndex,
    pad_id: typing.SupportsInt | typing.SupportsIndex,
) -> tuple[
    numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.bool]
]: ...
def parallel_threads(num_threads: typing.SupportsInt | typing.SupportsIndex) -> int: ...
def path_inside(directory: str, name: str, where: str) -> str: ...
def plan_group(
    lengths: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    target_counts: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    group: collections.abc.Sequence[
        collections.abc.Sequence[collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]]
    ],
    rank: typing.SupportsInt | typing.SupportsIndex = 0,
    loss_norm: str = "global_tokens",
    average_tokens_across_devices: bool = True,
    *,
    micro_batch_tokens: typing.SupportsInt | typing.SupportsIndex,
) -> GroupPlan: ...
def plan_shards(
    tensors: collections.abc.Sequence[tuple[str, typing.SupportsInt | typing.SupportsIndex]],
    max_bytes: typing.SupportsInt | typing.SupportsIndex,
) -> list[tuple[str, list[str]]]: ...
def publish_weights(engine: Engine) -> None: ...
def rank_micro_batches(
    order: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    batch_size: typing.SupportsInt | typing.SupportsIndex,
    rank: typing.SupportsInt | typing.SupportsIndex = 0,
    world_size: typing.SupportsInt | typing.SupportsIndex = 1,
    drop_last: bool = False,
) -> list[numpy.typing.NDArray[numpy.int64]]: ...
def read_manifest(directory: str) -> Manifest: ...
def read_weight_map(directory: str) -> dict[str, str]: ...
def remove_leftovers(parent: str) -> list[str]: ...
def replace_file(path: str, content: str) -> None: ...
def rotate_checkpoints(
    output_directory: str,
    limit: typing.SupportsInt | typing.SupportsIndex,
    kept: collections.abc.Sequence[str] = [],
) -> list[str]: ...
def save_model(
    engine: Engine,
    directory: str,
    *,
    dtype: str = "float32",
    max_shard_size: typing.SupportsInt | typing.SupportsIndex = 5000000000,
) -> list[FileDigest]: ...
def save_training_state(engine: Engine, directory: str) -> list[FileDigest]: ...
def schedule_names() -> list[str]: ...
def sync_directory(path: str) -> None: ...
def sync_file(path: str) -> None: ...
def verify_directory(directory: str, checksums: bool = True) -> list[str]: ...
def weight_files(directory: str) -> list[str]: ...

torch_version: str
with_cuda: bool
