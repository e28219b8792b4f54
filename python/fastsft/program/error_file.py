"""The file from which torchrun reads a rank's error, in the format of torch's decorator @record."""

from __future__ import annotations

import contextlib
import json
import os
import time

from fastsft.runtime.output_files import replace_file

VARIABLE = "TORCHELASTIC_ERROR_FILE"


def write_error_file(message: str) -> None:
    """Write `message` into the file for torchrun's summary of failed ranks. Do nothing without torchrun."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    extra = {"py_callstack": message, "timestamp": str(int(time.time()))}
    with contextlib.suppress(OSError):
        replace_file(path, json.dumps({"message": {"message": message, "extraInfo": extra}}))
