"""Finds the trackers of `--report_to`: every file of this folder that defines a `Tracker` with a name."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Iterable
from functools import cache

from fastsft.runtime.launch import launch
from fastsft.runtime.messages import warn_once
from fastsft.trackers.tracker import TrackedArguments, Tracker


@cache
def trackers() -> dict[str, type[Tracker]]:
    """Every tracker by name; none of their libraries is imported."""
    package = importlib.import_module("fastsft.trackers")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"fastsft.trackers.{module.name}")
    found = sorted(Tracker.__subclasses__(), key=lambda kind: kind.name)
    return {kind.name: kind for kind in found if kind.__module__.startswith("fastsft.")}


def is_installed(kind: type[Tracker]) -> bool:
    """True if the tracker's library can be imported."""
    return importlib.util.find_spec(kind.library) is not None


def resolve_trackers(report_to: str | Iterable[str] | None) -> list[str]:
    """Names of the trackers that `--report_to` asks for: None and none are none, all is what is installed.

    ValueError for a name that does not exist, or whose library is missing.
    """
    asked = [report_to] if isinstance(report_to, str) else list(report_to or [])
    known, chosen = trackers(), []
    for name in asked:
        if name == "none":
            continue
        if name == "all":
            chosen += [each for each, kind in known.items() if is_installed(kind)]
            _name_missing()
        elif name not in known:
            raise ValueError(f"--report_to: expected none, {', '.join(known)} or all, got {name}")
        elif not is_installed(known[name]):
            raise ValueError(
                f"--report_to {name}: the library {known[name].library} is not installed; "
                f"pip install {known[name].library}, or leave {name} out"
            )
        else:
            chosen.append(name)
    return list(dict.fromkeys(chosen))


def _name_missing() -> None:
    missing = missing_trackers()
    if missing:
        libraries = " ".join(trackers()[name].library for name in missing)
        warn_once(
            f"--report_to all: not installed, and left out: {', '.join(missing)}; pip install {libraries}"
        )


def missing_trackers() -> list[str]:
    """Names of trackers whose library is not installed."""
    return [name for name, kind in trackers().items() if not is_installed(kind)]


def check_trackers(report_to: str | Iterable[str] | None, args: TrackedArguments) -> None:
    """ValueError where a tracker of `--report_to` could not write; on global rank 0, which does."""
    for name in resolve_trackers(report_to) if launch().rank == 0 else []:
        trackers()[name].check(args)


def make_trackers(report_to: str | Iterable[str] | None) -> list[Tracker]:
    """A new tracker for each that `--report_to` asks for; ValueError as resolve_trackers."""
    return [trackers()[name]() for name in resolve_trackers(report_to)]
