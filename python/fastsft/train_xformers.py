"""FastChat's train_xformers: the loop and flags of fastsft.train, named after memory-efficient attention.

The engine takes the fastest exact kernel of the device for all three names.
"""

from __future__ import annotations

from fastsft.entry import run_script
from fastsft.train import train

if __name__ == "__main__":
    run_script(train)
