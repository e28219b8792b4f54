"""The torch that an extension is built with; as a program: its directory and version, separated by `;`.

pip builds in an environment of its own, in which the packages of the environment that it installs into are
hidden. torch is looked for there as well: whoever has one keeps it, and nothing of 2.7 GB is fetched twice.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import site
import sys
from pathlib import Path
from typing import NamedTuple


class Torch(NamedTuple):
    directory: Path
    version: str


def installed_torch() -> Torch | None:
    """The torch that can be imported; else the one of the environment that is installed into."""
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.origin is not None:
        return Torch(Path(spec.origin).parent, importlib.metadata.version("torch"))
    for distribution in importlib.metadata.distributions(name="torch", path=_site_directories()):
        directory = Path(str(distribution.locate_file("torch")))
        if _brings_openmp(directory):
            return Torch(directory, distribution.version)
    return None


def _brings_openmp(directory: Path) -> bool:
    """Wheels do; the torch of conda does not, and the extension cannot be linked with it."""
    return any(directory.glob("lib/libgomp*.so*")) or any(directory.parent.glob("torch.libs/libgomp*.so*"))


def _site_directories() -> list[str]:
    """Where this interpreter looks for packages when nothing is hidden from it."""
    directories = site.getsitepackages()  # those of a venv's base, too, if it shows them
    if sys.base_prefix in site.PREFIXES:
        directories.append(site.getusersitepackages())
    return directories


if __name__ == "__main__":
    found = installed_torch()
    print(*(found if found is not None else ("", "")), sep=";")
