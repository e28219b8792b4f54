"""The torch that an extension is built with; as a program: its directory and version, separated by `;`.

pip builds in an environment of its own, in which the packages of the environment that it installs into are
hidden. torch is looked for there as well: whoever has one keeps it, and nothing of 2.7 GB is fetched twice.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple


class Torch(NamedTuple):
    directory: Path
    version: str


def installed_torch() -> Torch | None:
    """The torch that can be imported; else the one of the environment that is installed into."""
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.submodule_search_locations:
        return Torch(Path(spec.submodule_search_locations[0]), importlib.metadata.version("torch"))
    for distribution in importlib.metadata.distributions(name="torch", path=_site_directories()):
        directory = Path(str(distribution.locate_file("torch")))
        if (directory / "lib").is_dir():
            return Torch(directory, distribution.version)
    return None


def _site_directories() -> list[str]:
    """This interpreter's packages, not those of a build; and those of its base, if a venv has them."""
    directories = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
    settings = Path(sys.prefix, "pyvenv.cfg")
    if settings.is_file() and _includes_base(settings.read_text("utf-8")):
        base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
        directories += [sysconfig.get_path(name, vars=base) for name in ("purelib", "platlib")]
    return list(dict.fromkeys(directories))


def _includes_base(settings: str) -> bool:
    pairs = (line.partition("=") for line in settings.splitlines())
    return any(
        name.strip() == "include-system-site-packages" and value.strip() == "true" for name, _, value in pairs
    )


if __name__ == "__main__":
    found = installed_torch()
    print(*(found if found is not None else ("", "")), sep=";")
