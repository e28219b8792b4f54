"""Comparison of facts and files that all ranks must share; errors name the first difference."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import fastsft
from fastsft.ranks.comparison_text import difference
from fastsft.ranks.exchange import AllOrNone
from fastsft.ranks.process_group import gather_objects
from fastsft.ranks.store import machine
from fastsft.runtime.launch import launch
from fastsft.runtime.messages import tell
from fastsft.runtime.regular_files import check_regular

if TYPE_CHECKING:
    import torch

Facts = Mapping[str, object]
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_TOLD_BYTES = 1 << 30  # a message announces that this many bytes or more are read, which takes a while


def compare(what: str, find: Callable[[], Facts]) -> None:
    """Check that all ranks find the same facts, with equal values and types. Collective.

    find: returns the values by name, the most important first. Each key of a dictionary counts as a fact. An
    object that JSON cannot encode is compared by its `str`. Ranks first exchange one digest of all facts;
    they exchange the facts only if the digests differ. If facts differ, every rank raises the same
    ValueError. Its message has name, ranks and values of the first difference, and the names of further
    differences. If `find` fails on a rank, all ranks raise (`AllOrNone`). what: begins the message in that
    case.
    """
    if launch().world_size == 1:
        return
    agreement = AllOrNone(what)
    mine = agreement.attempt(lambda: {name: _text(value) for name, value in _flat(find())})
    digest = hashlib.sha256(json.dumps(mine).encode()).hexdigest()
    if len(set(agreement.settle(digest))) > 1:
        assert mine is not None  # else settle() raised
        raise ValueError(difference(dict(enumerate(gather_objects(mine)))))


def _flat(facts: Facts) -> Iterator[tuple[str, object]]:
    for name, value in facts.items():
        if isinstance(value, Mapping) and value:
            yield from _flat({f"{name}: {key}": item for key, item in value.items()})
        else:
            yield name, value


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=_plain)


def _plain(value: object) -> object:
    """Encode an object that JSON cannot encode; memory addresses, which differ between ranks, are removed."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return _ADDRESS.sub("", str(value))


# The identity of a file: machine, device, inode, size in bytes, and modification time in nanoseconds. If two
# ranks find the same identity, they share the file.
Identity: TypeAlias = tuple[str, int, int, int, int]


def common_digests(what: str, find: Callable[[], Iterable[Path]]) -> dict[str, str]:
    """Return a text for each file name; two ranks get equal texts only if their files are equal. Collective.

    find: returns the paths of this rank's files. what: begins the message if a rank cannot read its files. A
    file is not read if all ranks share it or if its sizes differ. Every other file is read by one of the
    ranks that share it. ValueError on every rank if any rank cannot read its files.
    """
    agreement = AllOrNone(what)
    paths = agreement.attempt(lambda: {path.name: path for path in find()}) or {}
    mine = agreement.attempt(lambda: {name: identity(path) for name, path in paths.items()})
    everyone: list[dict[str, Identity]] = [files or {} for files in agreement.settle(mine)]
    own = everyone[agreement.rank]
    readers = _readers(everyone, agreement.rank)
    _tell_of([own[name] for name in _differing(everyone)], what)
    to_read = [paths[name] for name, reader in readers.items() if reader == agreement.rank]
    checksums = agreement.settle(agreement.attempt(lambda: _checksums(to_read)))
    texts = {}
    for name, file in own.items():
        checksum = (checksums[readers[name]] or {})[name] if name in readers else ""
        texts[name] = f"{file[3]} bytes{checksum}"
    return texts


def identity(path: Path) -> Identity:
    """Return a file's identity; symbolic links are followed. ValueError unless it is a regular file."""
    check_regular(path, "a file of weights")
    status = os.stat(path)
    return machine(), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _differing(everyone: list[dict[str, Identity]]) -> list[str]:
    """Return the names of files that have the same size on all ranks, but are not one shared file."""
    first, *rest = everyone
    shared = [name for name in first if all(name in other for other in rest)]
    different = [name for name in shared if any(other[name] != first[name] for other in rest)]
    return [name for name in different if len({files[name][3] for files in everyone}) == 1]


def _readers(everyone: list[dict[str, Identity]], rank: int) -> dict[str, int]:
    """Return, for each file of `rank` that must be read, the rank that reads it.

    Ranks that share several files take turns.
    """
    readers = {}
    for number, name in enumerate(_differing(everyone)):
        mine = everyone[rank][name]
        sharing = [other for other, files in enumerate(everyone) if files[name] == mine]
        readers[name] = sharing[number % len(sharing)]
    return readers


def _checksums(paths: list[Path]) -> dict[str, str]:
    from fastsft import _C

    return {path.name: f", checksum {_C.digest_file(str(path)).crc32c:08x}" for path in paths}


