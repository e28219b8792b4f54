"""
fastsft: native core
"""

from __future__ import annotations

import collections.abc
import typing

import numpy
import numpy.typing
import torch
import typing_extensions

__all__: list[str] = [
    "AdapterLinear",
    "AdapterOptions",
    "AddedToken",
    "AllocationMeter",
    "AtomicDirectory",
    "Batch",
    "BosRule",
    "BrokenFileSet",
    "ByteLevelTokenizer",
    "CacheWriteError",
    "ChatTemplate",
    "CheckpointStaging",
    "ChecksummedRanges",
    "CollectiveError",
    "ConvertSummary",
    "DamagedCacheError",
    "DataCounts",
    "DataFormat",
    "DataInput",
    "DataReport",
    "Engine",
    "Explanation",
    "FileDigest",
    "FileError",
    "FormatUse",
    "GenericModel",
    "GivenToken",
    "GroupPlan",
    "HeldTensors",
    "JsonTokenizerSettings",
    "LabelOptions",
    "LabelledData",
    "Labeller",
    "LibraryCalls",
    "LibraryTokenizer",
    "LlamaSettings",
    "Manifest",
    "MemoryPlan",
    "NamedIds",
    "OwnedBytes",
    "PackingSummary",
    "PeerFailedError",
    "PythonTokenizer",
    "RangeDigest",
    "RecordError",
    "RecordIssue",
    "RecordedSpan",
    "ReplayDigests",
    "ReportEntry",
    "RowNeeds",
    "RunLock",
    "SafetensorsReader",
    "SafetensorsWriter",
    "Schedule",
    "StateOptions",
    "StepResult",
    "StepSource",
    "Survey",
    "SurveyChoice",
    "SurveyedRecord",
    "SyncBucket",
    "SyncPiece",
    "SyncPlan",
    "TensorEntry",
    "TensorSpec",
    "TextDecoder",
    "ThreadDeniedError",
    "TokenCache",
    "TokenCacheWriter",
    "TokenDataset",
    "Tokenizer",
    "TokenizerFiles",
    "UnitAccess",
    "UnitDigest",
    "UnsupportedTokenizerError",
    "WeightFiles",
    "WeightLoader",
    "available_bytes",
    "balance",
    "buffer_checksum",
    "byte_masks",
    "cache_temporary_prefix",
    "canonical_template_name",
    "carry_from_file",
    "carry_values",
    "chat_templates",
    "check_context_ranks",
    "check_model_part",
    "check_same_plan",
    "classify_json",
    "compute_dtype",
    "conversation_cost",
    "convert_inputs",
    "copies_of_record",
    "count_data",
    "count_parameters",
    "count_shared_rows",
    "count_trained_parameters",
    "crc32c",
    "crc32c_combine",
    "crc32c_portable",
    "cuda_architectures",
    "data_formats",
    "delete_directory",
    "detect_data_format",
    "device_failure",
    "digest_file",
    "end_at_parents_sigterm",
    "enter_phase",
    "epoch_order",
    "explain_record",
    "file_set_name",
    "file_set_obstacle",
    "find_chat_template",
    "find_data_format",
    "find_string_special",
    "finish_file_sets",
    "gather_unit",
    "holds_manifest",
    "install_file_set",
    "is_our_model",
    "is_train_mark",
    "join_ranges",
    "join_rows",
    "judge_train_mark",
    "keep_file_set",
    "label_file",
    "label_inputs",
    "label_lists",
    "label_text",
    "list_checkpoints",
    "load_model",
    "load_tokenizer",
    "load_training_state",
    "make_llama_tokenizer",
    "micro_batch_count",
    "model_bytes",
    "model_families",
    "nested_path_inside",
    "note_progress",
    "num_mask_finders",
    "open_token_cache",
    "optimizers",
    "pack_best_fit",
    "pack_bucket",
    "pack_rows",
    "pack_step",
    "padded_rows",
    "parallel_threads",
    "parameter_shapes",
    "parse_json_tokenizer",
    "path_inside",
    "plan_group",
    "plan_memory",
    "plan_shards",
    "protection_inside",
    "protection_of",
    "publish_weights",
    "put_aside",
    "rank_micro_batches",
    "rank_status",
    "read_json_tokenizer",
    "read_manifest",
    "read_weight_map",
    "recompute_policies",
    "reference_group",
    "remove_leftovers",
    "remove_named",
    "replace_file",
    "require_threads",
    "restore_replaced",
    "rotary_frequencies",
    "rotate_checkpoints",
    "save_in_own_type",
    "save_model",
    "save_training_state",
    "schedule_names",
    "set_place",
    "set_tuned_gemms",
    "strategies",
    "strategies_with_whole_weights",
    "stream_training_state",
    "survey_inputs",
    "sync_directory",
    "sync_file",
    "takes_tiles",
    "torch_version",
    "trace_dropped",
    "train_mark_stems",
    "trained_order",
    "tuned_gemms",
    "unit_layouts",
    "unit_tensors",
    "unpack_bucket",
    "verify_directory",
    "weight_files",
    "with_cuda",
    "write_file",
    "write_part",
]

class ThreadDeniedError(RuntimeError):
    pass

class CollectiveError(RuntimeError):
    pass

class PeerFailedError(RuntimeError):
    pass

class FileError(RuntimeError):
    pass

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

