"""Comparison of arguments, model, tokenizer and data between ranks, before the first step.

If ranks had different inputs, later collectives would hang or give wrong results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fastsft.data.digests import digest_of_items, fingerprint_of, sampled_digest
from fastsft.data.token_cache import cache_directory, tokenizer_digest
from fastsft.model.weight_identity import weight_digests, weights_location
from fastsft.ranks import process_group as launcher
from fastsft.ranks.comparison import Facts, compare, start_facts
from fastsft.ranks.exchange import AllOrNone
from fastsft.runtime.launch import launch
from fastsft.runtime.messages import tell
from fastsft.sources.data_files import data_files

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from fastsft.arguments import DataArguments, TrainingArguments
    from fastsft.data.token_rows import TokenRows
    from fastsft.model.causal_lm import CausalLM

_OF_TOKENIZER = ("model_max_length", "pad_token_id", "eos_token_id", "bos_token_id", "padding_side")
_told: set[tuple[str, str]] = set()  # (name, class) of each data set with a printed notice


def meet_and_agree(
    args: TrainingArguments,
    model_args: DataclassInstance,
    data_args: DataclassInstance,
    files: DataArguments | None,
    *others: DataclassInstance,
) -> None:
    """Meet the other ranks, and check that all have the same arguments and data files. Collective.

    files: fastsft's DataArguments, or None if a script reads the data itself. others: further argument
    objects to compare.
    """
    launcher.meet(args.ddp_timeout)
    agree_on_start(args, model_args, data_args, *others)
    if files is not None:
        agree_on_files(files)


def meet_for_trainer(args: TrainingArguments, callbacks: Sequence[object], **given: object) -> None:
    """Meet the other ranks, and check that all have the same TrainingArguments and Trainer arguments.

    Collective. callbacks: compared by class name. given: data sets and functions by parameter name. Only
    their presence is compared, and for a dictionary of data sets its keys.
    """
    launcher.meet(args.ddp_timeout)
    facts = {f"Trainer({name}=)": _kind(value) for name, value in given.items()}
    agree_on_start(args, **facts, **callback_facts(callbacks))


def _kind(value: object) -> list[str] | str | None:
    if isinstance(value, Mapping):
        return sorted(map(str, value))
    return None if value is None else "given"


def callback_facts(callbacks: Sequence[object]) -> Facts:
    """Return the class names of a script's callbacks, for comparison between ranks.

    Ranks with different callbacks could save, evaluate or stop at different steps.
    """
    kinds = [item if isinstance(item, type) else type(item) for item in callbacks]
    names = [kind.__name__ for kind in kinds if not kind.__module__.startswith("fastsft.")]
    return {"callbacks": ", ".join(names) or None}


def agree_on_start(args: TrainingArguments, *others: DataclassInstance, **further: object) -> None:
    """Compare versions, torch switches and all arguments between ranks. Collective.

    others: further argument objects. further: other values to compare, by name. ValueError if ranks differ.
    """
    if launch().world_size > 1:
        compare("comparing arguments", lambda: {**start_facts(args, *others), **further})


def agree_on_files(data_args: DataArguments) -> None:
    """Check that all ranks have the same data files, and that all or none have a token cache. Collective."""
    if launch().world_size > 1:
        compare("comparing the files of the data", lambda: file_facts(data_args))


def file_facts(data_args: DataArguments) -> Facts:
    """Return the data files' number, weights and content digests, and whether there is a token cache."""
    cached = cache_directory(data_args.data_cache) is not None
    facts: dict[str, object] = {"a token cache (--data_cache)": cached}
    for name in ("data_path", "eval_data_path"):
        path = getattr(data_args, name)
        files = data_files(str(path)) if path is not None else []
        facts[f"--{name}, files"] = None if path is None else len(files)
        for number, file in enumerate(files):
            content = "a stream" if file.is_stream else sampled_digest(file.path)
            facts[f"--{name}, content of file {number + 1}"] = content
            facts[f"--{name}, weight of file {number + 1}"] = file.weight
    return facts


def agree_on_model(model: CausalLM, tokenizer: object = None) -> None:
    """Check that all ranks have the same model and tokenizer, and broadcast rank 0's adapters. Collective."""
    if launch().world_size > 1:
        compare("comparing models", lambda: {**tokenizer_facts(tokenizer), **model_facts(model)})
        model.broadcast_adapters()
        agree_on_weights(model)


def agree_on_weights(model: CausalLM) -> None:
    """Check that all ranks have bit-identical initial weights. Collective. Call after `model_facts` agree."""
    agreement = AllOrNone("comparing weights")
    digests = agreement.attempt(lambda: weight_digests(model))
    agreement.settle(None)
    compare("comparing weights", lambda: {"weights": digests})


def agree_on_rows(what: str, dataset: object, rows: TokenRows) -> None:
    """Check that all ranks have the same labelled rows, or the same items of a script's data set. Collective.

    If a script's code makes the items, only their number can be compared; a printed notice says so.
    """
    if launch().world_size == 1:
        return
    agreement = AllOrNone(f"comparing {what}")
    prints = agreement.settle(agreement.attempt(lambda: fingerprint_of(dataset)))
    is_told_alike = prints[0] is not None and len(set(prints)) == 1
    facts = agreement.attempt(lambda: row_facts(what, dataset, rows, digest=not is_told_alike))
    agreement.settle(None)
    assert facts is not None
    compare(f"comparing {what}", lambda: facts)
    kind = type(dataset).__qualname__
    if not is_told_alike and len(facts) == 1 and (what, kind) not in _told:
        _told.add((what, kind))
        tell(f"{what} ({kind}): ranks have compared the number of rows, and cannot compare their content")


def row_facts(what: str, dataset: object, rows: TokenRows, *, digest: bool) -> Facts:
    """Return the row count and a checksum of the rows.

    digest: if the rows are not read yet, hash the data set's items instead.
    """
    facts: dict[str, object] = {f"rows of {what}": len(rows)}
    if rows.native is not None:
        facts[f"checksum of the rows of {what}"] = rows.checksum()
    elif digest and (found := digest_of_items(dataset)) is not None:
        facts[f"digest of the items of {what}"] = found
    return facts


def tokenizer_facts(tokenizer: object) -> Facts:
    """Return the tokenizer's class, special tokens and settings, and the digest of its files if known."""
    if tokenizer is None:
        return {"tokenizer": None}
    known = {name: getattr(tokenizer, name, None) for name in _OF_TOKENIZER}
    digest = tokenizer_digest(tokenizer)
    return {"tokenizer": {"class": type(tokenizer).__name__, "files": digest, **known}}


def model_facts(model: CausalLM) -> Facts:
    """Return the model's config.json, and the place of its initial weights: engine, memory or directory."""
    config = {key: value for key, value in dict(model.config).items() if key != "_name_or_path"}
    return {"config.json": config, "the model's weights are in": weights_location(model)}