def _tell_of(files: list[Identity], what: str) -> None:
    """Print on rank 0 that large files are being read."""
    total = sum(found[3] for found in files)
    if total >= _TOLD_BYTES:
        tell(
            f"{what}: ranks have copies of their own; {total / 1e9:.1f} GB are read to see that all are alike"
        )


# Ranks compare every field of the argument classes except these, each with the reason.
RANK_LOCAL = {
    "local_rank": "the place of the rank itself",
    "model_name_or_path": "machines may have copies in other places: what they hold is compared",
    "cache_dir": "the same, of models from the hub",
    "data_path": "the same",
    "eval_data_path": "the same",
    "data_cache": "a directory of each machine; whether there is one is compared",
    "report_bad": "rank 0 writes it",
    "report_to": "rank 0 alone reports to trackers",
    "logging_dir": "rank 0 writes it; its default has the time and the machine's name",
    "hub_token": "rank 0 uploads; a secret is not sent to other ranks",
    "push_to_hub_token": "the same",
    "log_level": "what each rank prints",
    "log_level_replica": "what each rank prints",
    "disable_tqdm": "what each rank prints",
    "plot_loss": "rank 0 draws",
    "profile": "each rank may write a timeline of its own, or none",
    "profile_steps": "the same",
}  # fmt: skip

# The versions of these libraries can change the order of rows, the tokens, and how a model directory is read.
_LIBRARIES = ("transformers", "tokenizers", "sentencepiece", "numpy", "safetensors", "accelerate", "datasets")

# Environment variables that change results or the messages between ranks. Thread counts such as
# OMP_NUM_THREADS change neither.
_VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_NCCL_USE_COMM_NONBLOCKING", "NCCL_ALGO", "NCCL_PROTO", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA",
    "ATEN_CPU_CAPABILITY", "ONEDNN_DEFAULT_FPMATH_MODE",
)  # fmt: skip


class SettledArguments(Protocol):
    """The members of TrainingArguments that `start_facts` reads."""

    @property
    def save_on_each_node(self) -> bool: ...
    @property
    def output_dir(self) -> str | os.PathLike[str] | None: ...
    @property
    def device(self) -> torch.device: ...
    def resolved_values(self) -> dict[str, Any]: ...


def start_facts(args: SettledArguments, *others: object) -> Facts:
    """Return all facts that ranks must share: versions, torch settings, environment variables and arguments.

    others: further argument objects (data classes).
    """
    arguments: dict[str, object] = {}
    for given in others:
        assert dataclasses.is_dataclass(given)
        arguments |= {field.name: getattr(given, field.name) for field in dataclasses.fields(given)}
    arguments |= args.resolved_values()
    named = {f"--{name}": value for name, value in arguments.items() if name not in RANK_LOCAL}
    if args.save_on_each_node:
        del named["--output_dir"]  # each machine has a disk of its own, so the paths may differ
    else:
        named["--output_dir"] = os.path.abspath(str(args.output_dir))
    plan = getattr(args, "deepspeed_plan", None)
    device = str(args.device).partition(":")[0]
    return {**versions(), **named, "the content of --deepspeed": plan, "device": device, **_switches()}


def versions() -> Facts:
    """Return the versions of fastsft, torch, Python and `_LIBRARIES`, and fastsft's code checksum."""
    import torch

    return {
        "version of fastsft": fastsft.__version__,
        "version of torch": str(torch.__version__),
        **{f"version of {name}": _installed(name) for name in _LIBRARIES},
        "version of Python": ".".join(platform.python_version_tuple()[:2]),
        "build of fastsft (checksum of its code)": code_checksum(),
    }


def _installed(name: str) -> str | None:
    """Return the version of an installed package, without importing it."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


@functools.cache
def code_checksum() -> str:
    """Return the CRC-32C over the native core and the Python files of fastsft."""
    from fastsft import _C

    folder = Path(__file__).parents[1]
    files = [Path(str(_C.__file__)), *sorted(folder.rglob("*.py"))]
    parts = [f"{path.name} {_C.digest_file(str(path)).crc32c:08x}" for path in files]
    return f"{_C.crc32c(' '.join(parts).encode()):08x}"


def _switches() -> Facts:
    """Return the settings of torch and the environment variables that change results."""
    import torch

    switches: dict[str, object] = {
        "torch.use_deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "torch.get_float32_matmul_precision": torch.get_float32_matmul_precision(),
        "torch.backends.cuda.matmul.allow_tf32": torch.backends.cuda.matmul.allow_tf32,
    }
    environ: Mapping[str, str] = os.environ
    return {**switches, **{f"variable {name}": environ.get(name) for name in _VARIABLES}}
