"""Run short programs one after the other on the fake device.

usage: python planted_programs.py PROGRAMS

PROGRAMS: a JSON object of {name: Python text}. Prints a JSON object of {name: how many races it had}.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys

import torch

DEVICE = ctypes.CDLL(f"{os.environ['FAKE_DEVICE']}/libfake_device.so")


def races_of(program: str) -> int:
    before: int = DEVICE.fake_device_races()
    exec(program, {})
    torch.cuda.synchronize()
    after: int = DEVICE.fake_device_races()
    return after - before


def main() -> None:
    print(json.dumps({name: races_of(program) for name, program in json.loads(sys.argv[1]).items()}))


if __name__ == "__main__":
    main()
