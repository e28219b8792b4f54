"""A process that gets no further thread, and what it does then; a program of test_denied_threads.

A thread's default stack is made larger than any address space, so that the kernel has no room for one
(EAGAIN), as with a limit of processes or memory. Threads that are there go on.
"""

from __future__ import annotations

import ctypes
import json
import sys
import threading
from collections.abc import Callable
from typing import Any


def deny() -> None:
    """From now on no thread can be started in this process."""
    libc, attributes = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    assert libc.pthread_attr_init(attributes) == 0
    assert libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(1 << 46)) == 0
    assert libc.pthread_setattr_default_np(attributes) == 0
    try:
        threading.Thread(target=int).start()
    except RuntimeError:
        return
    raise AssertionError("a thread was started")


def label(path: str) -> Any:
    """The checksum of a file's rows, by eight threads if there are any; and of its texts' tokens."""
    from fastsft import _C
    from fastsft.data.chat.labelling import LabelSettings, make_labeller
    from fastsft.sources.data_files import DataFile
    from fastsft.sources.readers import open_input
    from fastsft.tokenizer.json_tokenizer import byte_tokenizer

    settings = LabelSettings(mask_policy="spans", template="vicuna_v1.1")
    labeller = make_labeller(byte_tokenizer(["</s>"]), 256, -1, settings)
    labelled = _C.label_inputs([open_input(DataFile(path))], labeller)
    return [labelled.report.num_records, labelled.dataset.checksum()]


def limit_a_phase(_: str) -> Any:
    """What the native core says where a thread is needed."""
    from fastsft import _C

    try:
        _C.enter_phase("saving", timeout_seconds=60.0)
    except RuntimeError as error:
        return [type(error).__name__, str(error)]
    return "started"


def write_part(folder: str, shim: str) -> Any:
    """The files of a checkpoint's part, and of its ranges, when threads but this one have no memory.

    shim: the loaded library whose `armed` takes it away.
    """
    from engines import new_engine
    from fastsft import _C

    config = {
        "model_type": "llama", "vocab_size": 8, "hidden_size": 8, "intermediate_size": 8,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    engine = new_engine(json.dumps(config), num_threads=1)
    armed = ctypes.c_int.in_dll(ctypes.CDLL(shim), "armed")
    armed.value = 1
    try:
        files, ranges = _C.write_part(
            engine, folder, dtype="float32", max_shard_size=1 << 30, with_model=True, with_state=True
        )
    finally:
        armed.value = 0
    return sorted({each.name for each in (*files, *ranges)})


def main(when: str, what: str, *words: str) -> None:
    """when: `never`, `now`, or `training`: as soon as a Trainer trains. what: `run`, or a function above."""
    import fastsft.train
    from fastsft.program import main as entry
    from fastsft.trainer import Trainer

    if when == "training":
        train = Trainer.train
        Trainer.train = lambda *given, **named: (deny(), train(*given, **named))[1]  # type: ignore[method-assign]
    elif when == "now":
        deny()
    if what == "run":
        sys.argv = ["fastsft.train", *words]
        entry.run_script(fastsft.train.train)
        return
    functions: dict[str, Callable[..., Any]] = {
        "label": label, "limit_a_phase": limit_a_phase, "write_part": write_part,
    }  # fmt: skip
    print(json.dumps(functions[what](*words)))


if __name__ == "__main__":
    main(*sys.argv[1:])
