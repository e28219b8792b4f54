"""The dtype names of safetensors, and torch's names for them."""

from __future__ import annotations

import re

TORCH_NAMES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16", "U16": "uint16", "F16": "float16", "BF16": "bfloat16", "I32": "int32", "U32": "uint32",
    "F32": "float32", "F64": "float64", "I64": "int64", "U64": "uint64",
}  # fmt: skip
STORED_NAMES = {name: stored for stored, name in TORCH_NAMES.items()}
# An element's size in bits, which is the first number in a name; BOOL has none.
BITS = {stored: int((re.findall(r"\d+", stored) or ["8"])[0]) for stored in TORCH_NAMES}
