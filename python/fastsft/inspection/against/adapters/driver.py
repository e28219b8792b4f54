"""Run an adapter: read records, write their ids and labels.

usage: python driver.py ADAPTER FOLDER

FOLDER has request.json and records.jsonl. A request with "data" (path, numbers, description) names a file
whose records are read here, by the library `datasets` that all frameworks read files with. rows.jsonl gets a
line {"versions", "settings"}, then for each record {"index", "rows": [[ids, labels], ...]} or {"index",
"dropped": reason}. If the framework fails as a whole, the one line is {"failure": text}.
"""

from __future__ import annotations

import importlib.util
import json
import resource
import sys
import traceback
from pathlib import Path
from typing import Any

KINDS = {".parquet": "parquet", ".csv": "csv", ".tsv": "csv", ".arrow": "arrow", ".txt": "text"}
COMPRESSED = (".gz", ".zst", ".bz2", ".xz")


def main(adapter: str, folder: Path) -> int:
    request = json.loads((folder / "request.json").read_text("utf-8"))
    limit_memory(request["memory"])
    with open(folder / "rows.jsonl", "w", encoding="utf-8") as out:
        try:
            for entry in load(adapter).encode(request, records_of(request, folder)):
                out.write(json.dumps(entry) + "\n")
        except Exception as error:
            traceback.print_exc()
            out.write(json.dumps({"failure": described(error)}) + "\n")
            return 1
    return 0


def records_of(request: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Return the records that were sent, or those of the request's file as they stand there."""
    if "data" not in request:
        lines = (folder / "records.jsonl").read_text("utf-8").splitlines()
        return [json.loads(line) for line in lines]
    import datasets

    path = request["data"]["path"]
    kind = KINDS.get(next((s for s in reversed(Path(path).suffixes) if s not in COMPRESSED), ""), "json")
    rows = datasets.load_dataset(kind, data_files=path, split="train")
    return [rows[number] for number in request["data"]["numbers"]]


def limit_memory(limit: int) -> None:
    """Bound the private memory of this process, in bytes."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    bound = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (bound, hard))


def load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def described(error: Exception) -> str:
    """Return the error and the place in the framework's code where it was raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(frame.filename).name}, line {frame.lineno})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
