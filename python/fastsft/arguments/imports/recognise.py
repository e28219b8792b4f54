"""Recognises the trainer that a configuration file belongs to by the keys that no other trainer has."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from fastsft.arguments.imports.axolotl import AXOLOTL
from fastsft.arguments.imports.fastchat import FASTCHAT, STANFORD_ALPACA
from fastsft.arguments.imports.framework import Framework, own_names, said
from fastsft.arguments.imports.llamafactory import LLAMAFACTORY
from fastsft.arguments.imports.swift import SWIFT
from fastsft.arguments.imports.trl import TRL

_CLEAR = 2  # times as many keys of its own as any other trainer
_FEW = 2  # keys of its own, at least, before `train --config` names a trainer


# Keys that together only the file of a program has which is no trainer -> what to do with it
_OF_OTHERS = {
    ("compute_environment", "distributed_type"): "a file of accelerate, of which fastsft needs none: "
    "FASTSFT_NUM_PROCESSES or torchrun starts the ranks, and --fsdp and --bf16 say how they train",
    ("zero_optimization",): "a file of DeepSpeed: give it as --deepspeed FILE",
    ("apiVersion", "kind"): "a file of Kubernetes: kubectl apply -f FILE",
    ("resources", "run"): "a file of SkyPilot: sky launch FILE",
    ("defaults", "hydra"): "a file of Hydra: write the flags themselves, without groups and ${...}",
}


def about_others_file(keys: Iterable[str]) -> str:
    """Return what to do with a file whose keys are those of a program that is no trainer; "" for others."""
    names = set(keys)
    return next((way for own, way in _OF_OTHERS.items() if names.issuperset(own)), "")


@cache
def frameworks() -> dict[str, Framework]:
    """Return the trainers whose files can be imported, by name."""
    every = (LLAMAFACTORY, AXOLOTL, TRL, SWIFT, FASTCHAT, STANFORD_ALPACA)
    return {framework.name: framework for framework in every}


def evidence(keys: Iterable[str]) -> dict[str, list[str]]:
    """Return the keys that speak for each trainer: those that neither fastsft nor another trainer has."""
    of_file = {
        framework.name: frozenset(key for key in framework.own_keys if key not in own_names())
        for framework in frameworks().values()
    }
    speaks: dict[str, list[str]] = {}
    for key in keys:
        owners = [name for name, own in of_file.items() if key in own]
        if len(owners) == 1:
            speaks.setdefault(owners[0], []).append(key)
    return dict(sorted(speaks.items(), key=lambda item: -len(item[1])))


def recognise(keys: Iterable[str]) -> tuple[Framework, list[str]]:
    """Return the trainer of a file and the keys that only this trainer has.

    ValueError if there are none, or if keys speak for several trainers.
    """
    names = list(keys)
    if way := about_others_file(names):
        raise ValueError(way)
    speaks = evidence(names)
    found = list(speaks.items())
    known = said(frameworks())
    if not found:
        if names and all(name in own_names() for name in names):
            raise ValueError(
                f"every key is fastsft's own: give the file to --config, or name one of {known} with --from"
            )
        raise ValueError(f"no key that a single trainer has; name one of {known} with --from")
    if len(found) > 1 and len(found[0][1]) < _CLEAR * len(found[1][1]):
        whose = "; ".join(f"{frameworks()[name].title}: {said(its)}" for name, its in found)
        raise ValueError(f"keys of several trainers ({whose}); name one of {known} with --from")
    return frameworks()[found[0][0]], found[0][1]


def looks_foreign(keys: Iterable[str]) -> tuple[str, list[str]] | None:
    """Return the trainer's title and its keys for a file that is clearly another trainer's; else None."""
    try:
        framework, its = recognise(keys)
    except ValueError:
        return None
    return (framework.title, its) if len(its) >= _FEW else None
