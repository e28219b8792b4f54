"""Identity of a base model's frozen weights in a checkpoint: `files of float32: <digest>`."""

from __future__ import annotations

from collections.abc import Iterable

FILES, VALUES = "files", "values"  # what a digest is of: samples of a directory's tensors, or all values


def base_identity(kind: str, types: Iterable[str], digest: str) -> str:
    """kind: FILES or VALUES. types: of the tensors, by torch's names."""
    return f"{kind} of {'+'.join(sorted(set(types)))}: {digest}"


def types_of(identity: str) -> str:
    """The types of the tensors: `bfloat16+float32`."""
    return identity.partition(": ")[0].rpartition(" ")[2]


def is_comparable(old: str, new: str) -> bool:
    """True if equal weights have equal identities: they are of one kind, and of the same types."""
    return old.partition(": ")[0] == new.partition(": ")[0] and ": " in old


def has_other_types(old: str, new: str) -> bool:
    """True if the two are of one kind, and tell no more than that the types differ."""
    return old.partition(" ")[0] == new.partition(" ")[0] and types_of(old) != types_of(new)
