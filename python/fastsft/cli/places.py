"""Places of models on a command line: paths, and names of hub models."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, takewhile
from pathlib import Path

from fastsft.model.model_config import model_directory


def model_place(name: str, *, has_code: bool = False) -> Path:
    """Return the path `name`, or the directory of the hub model `name`, downloaded if it is not in the cache.

    has_code: True to download the model's Python files, too (--trust_remote_code). ValueError if there is
    neither such a directory nor such a hub model.
    """
    return model_directory(name, has_code=has_code, flag="model")


def with_flags(arguments: Sequence[str], *flags: Sequence[str]) -> list[str]:
    """Return the arguments with `flags` in front of their first words, as in `fastsft inspect DIR FILE`.

    flags: for each word, its flag's spellings. A word whose flag is given, too, is left alone, so that
    the parser refuses it.

    A first word that names a YAML file is the value of --config, if that is not given, too.
    """
    if arguments and arguments[0].endswith((".yaml", ".yml")) and "--config" not in arguments:
        return ["--config", *arguments]
    words = list(takewhile(lambda word: not word.startswith("-"), arguments))[: len(flags)]
    given = {word.partition("=")[0] for word in arguments}
    named = [
        [word] if given & {*names} else [names[0], word] for names, word in zip(flags, words, strict=False)
    ]
    return [*chain(*named), *arguments[len(words) :]]
