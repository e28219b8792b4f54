"""FastChat's train_xformers: the same program as fastsft.train.

FastChat's script uses memory-efficient attention. In fastsft, every script uses the device's fastest exact
attention kernel.
"""

from __future__ import annotations

import os
import sys

# If this file is run by its path, its folder is in sys.path, and modules in it would hide other packages.
if __name__ == "__main__" and __spec__ is None:
    _FOLDER = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [
        *(entry for entry in sys.path if os.path.realpath(entry) != _FOLDER),
        os.path.dirname(_FOLDER),
    ]
if __name__ == "__main__":
    from fastsft.runtime.errors import end_at_interrupt

    end_at_interrupt()

from fastsft.llama_xformers_attn_monkey_patch import replace_llama_attn_with_xformers_attn
from fastsft.program.main import run_script
from fastsft.train import train

__all__ = ["replace_llama_attn_with_xformers_attn", "train"]

if __name__ == "__main__":
    run_script(train, runs_scripts=False)
