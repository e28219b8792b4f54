"""YAML whose numbers are those of YAML 1.2: `1e-4` is one, which PyYAML reads as a text."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$")


def yaml_loader(text: str) -> Any:
    """A loader of PyYAML over `text`: safe, with exponents that need neither a point nor a sign."""
    return _kind()(text)


def load_yaml(text: str) -> Any:
    """The document in `text`. yaml.YAMLError as of PyYAML."""
    return yaml_loader(text).get_single_data()


@cache
def _kind() -> type[Any]:
    import yaml  # type: ignore[import-untyped]

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Its own class: a resolver that is added to SafeLoader would be every program's."""

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
    return Loader
