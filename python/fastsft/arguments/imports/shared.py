"""Rules for keys that several trainers have: data files, optimizer, schedule, trackers, sharding, packing."""

from __future__ import annotations

import re
from pathlib import Path

from fastsft.arguments.imports.draft import Draft, is_off, plain, words

_OPTIMIZERS = {
    **dict.fromkeys(
        ("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused", "sgd", "adafactor"), ""
    ),
    **dict.fromkeys(("adamw_8bit", "adamw_bnb_8bit"), ""),
}
_PAGED = {
    "paged_adamw": "adamw_torch", "paged_adamw_32bit": "adamw_torch", "paged_adamw_8bit": "adamw_8bit",
    "adamw": "adamw_torch",
}  # fmt: skip
_SCHEDULES = (
    "linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup",
    "inverse_sqrt", "reduce_lr_on_plateau", "cosine_with_min_lr", "cosine_warmup_with_min_lr",
    "warmup_stable_decay",
)  # fmt: skip
_TRACKERS = ("tensorboard", "wandb", "mlflow", "none", "all")
# words in the names of DeepSpeed files, and the sharding that such files ask for
_STAGES = (
    (re.compile(r"(z|zero|stage)_?3"), "full_shard auto_wrap"),
    (re.compile(r"(z|zero|stage)_?[12]"), "shard_grad_op auto_wrap"),
    (re.compile(r"(z|zero|stage)_?0"), ""),
)
PACKED = (
    "a step there has per_device_train_batch_size rows, each full of conversations; here it has so many "
    "conversations, laid end to end without padding: multiply per_device_train_batch_size by the "
    "conversations of a row"
)
KERNELS = "kernels and attention are the engine's own"
MEMORY = "memory is planned (recompute: auto)"
CACHE = "labels are made by threads and kept in a cache (data_cache)"
TEXT = "conversations are of text"


def optimizer(draft: Draft, key: str) -> None:
    """Read the optimizer's name."""
    value = draft.given.get(key)
    if key not in draft.left or is_off(value):
        return
    name = str(value).removeprefix("OptimizerNames.").lower()
    if name in _OPTIMIZERS:
        draft.carry(key, {"optim": name})
    elif name in _PAGED:
        draft.carry(key, {"optim": _PAGED[name]}, "the same update; where the state is kept is planned")
    else:
        draft.lose(key, "there are AdamW, AdamW in 8 bits, Adafactor and SGD", {"optim": "adamw_torch"})


def schedule(draft: Draft, key: str) -> None:
    """Read the name of the learning rate's schedule."""
    value = draft.given.get(key)
    if key not in draft.left or is_off(value):
        return
    if value in _SCHEDULES:
        draft.carry(key, {"lr_scheduler_type": value})
    else:
        draft.lose(key, f"schedules are {', '.join(_SCHEDULES)}", {"lr_scheduler_type": "cosine"})


def trackers(draft: Draft) -> None:
    """Read `report_to`: names of trackers, or a single name."""
    if "report_to" not in draft.left or draft.given["report_to"] is None:
        return
    given = words(draft.given["report_to"])
    known = [name for name in given if name in _TRACKERS]
    if known == given:
        value = known[0] if len(known) == 1 else known
        draft.carry("report_to", {"report_to": value or "none"})
    else:
        others = ", ".join(name for name in given if name not in known)
        reason = f"there is no {others}; trackers are tensorboard, wandb and mlflow"
        if known:
            draft.carry("report_to", {"report_to": known}, reason)
        else:
            draft.idle("report_to", reason)


