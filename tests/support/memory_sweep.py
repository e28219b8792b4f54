"""Labels a file again and again, each time in a forked child with a limit of address space.

argv: the file, then MiB above what the process has. For each limit a JSON object on stdout:
status of the child (as subprocess gives it, null where it stood still for 120 s), what it said.
"""

from __future__ import annotations

import json
import os
import resource
import select
import sys
import time
from typing import Any

from fastsft import _C
from fastsft.data.chat.labelling import LabelSettings, make_labeller
from fastsft.sources.data_files import DataFile
from fastsft.sources.readers import open_input
from fastsft.tokenizer.json_tokenizer import byte_tokenizer

_SECONDS = 120.0


def label(path: str, mib: int) -> str:
    settings = LabelSettings(mask_policy="spans", template="vicuna_v1.1")
    labeller = make_labeller(byte_tokenizer(["</s>"]), 1 << 29, -1, settings)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (mib << 20),) * 2)
    try:
        return f"records {_C.label_inputs([open_input(DataFile(path))], labeller).report.num_records}"
    except (MemoryError, RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def attempt(path: str, mib: int) -> dict[str, Any]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, label(path, mib)[:2000].encode())
        os._exit(0)
    os.close(writer)
    ended, _, _ = select.select([reader], [], [], _SECONDS)
    said = os.read(reader, 4096).decode() if ended else ""
    os.close(reader)
    deadline = time.monotonic() + 10
    while (found := os.waitpid(pid, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    if found == (0, 0):
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    status = None if found == (0, 0) else os.waitstatus_to_exitcode(found[1])
    return {"mib": mib, "status": status, "said": said}


if __name__ == "__main__":
    for each in sys.argv[2:]:
        print(json.dumps(attempt(sys.argv[1], int(each))), flush=True)
