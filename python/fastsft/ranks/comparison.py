"""Ranks compare what must be the same on all of them; the first difference is named on every rank."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping

from fastsft.ranks.agreement import Agreement
from fastsft.ranks.comparison_text import difference
from fastsft.ranks.process_group import gather_objects
from fastsft.runtime.launch import launch

Facts = Mapping[str, object]
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def compare(what: str, find: Callable[[], Facts]) -> None:
    """Nothing where all ranks find the same facts, in value and in type; collective.

    find: values by name, what matters most first; a dictionary counts as a fact for each of its keys, an
    object that JSON does not know as its text. One digest of all facts travels; the facts themselves only
    where digests differ. ValueError on every rank alike, with name, ranks and values of the first that
    differs, and the names of the next ones. Where `find` fails, all ranks raise (agreement.py), with `what`.
    """
    if launch().world_size == 1:
        return
    agreement = Agreement(what)
    mine = agreement.attempt(lambda: {name: _text(value) for name, value in _flat(find())})
    digest = hashlib.sha256(json.dumps(mine).encode()).hexdigest()
    if len(set(agreement.settle(digest))) > 1:
        assert mine is not None  # else settle has raised
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
    """A text for what JSON does not know; an address of this process says nothing to others."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return _ADDRESS.sub("", str(value))
