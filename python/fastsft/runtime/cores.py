"""Find the native core of a wheel that has several: for each release of torch, with and without CUDA kernels.

An extension built from source lies next to the package's modules. A release wheel has a folder for each core,
`cores/torch2.11-cuda13` or `cores/torch2.11-cpu` (cmake/FastsftRelease.cmake). The latter goes with every
torch of its release that has another CUDA or none.
"""

from __future__ import annotations

from pathlib import Path

from fastsft.runtime.versions import minor_version

CORES = Path(__file__).parents[1] / "cores"


def is_release() -> bool:
    """Return True if this is a release wheel; False if the core was built for the installed torch."""
    return CORES.is_dir()


def choose_core(torch_version: str, cuda: str | None) -> Path:
    """Return the folder of the core for a release of torch and its CUDA version ("13.0"; None: without CUDA).

    ImportError if this wheel has no core for that release.
    """
    release = f"torch{minor_version(torch_version)}"
    names = (
        [f"{release}-cpu"] if cuda is None else [f"{release}-cuda{cuda.partition('.')[0]}", f"{release}-cpu"]
    )
    for name in names:
        if (CORES / name).is_dir():
            return CORES / name
    there = _releases()
    raise ImportError(
        f"fastsft: expected a torch for which this wheel has a core ({', '.join(there)}), got torch "
        f"{torch_version}; pip install 'torch=={there[-1]}.*', or build fastsft from its sources for this one"
    )


def way_to_kernels(torch_version: str, cuda: str | None) -> str:
    """Return what helps if a GPU is there, but the core that was chosen has no CUDA kernels."""
    there = _cuda_of(f"torch{minor_version(torch_version)}") if is_release() else []
    if not there:
        return "build it where nvcc is found"
    installed = f"CUDA {cuda}" if cuda else "no CUDA"
    return (
        f"this wheel's kernels are for a torch with CUDA {' or '.join(there)}, and torch {torch_version} has "
        f"{installed}: install such a torch, or build fastsft from its sources where nvcc is found"
    )


def _releases() -> list[str]:
    """Return the releases of torch for which this wheel has cores, oldest first."""
    releases = {folder.name.removeprefix("torch").partition("-")[0] for folder in CORES.glob("torch*-*")}
    return sorted(releases, key=lambda release: [int(part) for part in release.split(".")])


def _cuda_of(release: str) -> list[str]:
    return sorted(folder.name.partition("-cuda")[2] for folder in CORES.glob(f"{release}-cuda*"))
