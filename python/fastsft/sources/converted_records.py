"""Data of any format as FastChat's records, for those who read records as Python objects."""

from __future__ import annotations

import io
import re

# Keys next to which messages may not be what is to be learned; a quote inside a text is escaped.
_DOUBTFUL = re.compile(rb'"(completion|response|output|answer|target|chosen|rejected|label)"\s*:')


def as_sharegpt(data: bytes, name: str, data_format: str = "auto") -> bytes:
    """`data` itself where its records are FastChat's own, else an array of records as ShareGPT.

    ValueError for records that cannot be read, and for the format text, which has no conversations. What is
    no JSON comes back as it is, for its reader to say so.
    """
    from fastsft import _C

    try:
        found = _C.detect_data_format(_C.DataInput(name, io.BytesIO(data).read, data_format=data_format))
    except (ValueError, RuntimeError):
        return data
    if found == ("sharegpt", ""):
        if data_format == "auto" and _DOUBTFUL.search(data):
            _check_clear(data, name)
        return data
    if found[0] == "text":
        raise ValueError(f"{name}: records of text have no conversations that a script could read")
    parts: list[bytes] = []
    source = _C.DataInput(name, io.BytesIO(data).read, data_format=data_format)
    summary = _C.convert_inputs([source], "sharegpt", True, parts.append, lambda _: None)
    if summary.num_faults:
        raise ValueError(
            f"{name}: {summary.num_faults:,} records cannot be read as conversations: {summary.faults[0]}; "
            "fastsft data convert --on_bad_sample skip writes the others"
        )
    return b"".join(parts)


def _check_clear(data: bytes, name: str) -> None:
    """ValueError for records whose messages are not what is to be learned, or not clearly."""
    from fastsft import _C

    try:
        summary = _C.convert_inputs(
            [_C.DataInput(name, io.BytesIO(data).read)], "sharegpt", True, lambda _: None, lambda _: None
        )
    except (ValueError, RuntimeError):
        return  # its reader says so
    doubts = ("other_format", "bad_field")
    fault = next((fault for fault in summary.faults if fault.remark in doubts), None)
    if fault is not None:
        raise ValueError(f"{name}: {fault}")
