"""A receiver that loads some tensors, then dies or hangs: STORE PLAN MODE dies|hangs BUCKET."""

from __future__ import annotations

import os
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

from fastsft.weight_sync import SyncPlan, WeightGroup, WeightReceiver


def main() -> None:
    store, plan_file, mode, end, bucket = sys.argv[1:]
    plan = SyncPlan(*pickle.loads(Path(plan_file).read_bytes()))
    loaded = 0

    def load(tensors: list[Any]) -> None:
        nonlocal loaded
        loaded += len(tensors)
        if loaded > 3:
            if end == "hangs":
                time.sleep(60)
            os._exit(0)

    group = WeightGroup(dist.FileStore(store, 2), 1, 2, timeout_s=60.0)
    WeightReceiver(group, plan, load, mode=mode, deadline_s=20.0, bucket_bytes=int(bucket)).receive()


if __name__ == "__main__":
    main()