class RangeDigest:
    def __init__(
        self,
        name: str,
        offset: typing.SupportsInt | typing.SupportsIndex,
        size: typing.SupportsInt | typing.SupportsIndex,
        crc32c: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...
    @property
    def crc32c(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def size(self) -> int: ...

class ChecksummedRanges:
    def __init__(self, path: str, direct: bool = False) -> None: ...
    def finish(self) -> list[RangeDigest]: ...
    def write_at(self, offset: typing.SupportsInt | typing.SupportsIndex, data: bytes) -> None: ...

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
    def json(self) -> str: ...
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
    def kept(self) -> str: ...
    @property
    def path(self) -> str: ...

class RunLock:
    def __init__(
        self,
        directory: str,
        holder: str = "another run",
        way_out: str = "wait for it, stop it, or choose another --output_dir",
    ) -> None: ...
    def release(self) -> None: ...

class BrokenFileSet:
    @property
    def name(self) -> str: ...
    @property
    def problem(self) -> str: ...
    @property
    def removed(self) -> bool: ...

class WeightFiles:
    def __init__(
        self,
        directory: str,
        state_dict: collections.abc.Sequence[TensorSpec],
        order: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        max_shard_size: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...
    def commit(self, total_parameters: typing.SupportsInt | typing.SupportsIndex) -> list[FileDigest]: ...
    def discard(self) -> None: ...
    def write(self, data: typing_extensions.Buffer) -> None: ...

class RowNeeds:
    @property
    def blind_query(self) -> bool: ...
    @property
    def masked_query(self) -> bool: ...
    @property
    def packing(self) -> bool: ...

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
    def append_item(
        self,
        ids: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
        labels: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
        positions: typing.Annotated[numpy.typing.ArrayLike, numpy.int64] | None = None,
        mask: typing.Annotated[numpy.typing.ArrayLike, numpy.uint8] | None = None,
        *,
        has_mask: bool = False,
        row: typing.SupportsInt | typing.SupportsIndex,
    ) -> RowNeeds: ...
    def checksum(self) -> int: ...
    def extents(self) -> numpy.typing.NDArray[numpy.int64]: ...
    def first_misplaced(self, targets_only: bool) -> tuple[int, bool] | None: ...
    def ids(self, row: typing.SupportsInt | typing.SupportsIndex) -> numpy.typing.NDArray[numpy.int32]: ...
    def label_counts(self) -> numpy.typing.NDArray[numpy.int64]: ...
    def labels(self, row: typing.SupportsInt | typing.SupportsIndex) -> numpy.typing.NDArray[numpy.int64]: ...
    def leading(self, row: typing.SupportsInt | typing.SupportsIndex) -> int: ...
    def learned(self, row: typing.SupportsInt | typing.SupportsIndex) -> list[tuple[int, int]]: ...
    def length(self, row: typing.SupportsInt | typing.SupportsIndex) -> int: ...
    def lengths(self) -> numpy.typing.NDArray[numpy.int64]: ...
    def num_packed(self) -> int: ...
    def num_targets(self, row: typing.SupportsInt | typing.SupportsIndex) -> int: ...
    def target_counts(self) -> numpy.typing.NDArray[numpy.int64]: ...
    @property
    def is_mapped(self) -> bool: ...
    @property
    def masked_id(self) -> int: ...
    @masked_id.setter
    def masked_id(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def max_id(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...

class GroupPlan:
    @property
    def micro_batches(self) -> list[numpy.typing.NDArray[numpy.int64]]: ...
    @property
    def num_conversations(self) -> int: ...
    @property
    def num_targets(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def weights(self) -> list[numpy.typing.NDArray[numpy.float64]]: ...

class PackingSummary:
    @property
    def attention_shapes(self) -> list[int]:
        """
        [conversations, longest, ...] of the ranges that cuDNN computes.
        """
    @property
    def balance(self) -> float: ...
    @property
    def conversations(self) -> int: ...
    @property
    def longest(self) -> int: ...
    @property
    def micro_batch_labels(self) -> int: ...
    @property
    def micro_batch_tokens(self) -> int: ...
    @property
    def micro_batches(self) -> int: ...
    @property
    def rank_step_labels(self) -> int: ...
    @property
    def rank_step_tokens(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def tokens(self) -> int: ...

class StepSource:
    def __init__(
        self,
        lengths: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
        target_counts: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
        *,
        batch_size: typing.SupportsInt | typing.SupportsIndex,
        world_size: typing.SupportsInt | typing.SupportsIndex = 1,
        drop_last: bool = False,
        accumulation: typing.SupportsInt | typing.SupportsIndex = 1,
        loss_norm: str = "global_tokens",
        average_tokens_across_devices: bool = True,
        micro_batch_tokens: typing.SupportsInt | typing.SupportsIndex,
        cost: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex] = [1.0, 0.0],
        label_counts: typing.Annotated[numpy.typing.ArrayLike, numpy.int64] | None = None,
    ) -> None: ...
    def plan(
        self,
        order: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
        step: typing.SupportsInt | typing.SupportsIndex,
        rank: typing.SupportsInt | typing.SupportsIndex = 0,
    ) -> GroupPlan: ...
    def summary(
        self,
        order: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
        steps: typing.SupportsInt | typing.SupportsIndex,
    ) -> PackingSummary: ...

class Schedule:
    """
    Learning rates by step.
    """
    def __init__(
        self,
        name: str,
        *,
        learning_rate: typing.SupportsFloat | typing.SupportsIndex,
        warmup_steps: typing.SupportsInt | typing.SupportsIndex,
        total_steps: typing.SupportsInt | typing.SupportsIndex,
        options: collections.abc.Mapping[str, typing.SupportsFloat | typing.SupportsIndex | str] = {},
    ) -> None:
        """
        learning_rate: the peak. ValueError for an unknown name or option, or a bad value.
        """
    def rate(self, step: typing.SupportsInt | typing.SupportsIndex) -> float:
        """
        Of the 0-based optimizer step.
        """

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
        single_word: bool = False,
        normalized: bool = False,
        special: bool = True,
    ) -> None: ...
    @property
    def id(self) -> int: ...
    @property
    def normalized(self) -> bool: ...
    @property
    def single_word(self) -> bool: ...
    @property
    def special(self) -> bool: ...
    @property
    def strips_left(self) -> bool: ...
    @property
    def strips_right(self) -> bool: ...
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
    def encode(self, text: str | bytes, split_special_tokens: bool = False) -> list[int]: ...
    def encode_batch(
        self, texts: collections.abc.Sequence[str | bytes], split_special_tokens: bool = False
    ) -> list[list[int]]: ...
    def encode_flat(
        self, texts: list[str], split_special_tokens: bool = False
    ) -> tuple[numpy.typing.NDArray[numpy.int32], numpy.typing.NDArray[numpy.int64]]: ...
    def encode_with_offsets(
        self, text: str | bytes, split_special_tokens: bool = False
    ) -> tuple[list[int], list[tuple[int, int]]]: ...
    def find_token(self, text: str) -> int: ...
    def is_control(self, id: typing.SupportsInt | typing.SupportsIndex) -> bool: ...
    def is_special(self, id: typing.SupportsInt | typing.SupportsIndex) -> bool: ...
    def token_text(self, id: typing.SupportsInt | typing.SupportsIndex) -> str: ...
    @property
    def adds_bos(self) -> bool: ...
    @property
    def adds_eos(self) -> bool: ...
    @property
    def legacy(self) -> bool: ...
    @property
    def named(self) -> NamedIds: ...
    @property
    def vocab_size(self) -> int: ...

class PythonTokenizer(Tokenizer):
    def __init__(
        self,
        encode: collections.abc.Callable[
            [str], collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]
        ],
        legacy: collections.abc.Callable[[], bool],
        named: NamedIds,
    ) -> None: ...

class UnsupportedTokenizerError(ValueError):
    pass

class GivenToken:
    def __init__(
        self, token: AddedToken, replaces_file: bool = False, replaces_other: bool = False
    ) -> None: ...
    @property
    def replaces_file(self) -> bool: ...
    @property
    def replaces_other(self) -> bool: ...
    @property
    def token(self) -> AddedToken: ...

class JsonTokenizerSettings:
    add_prefix_space: bool | None
    adds_bos: bool | None
    adds_eos: bool | None
    bos: str
    eos: str
    legacy: bool
    pad: str
    unk: str
    def __init__(self) -> None: ...
    @property
    def added(self) -> list[GivenToken]: ...
    @added.setter
    def added(self, arg0: collections.abc.Sequence[GivenToken]) -> None: ...

class ByteLevelTokenizer(Tokenizer):
    def use_portable_code(self) -> None: ...

class LibraryCalls:
    adds_bos: bool
    adds_eos: bool
    legacy: bool
    named: NamedIds
    def __init__(self) -> None: ...
    @property
    def control_ids(self) -> set[int]: ...
    @control_ids.setter
    def control_ids(self, arg0: collections.abc.Set[typing.SupportsInt | typing.SupportsIndex]) -> None: ...
    @property
    def decode(
        self,
    ) -> collections.abc.Callable[
        [collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], bool], str
    ]: ...
    @decode.setter
    def decode(self, arg0: collections.abc.Callable[[list[int], bool], str]) -> None: ...
    @property
    def encode(self) -> collections.abc.Callable[[str, bool], list[tuple[int, int, int]]]: ...
    @encode.setter
    def encode(
        self,
        arg0: collections.abc.Callable[
            [str, bool],
            collections.abc.Sequence[
                tuple[
                    typing.SupportsInt | typing.SupportsIndex,
                    typing.SupportsInt | typing.SupportsIndex,
                    typing.SupportsInt | typing.SupportsIndex,
                ]
            ],
        ],
    ) -> None: ...
    @property
    def find_token(self) -> collections.abc.Callable[[str], int]: ...
    @find_token.setter
    def find_token(
        self, arg0: collections.abc.Callable[[str], typing.SupportsInt | typing.SupportsIndex]
    ) -> None: ...
    @property
    def special_ids(self) -> set[int]: ...
    @special_ids.setter
    def special_ids(self, arg0: collections.abc.Set[typing.SupportsInt | typing.SupportsIndex]) -> None: ...
    @property
    def token_text(self) -> collections.abc.Callable[[typing.SupportsInt | typing.SupportsIndex], str]: ...
    @token_text.setter
    def token_text(self, arg0: collections.abc.Callable[[int], str]) -> None: ...
    @property
    def vocab_size(self) -> int: ...
    @vocab_size.setter
    def vocab_size(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...

class LibraryTokenizer(Tokenizer):
    def __init__(self, calls: LibraryCalls) -> None: ...

class RecordError:
    def __str__(self) -> str: ...
    @property
    def always_stops(self) -> bool: ...
    @property
    def byte(self) -> int: ...
    @property
    def excerpt(self) -> str: ...
    @property
    def file(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def line(self) -> int: ...
    @property
    def message(self) -> int: ...
    @property
    def record(self) -> int: ...
    @property
    def remark(self) -> str: ...

class ReportEntry:
    @property
    def actions(self) -> dict[str, int]: ...
    @property
    def count(self) -> int: ...
    @property
    def first(self) -> list[str]: ...
    @property
    def reason(self) -> str: ...

class FormatUse:
    @property
    def column(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def num_records(self) -> int: ...
    @property
    def title(self) -> str: ...
    @property
    def unused(self) -> list[str]: ...

class DataReport:
    @staticmethod
    def from_json(text: str) -> DataReport: ...
    def append(self, next: DataReport) -> None: ...
    def summary(self) -> str: ...
    def to_json(self) -> str: ...
    @property
    def dropped(self) -> list[int]: ...
    @property
    def entries(self) -> dict[str, ReportEntry]: ...
    @property
    def formats(self) -> list[FormatUse]: ...
    @property
    def num_dropped(self) -> int: ...
    @property
    def num_excluded(self) -> int: ...
    @property
    def num_kept(self) -> int: ...
    @property
    def num_learned(self) -> int: ...
    @property
    def num_records(self) -> int: ...
    @property
    def num_salvaged(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_truncated(self) -> int: ...
    @property
    def num_whole(self) -> int: ...
    @property
    def num_without_labels(self) -> int: ...
    @property
    def warnings(self) -> list[str]: ...

class BosRule:
    """
    Members:

      TOKENIZER

      FIRST_TURN

      EACH_TURN
    """

    EACH_TURN: typing.ClassVar[BosRule]
    FIRST_TURN: typing.ClassVar[BosRule]
    TOKENIZER: typing.ClassVar[BosRule]
    __members__: typing.ClassVar[dict[str, BosRule]]
    @typing.overload
    def __eq__(self, other: BosRule) -> bool: ...
    @typing.overload
    def __eq__(self, other: typing.Any) -> bool: ...
    def __getstate__(self) -> int: ...
    def __hash__(self) -> int: ...
    def __index__(self) -> int: ...
    def __init__(self, value: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    def __int__(self) -> int: ...
    @typing.overload
    def __ne__(self, other: BosRule) -> bool: ...
    @typing.overload
    def __ne__(self, other: typing.Any) -> bool: ...
    def __repr__(self) -> str: ...
    def __setstate__(self, state: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    def __str__(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...

class ChatTemplate:
    @property
    def after_stop(self) -> str: ...
    @property
    def after_system(self) -> str: ...
    @property
    def after_user(self) -> str: ...
    @property
    def aliases(self) -> list[str]: ...
    @property
    def before_assistant(self) -> str: ...
    @property
    def before_stop(self) -> str: ...
    @property
    def before_system(self) -> str: ...
    @property
    def before_user(self) -> str: ...
    @property
    def bos(self) -> BosRule: ...
    @property
    def empty_assistant(self) -> str: ...
    @property
    def empty_user(self) -> str: ...
    @property
    def has_fastchat_labels(self) -> bool: ...
    @property
    def jinja_digests(self) -> list[str]: ...
    @property
    def learned_lead(self) -> int: ...
    @property
    def stop_token(self) -> str: ...
    @property
    def strips(self) -> bool: ...
    @property
    def system(self) -> str: ...
    @property
    def system_in_user(self) -> bool: ...

class LabelOptions:
    def __init__(
        self,
        *,
        mask_policy: str = "fastchat",
        chat_template: str = "vicuna_v1.1",
        max_length: typing.SupportsInt | typing.SupportsIndex,
        pad_id: typing.SupportsInt | typing.SupportsIndex = -1,
        num_threads: typing.SupportsInt | typing.SupportsIndex = 0,
        train_turns: str = "all",
        role_map: collections.abc.Mapping[str, str] = {},
        role_aliases: bool = False,
        on_bad_sample: str = "error",
        overlong: str = "truncate",
        chat_template_digest: str = "",
        stop_token: str = "",
        template_fields: collections.abc.Sequence[str] = [],
        template_date: str = "",
        call_stop_token: str = "",
        boundary_tokens: str = "merge",
        learn: str = "all",
        learn_tool_calls: bool = True,
        learn_thoughts: str = "all",
        default_system: str = "",
    ) -> None: ...
    @property
    def boundary_tokens(self) -> str: ...
    @property
    def call_stop_token(self) -> str: ...
    @property
    def chat_template(self) -> str: ...
    @property
    def default_system(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def learn(self) -> str: ...
    @property
    def learn_thoughts(self) -> str: ...
    @property
    def learn_tool_calls(self) -> bool: ...
    @property
    def mask_policy(self) -> str: ...
    @property
    def max_length(self) -> int: ...
    @property
    def pad_id(self) -> int: ...
    @property
    def stop_token(self) -> str: ...
    @property
    def template_date(self) -> str: ...
    @property
    def train_turns(self) -> str: ...

class RecordIssue:
    @property
    def action(self) -> str: ...
    @property
    def message(self) -> int: ...
    @property
    def reason(self) -> str: ...
    @property
    def remark(self) -> str: ...

class Explanation:
    @property
    def faults(self) -> list[RecordError]: ...
    @property
    def findings(self) -> list[RecordIssue]: ...
    @property
    def name(self) -> str: ...
    @property
    def num_cut(self) -> int: ...
    @property
    def outcome(self) -> str: ...
    @property
    def segments(self) -> list[tuple[int, int, bool, bool]]: ...
    @property
    def text(self) -> str: ...
    @property
    def text_bytes(self) -> bytes: ...
    @property
    def tokens(self) -> list[tuple[int, int, int, bool]]: ...

class Labeller:
    def __init__(
        self,
        tokenizer: Tokenizer,
        options: LabelOptions,
        render: collections.abc.Callable[..., typing.Any] | None = None,
    ) -> None: ...
    @property
    def options(self) -> LabelOptions: ...

class StateOptions:
    """
    How parameters, gradients and optimizer state are held. Never changes; `replace` makes another one.
    """
    def __eq__(self, arg0: typing.Any) -> bool: ...
    def __hash__(self) -> int: ...
    def __init__(
        self,
        *,
        strategy: str = "no_shard",
        optimizer: str = "adamw",
        compute_dtype: str = "float32",
        grad_dtype: str = "float32",
        optim_dtype: str = "float32",
        master_dtype: str = "float32",
        offload: bool = False,
        frozen_dtype: str = "compute",
        sync_each_batch: bool = True,
        tile_tokens: typing.SupportsInt | typing.SupportsIndex = 0,
        offload_inputs: bool = False,
        context_parallel_size: typing.SupportsInt | typing.SupportsIndex = 1,
        fp8: str = "none",
        fp8_format: str = "e4m3",
        fp8_wgrad: bool = False,
        num_layers_at_start_in_bf16: typing.SupportsInt | typing.SupportsIndex = 0,
        num_layers_at_end_in_bf16: typing.SupportsInt | typing.SupportsIndex = 0,
        keep_fp8_weights: bool = False,
    ) -> None:
        """
        ValueError for a dtype that an option does not have.
        """
    def __repr__(self) -> str: ...
    def check(self) -> None:
        """
        Check that the options go together, as an engine does. ValueError if not.
        """
    def replace(
        self,
        *,
        strategy: str | None = None,
        optimizer: str | None = None,
        compute_dtype: str | None = None,
        grad_dtype: str | None = None,
        optim_dtype: str | None = None,
        master_dtype: str | None = None,
        offload: bool | None = None,
        frozen_dtype: str | None = None,
        sync_each_batch: bool | None = None,
        tile_tokens: typing.SupportsInt | typing.SupportsIndex | None = None,
        offload_inputs: bool | None = None,
        context_parallel_size: typing.SupportsInt | typing.SupportsIndex | None = None,
        fp8: str | None = None,
        fp8_format: str | None = None,
        fp8_wgrad: bool | None = None,
        num_layers_at_start_in_bf16: typing.SupportsInt | typing.SupportsIndex | None = None,
        num_layers_at_end_in_bf16: typing.SupportsInt | typing.SupportsIndex | None = None,
        keep_fp8_weights: bool | None = None,
    ) -> StateOptions:
        """
        A copy with other values; None: as it is here.
        """
    @property
    def compute_dtype(self) -> str:
        """
        of activations and of the weights in use
        """
    @property
    def context_parallel_size(self) -> int:
        """
        ranks that share the tokens of a micro-batch
        """
    @property
    def fp8(self) -> str:
        """
        scales of 8-bit floats in the blocks' linears; none: no fp8
        """
    @property
    def fp8_format(self) -> str:
        """
        hybrid: output gradients are e5m2, not e4m3
        """
    @property
    def fp8_wgrad(self) -> bool:
        """
        weight gradients are products of 8 bits, too
        """
    @property
    def frozen_dtype(self) -> str:
        """
        of a block's linears that nothing updates
        """
    @property
    def grad_dtype(self) -> str:
        """
        of the accumulated gradient
        """
    @property
    def grad_itemsize(self) -> int:
        """
        Bytes of an element of the accumulated gradient.
        """
    @property
    def itemsize(self) -> int:
        """
        Bytes of a parameter that is computed with.
        """
    @property
    def keep_fp8_weights(self) -> bool:
        """
        weights in 8 bits are kept until they change
        """
    @property
    def master_dtype(self) -> str:
        """
        of the masters of bfloat16 or float16
        """
    @property
    def master_itemsize(self) -> int:
        """
        Bytes of a master, or of its lower half; 0 where the master itself is computed with.
        """
    @property
    def num_layers_at_end_in_bf16(self) -> int:
        """
        blocks without fp8
        """
    @property
    def num_layers_at_start_in_bf16(self) -> int:
        """
        blocks without fp8
        """
    @property
    def offload(self) -> bool:
        """
        moments, and masters of narrow weights, are on the host
        """
    @property
    def offload_inputs(self) -> bool:
        """
        inputs of blocks are on the host from forward to backward
        """
    @property
    def optim_dtype(self) -> str:
        """
        of the moments of adamw
        """
    @property
    def optimizer(self) -> str:
        """
        what updates the weights
        """
    @property
    def strategy(self) -> str:
        """
        sharding strategy; on one rank all are no_shard
        """
    @property
    def sync_each_batch(self) -> bool:
        """
        sharded gradients are reduced in every micro-batch, not whole in float32 until the last
        """
    @property
    def tile_tokens(self) -> int:
        """
        the most tokens that norms, linears and the MLP compute at once; 0: a micro-batch
        """

class AdapterLinear:
    """
    A low-rank adapter of a linear module: scale * dropout(x) A^T B^T.
    """

    __hash__: typing.ClassVar[None] = None  # type: ignore[assignment]
    def __eq__(self, arg0: typing.Any) -> typing.Any: ...
    def __init__(
        self,
        module: str,
        *,
        rank: typing.SupportsInt | typing.SupportsIndex,
        scale: typing.SupportsFloat | typing.SupportsIndex,
    ) -> None: ...
    def __repr__(self) -> str: ...
    @property
    def module(self) -> str:
        """
        "model.layers.0.self_attn.q_proj"
        """
    @property
    def rank(self) -> int: ...
    @property
    def scale(self) -> float: ...

class AdapterOptions:
    """
    What is trained next to a frozen model; empty: the whole model, without adapters. Never changes.
    """

    __hash__: typing.ClassVar[None] = None  # type: ignore[assignment]
    def __bool__(self) -> bool: ...
    def __eq__(self, arg0: typing.Any) -> typing.Any: ...
    def __init__(
        self,
        *,
        linears: collections.abc.Sequence[AdapterLinear] = [],
        dropout: typing.SupportsFloat | typing.SupportsIndex = 0.0,
        trained: collections.abc.Sequence[str] = [],
    ) -> None: ...
    def __repr__(self) -> str: ...
    @property
    def dropout(self) -> float:
        """
        of what adapters read
        """
    @property
    def linears(self) -> list[AdapterLinear]: ...
    @property
    def trained(self) -> list[str]:
        """
        names of the model's parameters that are trained, too
        """

class Batch:
    """
    A micro-batch without padding, on the device: conversations end to end.
    """
    @property
    def boundaries(self) -> list[int]:
        """
        cu_seqlens on the host, as a list
        """
    @property
    def cu_seqlens(self) -> torch.Tensor:
        """
        [conversations + 1] int32
        """
    @property
    def input_ids(self) -> torch.Tensor:
        """
        [tokens] int64
        """
    @property
    def is_key(self) -> torch.Tensor:
        """
        [tokens] uint8, or [0] where all are keys
        """
    @property
    def label_positions(self) -> torch.Tensor:
        """
        [labels] int64
        """
    @property
    def max_seqlen(self) -> int:
        """
        the longest conversation
        """
    @property
    def positions(self) -> torch.Tensor:
        """
        [tokens] int32; restart at each conversation
        """
    @property
    def targets(self) -> torch.Tensor:
        """
        [labels] int64
        """
    @property
    def token_weights(self) -> torch.Tensor:
        """
        [labels] float32
        """

class UnitAccess:
    """
    The flat units of a called model; valid during the call only.
    """
    def adds_to_gradient(
        self,
        unit: typing.SupportsInt | typing.SupportsIndex,
        offset: typing.SupportsInt | typing.SupportsIndex,
    ) -> bool:
        """
        Whether the next write at offset adds to what is there; asked once a write.
        """
    def gather(self, unit: typing.SupportsInt | typing.SupportsIndex) -> torch.Tensor:
        """
        The whole flat parameters, valid until `release`; collective.
        """
    def gather_frozen(self, unit: typing.SupportsInt | typing.SupportsIndex) -> torch.Tensor:
        """
        As `gather`, of what nothing updates.
        """
    def gradient(self, unit: typing.SupportsInt | typing.SupportsIndex) -> torch.Tensor:
        """
        The whole flat gradient, float32, to write into until `reduce`.
        """
    def prefetch(self, unit: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Starts gathering; collective.
        """
    def prefetch_frozen(self, unit: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        As `prefetch`.
        """
    def reduce(
        self,
        unit: typing.SupportsInt | typing.SupportsIndex,
        places: collections.abc.Sequence[
            tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]
        ],
    ) -> None:
        """
        The unit's gradient is complete; of places (offset, elements), those that nothing was
        written to become zero. Collective.
        """
    def release(self, unit: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    def release_frozen(self, unit: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def frozen_by_ranges(self) -> bool:
        """
        Units that nothing updates are whole between gather and release only.
        """
    @property
    def replicated(self) -> bool:
        """
        Every rank has all units whole, all the time.
        """

class GenericModel:
    """
    A model whose forward and backward are called in Python.
    """
    def __init__(
        self,
        *,
        units: collections.abc.Sequence[
            tuple[
                str,
                collections.abc.Sequence[
                    collections.abc.Sequence[
                        tuple[
                            str,
                            collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
                            bool,
                            bool,
                            bool,
                            bool,
                            typing.SupportsInt | typing.SupportsIndex,
                        ]
                    ]
                ],
            ]
        ],
        frozen: collections.abc.Sequence[
            tuple[
                str,
                collections.abc.Sequence[
                    collections.abc.Sequence[
                        tuple[
                            str,
                            collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
                            bool,
                            bool,
                            bool,
                            bool,
                            typing.SupportsInt | typing.SupportsIndex,
                        ]
                    ]
                ],
            ]
        ],
        vocab_size: typing.SupportsInt | typing.SupportsIndex,
        embedding_parameters: typing.SupportsInt | typing.SupportsIndex,
        calls: typing.Any,
    ) -> None:
        """
        units: (name, parameters), the first one whole throughout a micro-batch. A parameter:
        its tensors end to end, (name, shape, decays, is_adapter, is_held, is_embedding,
        file_order), the last their number in files; adapters are in no file of the model, held
        ones keep their values. frozen: the same of what nothing updates. calls: has
        forward_backward, forward_loss and logits (csrc/bindings/python_model.h).
        """
    @property
    def frozen_places(self) -> list[list[tuple[str, list[int], int]]]:
        """
        The same of `frozen`.
        """
    @property
    def places(self) -> list[list[tuple[str, list[int], int]]]:
        """
        Of every unit the tensors: (name, shape, first element).
        """

class HeldTensors:
    def __init__(self, tensors: collections.abc.Sequence[torch.Tensor]) -> None: ...

class SyncPiece:
    @property
    def begin(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def tensor(self) -> int: ...

class SyncBucket:
    @property
    def bytes(self) -> int: ...
    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...
    @property
    def pieces(self) -> list[SyncPiece]: ...

class SyncPlan:
    def __init__(
        self,
        tensors: collections.abc.Sequence[
            tuple[str, str, collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]]
        ],
        tied: collections.abc.Sequence[tuple[str, str]] = [],
    ) -> None: ...
    def __len__(self) -> int: ...
    def difference(self, other: SyncPlan, ours: str = "this plan", theirs: str = "the other plan") -> str: ...
    def native_buckets(self, bucket_bytes: typing.SupportsInt | typing.SupportsIndex) -> list[SyncBucket]: ...
    def tensor_batches(self, batch_bytes: typing.SupportsInt | typing.SupportsIndex) -> list[SyncBucket]: ...
    def vllm_chunks(self, buffer_bytes: typing.SupportsInt | typing.SupportsIndex) -> list[SyncBucket]: ...
    @property
    def hash(self) -> str: ...
    @property
    def sizes(self) -> list[int]: ...
    @property
    def tensors(self) -> list[tuple[str, str, list[int]]]: ...
    @property
    def tied(self) -> list[tuple[str, str]]: ...
    @property
    def total_bytes(self) -> int: ...

class OwnedBytes:
    pass

class DataInput:
    @typing.overload
    def __init__(
        self,
        name: str,
        path: str,
        weight: typing.SupportsFloat | typing.SupportsIndex = 1.0,
        max_record_bytes: typing.SupportsInt | typing.SupportsIndex = 4294967295,
        data_format: str = "auto",
    ) -> None: ...
    @typing.overload
    def __init__(
        self,
        name: str,
        read: collections.abc.Callable[[int], bytes],
        weight: typing.SupportsFloat | typing.SupportsIndex = 1.0,
        max_record_bytes: typing.SupportsInt | typing.SupportsIndex = 4294967295,
        data_format: str = "auto",
    ) -> None: ...
    @property
    def name(self) -> str: ...

class LabelledData:
    @property
    def bad_records(self) -> memoryview: ...
    @property
    def dataset(self) -> TokenDataset: ...
    @property
    def faults(self) -> list[RecordError]: ...
    @property
    def num_faults(self) -> int: ...
    @property
    def report(self) -> DataReport: ...

class DamagedCacheError(RuntimeError):
    pass

class CacheWriteError(RuntimeError):
    pass

class TokenCacheWriter:
    def __init__(self, directory: str) -> None: ...
    def commit(self, key: str, report: str) -> str: ...

class TokenCache:
    @property
    def bad_records(self) -> memoryview: ...
    @property
    def dataset(self) -> TokenDataset: ...
    @property
    def report(self) -> bytes: ...

class DataCounts:
    @property
    def num_messages(self) -> int: ...
    @property
    def num_records(self) -> int: ...
    @property
    def num_text_bytes(self) -> int: ...

class DataFormat:
    @property
    def fields(self) -> str: ...
    @property
    def names(self) -> list[str]: ...
    @property
    def title(self) -> str: ...

class ConvertSummary:
    @property
    def faults(self) -> list[RecordError]: ...
    @property
    def formats(self) -> list[FormatUse]: ...
    @property
    def num_faults(self) -> int: ...
    @property
    def num_records(self) -> int: ...
    @property
    def num_written(self) -> int: ...

class SurveyChoice:
    def __init__(
        self,
        *,
        count: typing.SupportsInt | typing.SupportsIndex = 5,
        seed: typing.SupportsInt | typing.SupportsIndex | None = None,
        id: str | None = None,
        only: str | None = None,
        whole: bool = False,
    ) -> None: ...

class SurveyedRecord:
    @property
    def byte(self) -> int: ...
    @property
    def explanation(self) -> Explanation: ...
    @property
    def file(self) -> str: ...
    @property
    def id(self) -> bytes: ...
    @property
    def json(self) -> bytes: ...
    @property
    def line(self) -> int: ...
    @property
    def messages(self) -> list[tuple[bytes, bytes]]: ...
    @property
    def number(self) -> int: ...
    @property
    def rows(self) -> list[Explanation]: ...

class Survey:
    @property
    def chosen(self) -> list[SurveyedRecord]: ...
    @property
    def faults(self) -> list[RecordError]: ...
    @property
    def learned(self) -> dict[int, int]: ...
    @property
    def lengths(self) -> dict[int, int]: ...
    @property
    def num_faults(self) -> int: ...
    @property
    def num_matching(self) -> int: ...
    @property
    def report(self) -> DataReport: ...

class StepResult:
    """
    Of one optimizer step, over all ranks.
    """
    @property
    def finite(self) -> bool:
        """
        False: nothing was updated
        """
    @property
    def grad_norm(self) -> float:
        """
        L2 norm before clipping
        """
    @property
    def loss(self) -> float:
        """
        sum of weight * cross entropy
        """

class ReplayDigests:
    """
    CRC-32C of two computations of one step on this rank: (first, second)
    """
    @property
    def own(self) -> tuple[int, int]:
        """
        of the loss and what the rank gave to the sums over ranks
        """
    @property
    def reduced(self) -> tuple[int, int]:
        """
        of gradients after their reduction
        """

class UnitDigest:
    """
    CRC-32C of one unit.
    """
    @property
    def parameters(self) -> int:
        """
        of the whole unit in use
        """
    @property
    def shard(self) -> int:
        """
        ranks with the same one hold the same state
        """
    @property
    def state(self) -> int:
        """
        of master and optimizer state of this rank
        """
    @property
    def unit(self) -> str:
        """
        name
        """

class RecordedSpan:
    """
    Work between two times.
    """
    @property
    def began(self) -> int: ...
    @property
    def begin_ns(self) -> int: ...
    @property
    def end_ns(self) -> int: ...
    @property
    def ended(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def track(self) -> str: ...

class Engine:
    """
    The model with parameters, gradients and optimizer state of this rank.
    Collective methods are called by every rank in one order. Not for two threads.
    """
    def __init__(
        self,
        config_json: str,
        state: StateOptions = ...,
        *,
        adapters: AdapterOptions = ...,
        device: str = "cpu",
        recompute: str = "selective",
        gather_group: str = "",
        reduce_group: str = "",
        num_threads: typing.SupportsInt | typing.SupportsIndex = 0,
        max_positions: typing.SupportsInt | typing.SupportsIndex = 0,
        results_behind: typing.SupportsInt | typing.SupportsIndex | None = None,
        prefetch: bool = True,
        timeout_seconds: typing.SupportsFloat | typing.SupportsIndex = 0.0,
        node_gather_group: str = "",
        node_reduce_group: str = "",
        across_group: str = "",
        context_group: str = "",
        blocking: bool = False,
        model: GenericModel | None = None,
    ) -> None:
        """
        config_json: of a Hugging Face directory. adapters: what is trained; empty: everything.
        Groups: names of c10d's; empty: one rank, or one node. model: computes in place of the
        native one of config_json. ValueError for what the model or the options do not allow.
        """
    def begin_step(
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
        rounding_seed: typing.SupportsInt | typing.SupportsIndex = 0,
        loss_limit: typing.SupportsFloat | typing.SupportsIndex = ...,
        replay: bool = False,
        noise: typing.SupportsFloat | typing.SupportsIndex = 0.0,
        noise_seed: typing.SupportsInt | typing.SupportsIndex = 0,
        find_packed: bool = False,
        dropout_seed: typing.SupportsInt | typing.SupportsIndex = 0,
        loss_scale: typing.SupportsFloat | typing.SupportsIndex = 1.0,
    ) -> None:
        """
        Starts one optimizer step. micro_batches: int64 arrays of rows, as many on every rank, an
        empty one allowed; weights: float64 arrays that multiply the rows' token losses. noise:
        magnitude on the embeddings, 0: none. replay: computed twice and compared. A loss
        above loss_limit changes nothing. loss_scale: multiplies the loss in backward, is
        taken off before the update. ValueError for rows that are not there; collective.
        """
    def compile_attention(
        self, shapes: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]
    ) -> int:
        """
        Compiles cuDNN's attention for [conversations, longest, ...]; counts what it takes.
        """
    def gradients(
        self,
        dataset: TokenDataset,
        rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
        weights: typing.Annotated[numpy.typing.ArrayLike, numpy.float64],
        *,
        label_smoothing: typing.SupportsFloat | typing.SupportsIndex = 0.0,
        find_packed: bool = False,
        dropout_seed: typing.SupportsInt | typing.SupportsIndex | None = None,
    ) -> tuple[float, dict[str, torch.Tensor]]:
        """
        (loss, float32 gradients by name), summed over ranks, without an update; collective.
        dropout_seed: of the adapters' dropout, None: without it.
        """
    def logits(
        self,
        input_ids: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
        lengths: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    ) -> torch.Tensor:
        """
        [tokens, vocab_size] float32 on the CPU. lengths add up to the number of ids. Collective.
        """
    def loss(
        self,
        dataset: TokenDataset,
        rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
        weights: typing.Annotated[numpy.typing.ArrayLike, numpy.float64],
        *,
        label_smoothing: typing.SupportsFloat | typing.SupportsIndex = 0.0,
        find_packed: bool = False,
    ) -> float:
        """
        This rank's sum of weight * cross entropy, without gradients; collective.
        """
    def memory(self) -> dict[str, int]:
        """
        Bytes that this rank holds now, by what they are for.
        """
    def named_parameters(self) -> dict[str, torch.Tensor]:
        """
        float32 copies on the CPU, whole, by name; collective.
        """
    def publish(self) -> None:
        """
        What is computed with follows the masters; collective.
        """
    def reserve(
        self,
        *,
        micro_batch: tuple[
            typing.SupportsInt | typing.SupportsIndex,
            typing.SupportsInt | typing.SupportsIndex,
            typing.SupportsInt | typing.SupportsIndex,
        ],
        step: tuple[
            typing.SupportsInt | typing.SupportsIndex,
            typing.SupportsInt | typing.SupportsIndex,
            typing.SupportsInt | typing.SupportsIndex,
        ],
    ) -> None:
        """
        Makes all memory of training. micro_batch: the most (tokens, labels, longest
        conversation); step: the most (tokens, labels, micro-batches) of this rank.
        """
    def row_logits(
        self,
        dataset: TokenDataset,
        rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
        *,
        find_packed: bool = False,
    ) -> torch.Tensor:
        """
        As logits, of all tokens of the rows.
        """
    def set_parameter(self, name: str, value: torch.Tensor) -> None:
        """
        Copies this rank's part of a whole tensor, of any floating dtype and device; `publish`
        follows after the last one. ValueError for an unknown name or another shape.
        """
    def set_sync_each_batch(self, each: bool) -> None:
        """
        StateOptions.sync_each_batch from the next step on.
        """
    def set_tile_tokens(self, most: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        StateOptions.tile_tokens from the next step on.
        """
    def start_trace(self, *, capacity: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Records the newest `capacity` spans of this process from now on.
        """
    def state_digests(self) -> list[UnitDigest]:
        """
        Of every unit; collective.
        """
    def stop_trace(self) -> list[RecordedSpan]:
        """
        The spans; waits for the device.
        """
    def take_results(self, *, all: bool) -> list[StepResult]:
        """
        Results of steps, oldest first, each once: without those in flight, or all of them.
        """
    def trained_parameters(self) -> dict[str, torch.Tensor]:
        """
        The same of what is trained.
        """
    def tune_gemms(
        self,
        dataset: TokenDataset,
        rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
        weights: typing.Annotated[numpy.typing.ArrayLike, numpy.float64],
    ) -> None:
        """
        Measures the matrix products of a micro-batch on a GPU that have no entry in
        `tuned_gemms` yet. Changes no parameter and no state; collective.
        """
    def use_cudnn(self, use: bool) -> None:
        """
        Attention on a GPU is by cuDNN from here on, where it takes the rows; False: by flash
        attention, as at first.
        """
    @property
    def adapters(self) -> AdapterOptions: ...
    @property
    def config_json(self) -> str: ...
    @property
    def context_parallel_size(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def num_non_embedding_parameters(self) -> int: ...
    @property
    def num_parameters(self) -> int:
        """
        With adapters.
        """
    @property
    def num_trained_parameters(self) -> int: ...
    @property
    def parameter_shapes(self) -> dict[str, list[int]]: ...
    @property
    def rank(self) -> int: ...
    @property
    def replay_digests(self) -> ReplayDigests:
        """
        What the last step with `replay` found on this rank.
        """
    @property
    def step_count(self) -> int:
        """
        Optimizer steps that updated; of a resumed run it is set.
        """
    @step_count.setter
    def step_count(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def trained_shapes(self) -> dict[str, list[int]]:
        """
        As parameter_shapes, of what is trained.
        """
    @property
    def unit_hashes(self) -> list[str]:
        """
        Of names, shapes and offsets; equal for every number of ranks.
        """
    @property
    def unit_names(self) -> list[str]: ...
    @property
    def unit_sizes(self) -> list[int]:
        """
        Elements without padding.
        """
    @property
    def vocab_size(self) -> int: ...
    @property
    def world_size(self) -> int: ...

class MemoryPlan:
    """
    Bytes of one rank.
    """
    @property
    def host(self) -> int:
        """
        page-locked, with a GPU
        """
    @property
    def outside(self) -> int:
        """
        held next to it
        """
    @property
    def parts(self) -> dict[str, int]:
        """
        by what they are for; they add up to peak
        """
    @property
    def peak(self) -> int:
        """
        the most of torch's allocator at once
        """

class AllocationMeter:
    """
    Counts what torch's CPU allocator hands out, in all threads.
    """
    @staticmethod
    def count() -> int:
        """
        Pieces of memory since start.
        """
    @staticmethod
    def held() -> int:
        """
        Bytes now.
        """
    @staticmethod
    def peak() -> int:
        """
        The most bytes at once since start.
        """
    @staticmethod
    def start() -> None:
        """
        From zero. ValueError while it runs.
        """
    @staticmethod
    def stop() -> None:
        """
        Counts stay; memory stays valid.
        """

class WeightLoader:
    """
    Fills the masters of this rank, or a moment of AdamW, from whole
    tensors; not collective.
    """
    def __init__(self, engine: Engine, target: str = "master") -> None:
        """
        target: master, exp_avg or exp_avg_sq; moments are those of what is trained.
        """
    def finish(self, where: str) -> list[str]:
        """
        Names that were ignored on purpose. ValueError for missing and unknown tensors.
        """
    def set(self, name: str, tensor: torch.Tensor, where: str) -> None:
        """
        A contiguous tensor on the CPU; where: its file, for messages. ValueError for another
        shape or dtype.
        """

class TextDecoder:
    """
    A model of a native family that continues one text; keys and values are kept.
    """
    def __init__(self, config_json: str, *, dtype: str = "float32", device: str = "cpu") -> None:
        """
        config_json: text of config.json. dtype: float32 or bfloat16. ValueError for a family
        or a setting that has no native form.
        """
    def load(self, directory: str) -> list[str]:
        """
        Read the safetensors weights of a model directory, on this rank alone. Returns
        sentences that the user should see. ValueError when they do not fit the config.
        """
    def loader(self) -> WeightLoader:
        """
        A WeightLoader of its weights, instead of `load`.
        """
    def read(self, ids: typing.Annotated[numpy.typing.ArrayLike, numpy.int64]) -> torch.Tensor:
        """
        Read token ids (int64 [n], n >= 1) after those before. Returns the logits of the next
        token, float32 [vocab_size] on the device. ValueError for an id outside the vocabulary.
        """
    def truncate(self, length: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Forget all but the first `length` tokens. ValueError when there are fewer.
        """
    @property
    def length(self) -> int:
        """
        Number of tokens read.
        """

class CheckpointStaging:
    """
    A host copy of what this rank writes of a checkpoint.
    """
    def __init__(self, engine: Engine) -> None: ...
    def stage(self) -> None:
        """
        Copies what the engine holds now.
        """
    def write(
        self,
        directory: str,
        *,
        dtype: str,
        max_shard_size: typing.SupportsInt | typing.SupportsIndex,
        with_model: bool,
        with_state: bool,
    ) -> tuple[list[FileDigest], list[RangeDigest]]:
        """
        Writes the copy as write_part does, while training goes on.
        """
    @property
    def nbytes(self) -> int:
        """
        that the copy takes
        """

def available_bytes(path: str) -> int: ...
def balance(
    packing: collections.abc.Sequence[
        collections.abc.Sequence[collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]]
    ],
    lengths: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    cost: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex] = [1.0, 0.0],
) -> float: ...
def buffer_checksum(buffer: torch.Tensor, bytes: typing.SupportsInt | typing.SupportsIndex) -> int: ...
def byte_masks(finder: typing.SupportsInt | typing.SupportsIndex, data: str) -> list[tuple[int, int]]: ...
def canonical_template_name(name: str) -> str: ...
def carry_from_file(
    engine: Engine,
    name: str,
    dtype: str,
    shape: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
    path: str,
    begin: typing.SupportsInt | typing.SupportsIndex,
) -> None:
    """
    Saved models have this tensor as well: bytes of `path` from `begin` on, as they are.
    """

def carry_values(
    engine: Engine,
    name: str,
    dtype: str,
    shape: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
    data: bytes,
) -> None:
    """
    Saved models have this tensor as well.
    """

def chat_templates() -> list[str]: ...
def check_context_ranks(config_json: str | None, ranks: typing.SupportsInt | typing.SupportsIndex) -> None:
    """
    ValueError unless `ranks` can share a row; None: a model without a native engine.
    """

def check_model_part(
    engine: Engine, directory: str, *, dtype: str, max_shard_size: typing.SupportsInt | typing.SupportsIndex
) -> None:
    """
    Reads this rank's bytes back. RuntimeError names the file and what differs.
    """

def check_same_plan(hashes: collections.abc.Sequence[str]) -> None: ...
def classify_json(text: bytes, portable: bool = False) -> list[tuple[int, int, int]]: ...
def compute_dtype(engine: Engine) -> str: ...
def conversation_cost(config_json: str) -> tuple[float, float]:
    """
    Operations of a conversation of n tokens: (of each n, of each n * n).
    """

def convert_inputs(
    inputs: collections.abc.Sequence[DataInput],
    format: str,
    as_array: bool,
    write: collections.abc.Callable[[bytes], None],
    write_bad: collections.abc.Callable[[bytes], None],
    poll: collections.abc.Callable[[int, int], None] | None = None,
) -> ConvertSummary:
    """
    Records of any data format as ShareGPT or messages.

    `format`: "sharegpt" or "messages". `as_array`: one JSON array, else a record a line. `write` takes the
    bytes in order, `write_bad` lines as those of --report_bad for records that cannot be written.
    ValueError for data in which no record can be found.
    """

def copies_of_record(
    weight: typing.SupportsFloat | typing.SupportsIndex, number: typing.SupportsInt | typing.SupportsIndex
) -> int: ...
def count_data(
    inputs: collections.abc.Sequence[DataInput], num_threads: typing.SupportsInt | typing.SupportsIndex = 0
) -> DataCounts: ...
def count_parameters(config_json: str, *, adapters: AdapterOptions = ...) -> int:
    """
    ValueError for a configuration that the engine does not compute.
    """

def count_shared_rows(rows: TokenDataset, others: TokenDataset) -> int:
    """
    How many rows from which something is learned are rows of `others`, too.
    """

def count_trained_parameters(config_json: str, *, adapters: AdapterOptions = ...) -> int:
    """
    Those of them that are trained.
    """

def crc32c(data: bytes, previous: typing.SupportsInt | typing.SupportsIndex = 0) -> int: ...
def crc32c_combine(
    first: typing.SupportsInt | typing.SupportsIndex,
    second: typing.SupportsInt | typing.SupportsIndex,
    second_size: typing.SupportsInt | typing.SupportsIndex,
) -> int: ...
def crc32c_portable(data: bytes, previous: typing.SupportsInt | typing.SupportsIndex = 0) -> int: ...
def data_formats() -> list[str]: ...
def delete_directory(path: str) -> str: ...
def detect_data_format(input: DataInput) -> tuple[str, str]:
    """
    The data format of an input, which is read in part: its name, and that of its list of messages
    where it has one of its own, else "".
    """

def device_failure(error: str) -> str: ...
def digest_file(path: str) -> FileDigest: ...
def end_at_parents_sigterm() -> None: ...
def enter_phase(phase: str, *, timeout_seconds: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
def epoch_order(
    size: typing.SupportsInt | typing.SupportsIndex,
    seed: typing.SupportsInt | typing.SupportsIndex,
    epoch: typing.SupportsInt | typing.SupportsIndex,
) -> numpy.typing.NDArray[numpy.int64]: ...
def explain_record(
    record: str,
    labeller: Labeller,
    number: typing.SupportsInt | typing.SupportsIndex = 0,
    data_format: str = "sharegpt",
) -> Explanation:
    """
    One record (its JSON text) as a labeller sees it.

    `text`: what the model reads ("" where the record has no row); `segments`: (begin, end, is_data,
    is_learned) in bytes of it; `tokens`: (id, begin, end, is_learned), cut to max_length, without bytes
    for BOS; `num_cut`: tokens beyond; `outcome`: noted (kept), truncated, salvaged, unlabelled, dropped,
    excluded or stopped; `findings`: remark, action, message, reason; `faults`: what stops the run.
    ValueError for text that is no JSON. `data_format`: of its file, or "auto" for what the record says.
    """

def file_set_name() -> str: ...
def file_set_obstacle(parent: str, name: str) -> str: ...
def find_chat_template(name: str) -> ChatTemplate: ...
def find_data_format(name: str) -> DataFormat: ...
def find_string_special(text: bytes, portable: bool = False) -> tuple[int, bool]: ...
def finish_file_sets(parent: str, remove_useless: bool = False) -> list[BrokenFileSet]: ...
def gather_unit(
    engine: Engine, unit: typing.SupportsInt | typing.SupportsIndex, *, master: bool
) -> list[tuple[str, torch.Tensor]]: ...
def holds_manifest(path: str) -> bool: ...
def install_file_set(parent: str, name: str) -> str: ...
def is_our_model(directory: str) -> bool: ...
def is_train_mark(name: str) -> bool:
    """
    Whether a field of this name may say that its message or record is not learned.
    """

def join_ranges(ranges: collections.abc.Sequence[RangeDigest]) -> list[FileDigest]: ...
def join_rows(
    gathered: torch.Tensor,
    rows: collections.abc.Sequence[torch.Tensor],
    shapes: collections.abc.Sequence[collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]],
    world_size: typing.SupportsInt | typing.SupportsIndex,
) -> list[torch.Tensor]: ...
def judge_train_mark(name: str, json: str) -> str:
    """
    Why a record with this field must not be learned; "" where it may.
    """

def keep_file_set(parent: str, name: str) -> str: ...
def label_file(path: str, labeller: Labeller) -> LabelledData: ...
def label_inputs(
    inputs: collections.abc.Sequence[DataInput],
    labeller: Labeller,
    cache: TokenCacheWriter | None = None,
    poll: collections.abc.Callable[[int, int], None] | None = None,
) -> LabelledData: ...
def label_lists(sources: typing.Any, labeller: Labeller) -> LabelledData | None: ...
def label_text(text: str, labeller: Labeller, where: str = "conversations") -> LabelledData: ...
def list_checkpoints(output_directory: str, links: bool = False) -> list[str]: ...
def load_model(engine: Engine, directory: str) -> list[str]:
    """
    Reads the safetensors of a Hugging Face directory into the masters; collective. Returns
    what the user should know. ValueError for missing or unknown tensors and other shapes.
    """

def load_tokenizer(directory: str) -> tuple[Tokenizer, TokenizerFiles]: ...
def load_training_state(engine: Engine, directory: str) -> None:
    """
    Reads this rank's part from the files of any number of ranks, any strategy and other
    dtypes; collective. ValueError for missing files and another layout.
    """

def make_llama_tokenizer(vocab_file: str, settings: LlamaSettings) -> Tokenizer: ...
def micro_batch_count(
    size: typing.SupportsInt | typing.SupportsIndex,
    batch_size: typing.SupportsInt | typing.SupportsIndex,
    world_size: typing.SupportsInt | typing.SupportsIndex = 1,
    drop_last: bool = False,
) -> int: ...
def model_bytes(engine: Engine, dtype: str, max_shard_size: typing.SupportsInt | typing.SupportsIndex) -> int:
    """
    Of all files of the model together.
    """

def model_families() -> dict[str, str]:
    """
    model_type to the prefix of transformers' class names.
    """

def nested_path_inside(directory: str, name: str, where: str) -> str: ...
def note_progress() -> None: ...
def num_mask_finders() -> int: ...
def open_token_cache(path: str, key: str, verify: bool = True) -> TokenCache: ...
def optimizers() -> list[str]:
    """
    Names of optimizers, sorted: StateOptions.optimizer.
    """

def pack_best_fit(
    lengths: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    capacity: typing.SupportsInt | typing.SupportsIndex,
) -> tuple[numpy.typing.NDArray[numpy.int32], numpy.typing.NDArray[numpy.int64]]: ...
def pack_bucket(
    plan: SyncPlan,
    bucket: SyncBucket,
    first: typing.SupportsInt | typing.SupportsIndex,
    tensors: collections.abc.Sequence[torch.Tensor],
    buffer: torch.Tensor,
) -> None: ...
def pack_rows(
    rows: collections.abc.Sequence[torch.Tensor],
    shapes: collections.abc.Sequence[collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]],
    rank: typing.SupportsInt | typing.SupportsIndex,
    world_size: typing.SupportsInt | typing.SupportsIndex,
) -> torch.Tensor: ...
def pack_step(
    lengths: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    ranks: typing.SupportsInt | typing.SupportsIndex,
    micro_batch_tokens: typing.SupportsInt | typing.SupportsIndex,
    cost: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex] = [1.0, 0.0],
) -> list[list[list[int]]]: ...
def padded_rows(
    dataset: TokenDataset,
    begin: typing.SupportsInt | typing.SupportsIndex,
    end: typing.SupportsInt | typing.SupportsIndex,
    width: typing.SupportsInt | typing.SupportsIndex,
    pad_id: typing.SupportsInt | typing.SupportsIndex,
    mask_by_length: bool = False,
) -> tuple[
    numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.bool]
]: ...
def parallel_threads(num_threads: typing.SupportsInt | typing.SupportsIndex) -> int:
    """
    Threads that loops really run on when asked for num_threads.
    """

def parameter_shapes(config_json: str) -> list[tuple[str, list[int]]]:
    """
    (name, shape) in the order of the units. ValueError as count_parameters.
    """

def parse_json_tokenizer(text: str, where: str, settings: JsonTokenizerSettings) -> Tokenizer: ...
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
    cost: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex] = [1.0, 0.0],
    label_counts: typing.Annotated[numpy.typing.ArrayLike, numpy.int64] | None = None,
) -> GroupPlan: ...
def plan_memory(
    config_json: str,
    state: StateOptions = ...,
    *,
    adapters: AdapterOptions = ...,
    recompute: str = "selective",
    world_size: typing.SupportsInt | typing.SupportsIndex = 1,
    node_size: typing.SupportsInt | typing.SupportsIndex = 0,
    micro_batch: tuple[
        typing.SupportsInt | typing.SupportsIndex,
        typing.SupportsInt | typing.SupportsIndex,
        typing.SupportsInt | typing.SupportsIndex,
    ] = (0, 0, 0),
    step: tuple[
        typing.SupportsInt | typing.SupportsIndex,
        typing.SupportsInt | typing.SupportsIndex,
        typing.SupportsInt | typing.SupportsIndex,
    ] = (0, 0, 1),
    threads: typing.SupportsInt | typing.SupportsIndex = 1,
    on_cpu: bool = True,
    use_cudnn: bool = False,
    model: GenericModel | None = None,
) -> MemoryPlan:
    """
    Bytes of one rank. micro_batch: (tokens, labels, longest conversation), the largest of a
    rank; step: (tokens, labels, micro-batches) of a rank. ValueError for an unknown model,
    strategy or policy, and for nodes that do not divide the ranks. model: instead of the
    native one; its activations, labelled tokens and logits are not counted.
    """

def plan_shards(
    tensors: collections.abc.Sequence[tuple[str, typing.SupportsInt | typing.SupportsIndex]],
    max_bytes: typing.SupportsInt | typing.SupportsIndex,
) -> list[tuple[str, list[str]]]: ...
def protection_inside(directory: str) -> str: ...
def protection_of(path: str) -> str: ...
def publish_weights(engine: Engine) -> None:
    """
    What is computed with follows the masters; collective.
    """

def put_aside(path: str) -> str: ...
def rank_micro_batches(
    order: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    batch_size: typing.SupportsInt | typing.SupportsIndex,
    rank: typing.SupportsInt | typing.SupportsIndex = 0,
    world_size: typing.SupportsInt | typing.SupportsIndex = 1,
    drop_last: bool = False,
) -> list[numpy.typing.NDArray[numpy.int64]]: ...
def rank_status() -> str: ...
def read_json_tokenizer(path: str, settings: JsonTokenizerSettings) -> Tokenizer: ...
def read_manifest(directory: str, name: str = "manifest.json") -> Manifest: ...
def read_weight_map(directory: str) -> dict[str, str]: ...
def recompute_policies() -> list[str]:
    """
    From the most memory to the most time.
    """

def reference_group(
    order: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    step: typing.SupportsInt | typing.SupportsIndex,
    accumulation: typing.SupportsInt | typing.SupportsIndex,
    batch_size: typing.SupportsInt | typing.SupportsIndex,
    world_size: typing.SupportsInt | typing.SupportsIndex = 1,
    drop_last: bool = False,
) -> list[list[list[int]]]: ...
def remove_leftovers(parent: str, unremoved: list[str] | None = None) -> list[str]: ...
def remove_named(directory: str, names: collections.abc.Sequence[str]) -> list[str]: ...
def replace_file(path: str, content: str) -> None: ...
def require_threads(count: typing.SupportsInt | typing.SupportsIndex, what: str) -> None: ...
def restore_replaced(parent: str, unremoved: list[str] | None = None) -> None: ...
def rotary_frequencies(config_json: str) -> tuple[list[float], float, int]:
    """
    Of each pair, the factor of cosine and sine, most positions (0: any). ValueError as count_parameters.
    """

def rotate_checkpoints(
    output_directory: str,
    limit: typing.SupportsInt | typing.SupportsIndex,
    kept: collections.abc.Sequence[str] = [],
    unremoved: list[str] | None = None,
) -> dict[str, str]: ...
def save_in_own_type(engine: Engine, name: str, dtype: str) -> None:
    """
    The tensor of this name is saved as float32, bfloat16 or float16, whatever the others are.
    """

def save_model(
    engine: Engine,
    directory: str,
    *,
    dtype: str = "float32",
    max_shard_size: typing.SupportsInt | typing.SupportsIndex = 5000000000,
    writes: bool | None = None,
) -> list[FileDigest]:
    """
    Writes the masters as files of a Hugging Face model; collective. dtype: float32,
    bfloat16 or float16; max_shard_size: bytes; writes: whether this rank does, None: rank 0.
    Returns digests of the files on the writers. All ranks raise when one fails.
    """

def save_training_state(engine: Engine, directory: str) -> FileDigest:
    """
    Writes masters and optimizer state of this rank, durable on return; not collective.
    """

def schedule_names() -> list[str]:
    """
    All of them, sorted.
    """

def set_place(
    rank: typing.SupportsInt | typing.SupportsIndex, world_size: typing.SupportsInt | typing.SupportsIndex
) -> None: ...
def set_tuned_gemms(json: str) -> None:
    """
    Products run by these from here on. ValueError for another text.
    """

def strategies() -> dict[str, bool]:
    """
    Names of sharding strategies, each with whether it shards within nodes.
    """

def strategies_with_whole_weights() -> list[str]:
    """
    Names of strategies under which every rank has all weights between micro-batches.
    """

def stream_training_state(engine: Engine, directory: str, *, writes: bool | None = None) -> list[FileDigest]:
    """
    Writes masters and optimizer state of all ranks as one file, durable on return; collective.
    """

def survey_inputs(
    inputs: collections.abc.Sequence[DataInput],
    labeller: Labeller,
    choice: SurveyChoice,
    poll: collections.abc.Callable[[int, int], None] | None = None,
) -> Survey: ...
def sync_directory(path: str) -> None: ...
def sync_file(path: str) -> None: ...
def takes_tiles(config_json: str) -> bool:
    """
    True if StateOptions.tile_tokens may be above 0 with this model.
    """

def trace_dropped() -> int:
    """
    Spans of the last trace that newer ones pushed out.
    """

def train_mark_stems() -> list[str]:
    """
    Parts of names of which each that is_train_mark accepts has one, in lower case.
    """

def trained_order(engine: Engine) -> list[tuple[str, bool]]:
    """
    (name, has weight decay) of what is trained, in the order of transformers' Llama.
    """

def tuned_gemms() -> str:
    """
    JSON array of this process's tuned products, by which it runs them on a GPU.
    """

def unit_layouts(
    config_json: str, *, adapters: AdapterOptions = ...
) -> list[tuple[str, str, int, list[tuple[str, list[int], int]]]]:
    """
    Units of what is trained with the places of their tensors. ValueError as count_parameters.
    """

def unit_tensors(engine: Engine) -> list[list[tuple[str, list[int]]]]: ...
def unpack_bucket(
    plan: SyncPlan,
    bucket: SyncBucket,
    first: typing.SupportsInt | typing.SupportsIndex,
    tensors: collections.abc.Sequence[torch.Tensor],
    buffer: torch.Tensor,
) -> None: ...
def verify_directory(directory: str, checksums: bool = True) -> list[str]: ...
def weight_files(directory: str) -> list[str]: ...
def write_file(path: str, content: str) -> FileDigest: ...
def write_part(
    engine: Engine,
    directory: str,
    *,
    dtype: str,
    max_shard_size: typing.SupportsInt | typing.SupportsIndex,
    with_model: bool,
    with_state: bool,
) -> tuple[list[FileDigest], list[RangeDigest]]:
    """
    Writes this rank's bytes of the model's files and its training state, durable on return;
    not collective. Returns digests: (own files, ranges of the model's files).
    """

cache_temporary_prefix: str
cuda_architectures: str
torch_version: str
with_cuda: bool
