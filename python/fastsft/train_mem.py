"""FastChat's train_mem: the same loop and flags as fastsft.train, named after flash attention.

The engine takes the fastest exact kernel of the device for all three names.
"""

from __future__ import annotations

from fastsft.entry import run_script
from fastsft.train import train

if __name__ == "__main__":
    run_script(train)
