"""The model that a Trainer trains: a directory, its configuration and, once built, the engine."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from fastsft.arguments import TrainingArguments
from fastsft.launcher import Groups, threads_per_rank
from fastsft.recompute import choose_recompute


class ModelConfig(dict[str, Any]):
    """config.json, mutable; keys are attributes too. What stands here when the model is saved is written."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"config.json has no key {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def to_dict(self) -> dict[str, Any]:
        """A plain copy."""
        return dict(self)


def model_directory(name: str, cache_dir: str | None = None) -> Path:
    """A local directory, or the snapshot of a hub model, downloaded when it is not there yet.

    ValueError when `name` is neither.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ValueError(f"model_name_or_path: {name} is not a directory")
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.safetensors", "*.model", "*.bin", "*.txt", "*.jinja"]
    return Path(snapshot_download(name, cache_dir=cache_dir, allow_patterns=patterns))


def stretch_positions(config: ModelConfig, model_max_length: int) -> str | None:
    """Scale rope linearly when examples are longer than the model's positions; a line about it, or None.

    Factor: ceil(model_max_length / max_position_embeddings). Source: fastchat_labels.md, section 7.1.
    """
    positions = config.get("max_position_embeddings")
    if not positions or model_max_length <= positions:
        return None
    key = "rope_parameters" if "rope_parameters" in config else "rope_scaling"
    before = config.get(key)
    scaling: dict[str, Any] = {"type": "linear", "factor": float(math.ceil(model_max_length / positions))}
    if key == "rope_parameters":
        scaling = {**(before or {}), "rope_type": "linear", "factor": scaling["factor"]}
    config[key] = scaling
    replaced = f", in place of {json.dumps(before)}" if before else ""
    return f"{key}: {json.dumps(scaling)} for {model_max_length} tokens on {positions} positions{replaced}"


class CausalLM:
    """A causal language model on disk; its weights are read when the engine is built."""

    def __init__(self, source_directory: Path, config: ModelConfig) -> None:
        self.source_directory = source_directory
        self.config = config
        self.engine: Any = None
        self.recompute = "selective"

    @classmethod
    def from_pretrained(
        cls, model_name_or_path: str, *, config: ModelConfig | None = None, cache_dir: str | None = None
    ) -> CausalLM:
        """Read config.json of a directory or hub model. ValueError when there is none."""
        directory = model_directory(model_name_or_path, cache_dir)
        if config is None:
            path = directory / "config.json"
            if not path.is_file():
                raise ValueError(
                    f"{directory}: expected a Hugging Face model directory, found no config.json"
                )
            config = ModelConfig(json.loads(path.read_text(encoding="utf-8")))
        return cls(directory, config)

    def build(self, args: TrainingArguments, groups: Groups) -> Any:
        """Make the engine for the strategy and precision of `args` and load the weights; collective."""
        if self.engine is None:
            from fastsft import _C, saving

            text, itemsize = json.dumps(self.config), 2 if args.bf16 else 4
            self.recompute = args.recompute_mode
            if self.recompute == "auto":
                size = _C.count_parameters(text)
                self.recompute = choose_recompute(self.config, size, args.token_budget, itemsize)
            self.engine = _C.Engine(
                text,
                compute_dtype="bfloat16" if args.bf16 else "float32",
                strategy=args.sharding_strategy if args.world_size > 1 else "no_shard",
                recompute=self.recompute,
                gather_group=groups.gather,
                reduce_group=groups.reduce,
                num_threads=threads_per_rank(),
                max_positions=args.model_max_length,
            )
            saving.load_weights(self.engine, str(self.source_directory))
        return self.engine

    def num_parameters(self) -> int:
        """Parameters of the model; 0 before the engine is built."""
        return 0 if self.engine is None else int(self.engine.num_parameters)
