"""Names that a file of transformers which nobody has imported yet will have, once the original imports it."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

from fastsft.originals.source import imports_of, nested_codes


def names_in(module: str) -> set[str]:
    """All names that the functions of a module of transformers use; none where it is not installed."""
    code = _code(module)
    functions = [] if code is None else nested_codes(code)
    return {name for part in functions if part.co_flags & inspect.CO_OPTIMIZED for name in part.co_names}


def imported_by(module: str) -> Iterator[tuple[str, str]]:
    """Module and name of what it will take from modules of transformers that are imported already."""
    code = _code(module)
    for _, home, name in () if code is None else imports_of(code, module.rpartition(".")[0]):
        loaded = sys.modules.get(home)
        if name is not None and home.startswith("transformers.") and name in vars(loaded or object):
            yield home, name


@functools.cache
def _code(module: str) -> CodeType | None:
    """Compiled, not run."""
    spec = importlib.util.find_spec("transformers")
    folders = (spec.submodule_search_locations if spec is not None else None) or []
    for folder in folders:
        path = Path(folder, *module.split(".")[1:]).with_suffix(".py")
        if path.is_file():
            try:
                return SourceFileLoader(module, str(path)).get_code(module)
            except (ImportError, OSError, SyntaxError):
                return None
    return None
