"""Makes one wheel of several that have cores for different torches.

python scripts/release/merge_wheels.py dist parts/fastsft-*-cp311-*.whl
"""

from __future__ import annotations

import base64
import hashlib
import re
import sys
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

PLATFORM = "manylinux_2_28_x86_64"
CORES = "fastsft/cores/"
_TORCH = re.compile(r"^Requires-Dist: torch\b.*$", re.MULTILINE)
_LONG_AGO = (1980, 1, 1, 0, 0, 0)  # the same bytes give the same wheel


def read_wheel(path: Path) -> dict[str, bytes]:
    """Content by name, without RECORD, which `write_wheel` makes."""
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if not name.endswith(("/", ".dist-info/RECORD"))]
        return {name: archive.read(name) for name in names}


def write_wheel(files: Mapping[str, bytes], path: Path) -> None:
    record = f"{info_folder(files)}/RECORD"
    rows = [f"{name},sha256={_digest(content)},{len(content)}" for name, content in sorted(files.items())]
    text = "\n".join([*rows, f"{record},,", ""])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in [*sorted(files.items()), (record, text.encode())]:
            entry = zipfile.ZipInfo(name, _LONG_AGO)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
            archive.writestr(entry, content, compresslevel=9)


def merge_wheels(wheels: Iterable[Path], folder: Path) -> Path:
    """Write a wheel with the cores of all `wheels` into `folder`; they must agree in all other files."""
    merged: dict[str, bytes] = {}
    for path in wheels:
        for name, content in read_wheel(path).items():
            content = _for_all_torches(name, content)
            if merged.setdefault(name, content) != content:
                raise ValueError(
                    f"{path}: {name} differs from that of another wheel; build all from the same sources"
                )
    info = info_folder(merged)
    metadata = merged[f"{info}/METADATA"].decode()
    requirement = torch_requirement(core_names(merged))
    merged[f"{info}/METADATA"] = _TORCH.sub(f"Requires-Dist: {requirement}", metadata).encode()
    tag = re.search(r"^Tag: (\S+)-", merged[f"{info}/WHEEL"].decode(), re.MULTILINE)
    if tag is None:
        raise ValueError(f"{info}/WHEEL: expected a line `Tag: cp311-cp311-...`, found none")
    folder.mkdir(parents=True, exist_ok=True)
    result = folder / f"{info.removesuffix('.dist-info')}-{tag[1]}-{PLATFORM}.whl"
    write_wheel(merged, result)
    return result


def info_folder(files: Mapping[str, bytes]) -> str:
    (folder,) = {name.split("/")[0] for name in files if ".dist-info/" in name}
    return folder


def core_names(files: Iterable[str]) -> list[str]:
    """Names of the cores' folders: torch2.11-cpu."""
    return sorted({PurePosixPath(name).parts[2] for name in files if name.startswith(CORES)})


def torch_requirement(cores: Sequence[str]) -> str:
    """The releases of torch that have a core: "torch>=2.11,<2.14,!=2.12.*"."""
    if not cores:
        raise ValueError(f"expected cores in {CORES}, got none; build with FASTSFT_RELEASE=ON")
    releases = [core.removeprefix("torch").partition("-")[0].split(".") for core in cores]
    (major,) = {release[0] for release in releases}
    minors = sorted({int(release[1]) for release in releases})
    gaps = [f",!={major}.{minor}.*" for minor in range(minors[0], minors[-1]) if minor not in minors]
    return f"torch>={major}.{minors[0]},<{major}.{minors[-1] + 1}" + "".join(gaps)


def _for_all_torches(name: str, content: bytes) -> bytes:
    """METADATA without the torch of one build, WHEEL for the platform of the release."""
    if name.endswith(".dist-info/METADATA"):
        return _TORCH.sub("Requires-Dist: torch", content.decode()).encode()
    if name.endswith(".dist-info/WHEEL"):
        return re.sub(rb"^(Tag: \S+)-\S+$", rf"\1-{PLATFORM}".encode(), content, flags=re.MULTILINE)
    return content


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


if __name__ == "__main__":
    print(merge_wheels(map(Path, sys.argv[2:]), Path(sys.argv[1])))
