"""AdamW's state in torch's files: optimizer.pt by parameter numbers, optimizer.bin by parameter names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fastsft.checkpoint.external.transformers_checkpoint import load_plain
from fastsft.checkpoint.external.wrapped import clean_name

MOMENTS = ("exp_avg", "exp_avg_sq")
_WHAT = "the state of torch's AdamW"
_OTHER = "only AdamW's state is carried over; train from the weights with --model_name_or_path"


class OptimizerFile:
    """The moments of each parameter by name, mapped from the file. order: names of what is trained, each with
    whether weight decay applies, in the order of the model's parameters.

    ValueError, naming the file, when it is not AdamW's state of these parameters.
    """

    def __init__(self, path: Path, order: Sequence[tuple[str, bool]]) -> None:
        self._path = path
        self._state, self._groups = self._checked(load_plain(path, _WHAT))
        self._by_name = self._named() if path.suffix == ".bin" else self._numbered(order)
        for name, _ in order:
            if name not in self._by_name:
                raise ValueError(
                    f"{path}: {name}: expected its exp_avg and exp_avg_sq, found no state of it (torch "
                    f"keeps none of a parameter that no step has trained yet, such as an expert); {_OTHER}"
                )
        for name, entry in self._by_name.items():
            self._check_entry(name, entry)

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of the group with weight decay, by our names."""
        return settings_of(self._groups[0]) if self._groups else {}

    def step(self) -> int:
        """Return the number of updates so far. ValueError if parameters disagree."""
        return common_step(self._path, {name: entry["step"] for name, entry in self._by_name.items()})

    def tensors(self, moment: str) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, tensor) of every parameter."""
        for name, entry in self._by_name.items():
            yield name, entry[moment]

    def _checked(self, content: object) -> tuple[Mapping[Any, Any], list[Mapping[str, Any]]]:
        state, groups = (content.get(key) if isinstance(content, dict) else None for key in _KEYS)
        if not isinstance(state, dict) or not isinstance(groups, list) or not all(map(_is_group, groups)):
            raise ValueError(f"{self._path}: expected {_WHAT}, a dictionary with {' and '.join(_KEYS)}")
        if not all(isinstance(entry, dict) for entry in state.values()):
            raise ValueError(f"{self._path}: expected a dictionary for the state of every parameter")
        return state, groups

    def _numbered(self, order: Sequence[tuple[str, bool]]) -> dict[str, Any]:
        """Name the states as transformers' Trainer numbers them: first those with weight decay."""
        named: dict[str, Any] = {}
        expected = [[name for name, decays in order if decays is kind] for kind in (True, False)]
        found = [group["params"] for group in self._groups]
        if [len(names) for names in found] != [len(names) for names in expected]:
            raise ValueError(
                f"{self._path}: expected groups of {len(expected[0])} parameters with weight decay and "
                f"{len(expected[1])} without, as the model has them, got groups of "
                f"{', '.join(str(len(names)) for names in found) or 'none'}; it is of another model, or of a "
                "script that grouped them in its own way"
            )
        for names, numbers in zip(expected, found, strict=True):
            named |= {
                name: self._state[n] for name, n in zip(names, numbers, strict=True) if n in self._state
            }
        return named

    def _named(self) -> dict[str, Any]:
        if not all(isinstance(name, str) for name in self._state):
            raise ValueError(f"{self._path}: expected the state of parameters by their names")
        return {clean_name(name): entry for name, entry in self._state.items()}

    def _check_entry(self, name: str, entry: Mapping[str, Any]) -> None:
        keys = {str(key) for key in entry}
        if keys != {"step", *MOMENTS} or not all(isinstance(entry[key], torch.Tensor) for key in MOMENTS):
            raise ValueError(
                f"{self._path}: {name}: expected AdamW's step, exp_avg and exp_avg_sq, got "
                f"{', '.join(sorted(keys)) or 'nothing'}; {_OTHER}"
            )


_KEYS = ("state", "param_groups")


def _is_group(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("params"), list | tuple)


def settings_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a parameter group under our names, as far as it has them."""
    betas = group.get("betas")
    first, second = betas if isinstance(betas, list | tuple) and len(betas) == 2 else (None, None)
    values = {
        "learning_rate": group.get("initial_lr"), "weight_decay": group.get("weight_decay"),
        "adam_beta1": first, "adam_beta2": second, "adam_epsilon": group.get("eps"),
    }  # fmt: skip
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}


def common_step(path: Path, steps: Mapping[str, Any]) -> int:
    """Return the number of updates, which all parameters share. ValueError if they differ."""
    counts = {name: _count(value) for name, value in steps.items()}
    found = sorted({count for count in counts.values() if count is not None})
    if len(found) != 1 or None in counts.values():
        raise ValueError(
            f"{path}: expected one number of updates for all parameters, got "
            f"{', '.join(map(str, found)) or 'none'}; parameters that some steps did not train are not "
            "carried over"
        )
    return found[0]


def _count(value: object) -> int | None:
    if isinstance(value, torch.Tensor):
        value = value.item() if value.numel() == 1 else None
    if not isinstance(value, int | float) or not 0 <= value < 1 << 62 or not float(value).is_integer():
        return None
    return int(value)