def deepspeed(draft: Draft) -> None:
    """Read `deepspeed`: a file, an object, or a name such as `zero3`."""
    value = draft.given.get("deepspeed")
    if "deepspeed" not in draft.left or is_off(value):
        return
    if isinstance(value, dict):
        draft.carry("deepspeed", {"deepspeed": value})
        return
    path = str(value)
    if (found := draft.found(path)) is not None:
        draft.carry("deepspeed", {"deepspeed": found}, "" if found == path else "the file's place")
        return
    name = Path(path).name.lower()
    for pattern, strategy in _STAGES:
        if pattern.search(name):
            flag = f"{strategy} offload" if "offload" in name and strategy else strategy
            draft.carry(
                "deepspeed",
                {"fsdp": flag} if flag else {},
                f"no such file here; by its name {flag or 'no sharding'}",
            )
            return
    draft.lose("deepspeed", "no such file here: give it as deepspeed, or write fsdp (docs/sharding.md)")


def fsdp(draft: Draft) -> None:
    """Read `fsdp` and `fsdp_config`; units of sharding are decoder layers in any case."""
    config = draft.given.get("fsdp_config")
    if isinstance(config, str) and not config.lstrip().startswith("{") and "fsdp_config" in draft.left:
        found = draft.found(config)
        draft.carry("fsdp_config", {"fsdp_config": found or config}, "" if found else "no such file here")
        config = None
    settings = (
        {str(key).removeprefix("fsdp_"): item for key, item in config.items()}
        if isinstance(config, dict)
        else {}
    )
    given = draft.given.get("fsdp")
    tokens = words(given) if isinstance(given, str | list) else ["full_shard"] if given is True else []
    if not (tokens or settings):
        return
    strategies = [token for token in tokens if token not in ("auto_wrap", "offload")] or ["full_shard"]
    if settings.get("reshard_after_forward") is False or settings.get("sharding_strategy") == "SHARD_GRAD_OP":
        strategies = ["shard_grad_op"]
    offload = "offload" in tokens or any(settings.get(key) for key in ("offload_params", "cpu_offload"))
    flag = f"{strategies[0]} auto_wrap{' offload' if offload else ''}"
    first, *others = [*(key for key in ("fsdp", "fsdp_config") if key in draft.left), ""]
    if first:
        same = first == "fsdp" and " ".join(tokens) == flag
        draft.carry(first, {"fsdp": flag}, "" if same else "units are decoder layers, files are whole")
    for key in filter(None, others):
        draft.idle(key, "it is in fsdp: units are decoder layers, saved files are whole, memory is planned")


def is_hub_name(path: str) -> bool:
    """True if a path is that of a data set of a hub, `owner/name`, by its form."""
    owner, _, name = path.partition("/")
    is_name = owner not in ("", ".", "..", "~") and name != "" and "/" not in name
    return is_name and not name.endswith((".json", ".jsonl", ".parquet", ".arrow", ".csv", ".gz", ".zst"))


def hub_data(
    name: str, config: str | None = None, split: str | None = None, files: object = None
) -> list[str]:
    """Return the `hf://` paths of a hub data set. config, split, files: as in `datasets.load_dataset`.

    ValueError for a part of a split, such as `train[:10%]`.
    """
    root = f"hf://datasets/{name}"
    if split and "[" in split:
        raise ValueError(f"{split} is a part of a split; make a file of it")
    if files:
        listed = files if isinstance(files, list) else [files]
        return [f"{root}/{file}" for file in listed]
    if split and split != "train":
        return [f"{root}/{config or 'data'}/{split}-*"]
    return [f"{root}/{config}" if config else root]


def data_path(draft: Draft, key: str, paths: list[str], change: str = "", field: str = "data_path") -> None:
    """Write the data files of a key, a single path as text."""
    draft.carry(key, {field: paths[0] if len(paths) == 1 else paths}, change)


def adapters(draft: Draft, keys: str, values: dict[str, tuple[str, object]], is_lora: bool) -> None:
    """Write LoRA's flags, or note for each of `keys` that the run has no adapters.

    values: fastsft's fields by key. Keys without a value are left to the tables.
    """
    for key in keys.split():
        if key not in draft.left:
            continue
        if not is_lora:
            draft.idle(key, "all weights are trained")
        elif key in values and draft.given[key] not in (None, ""):
            field, value = values[key]
            written = plain(value) == plain(draft.given[key])
            draft.carry(key, {field: value}, "" if written or isinstance(value, list) else "another form")
