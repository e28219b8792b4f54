"""The module that FastChat's scripts import."""

import json
import re
import subprocess
import sys

import pytest

import fastsft

NAMES = [
    "train", "preprocess", "TrainingArguments", "ModelArguments", "DataArguments", "trainer_save_model_safe",
    "make_supervised_data_module", "SupervisedDataset", "LazySupervisedDataset", "IGNORE_TOKEN_ID",
    "rank0_print", "local_rank",
]  # fmt: skip


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def module(monkeypatch):
    """As imported: `train()` in this process sets its rank."""
    import fastsft.train

    monkeypatch.setattr(fastsft.train, "local_rank", None)
    return fastsft.train


def test_drop_in_names(module):
    for name in NAMES:
        assert hasattr(module, name), name
    assert module.IGNORE_TOKEN_ID == -100 and module.local_rank is None
    assert callable(module.train) and "train" not in fastsft.__all__


def test_rank0_print_speaks_once_the_rank_is_known(capsys, monkeypatch, module):
    module.rank0_print("before")
    monkeypatch.setattr(module, "local_rank", 0)
    module.rank0_print("after", 1)
    monkeypatch.setattr(module, "local_rank", 1)
    module.rank0_print("elsewhere")
    assert capsys.readouterr().out == "after 1\n"


def test_import_is_without_transformers_and_fsdp():
    code = """
import json, sys, fastsft.train
print(json.dumps([m for m in ("transformers", "torch.distributed.fsdp") if m in sys.modules]))
"""
    assert run(code) == []


def test_package_alone_imports_no_torch():
    assert run("import json, sys, fastsft; print(json.dumps('torch' in sys.modules))") is False


@pytest.mark.variants("fastsft.train]")
@pytest.mark.parametrize("module", ["fastsft.train", "fastsft.train_mem", "fastsft.train_xformers"])
def test_running_the_module_does_not_import_it_twice(module):
    code = f"""
import json, runpy, sys
from fastsft.program import main
main.run_script = lambda script, **_: print(json.dumps(script is sys.modules["fastsft.train"].train))
runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""
    assert run(code) is True


def test_lazy_names():
    assert fastsft.Trainer.__module__ == "fastsft.trainer.trainer"
    assert set(fastsft.__all__) <= set(dir(fastsft))
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = fastsft.trian


def test_other_torch_is_one_sentence(monkeypatch):
    import torch

    from fastsft import _C
    from fastsft.runtime.imports import load_native
    from fastsft.runtime.versions import minor_version

    other = "2.12.0+cpu" if minor_version(_C.torch_version) != "2.12" else "2.13.0+cpu"
    monkeypatch.setattr(torch, "__version__", other)
    with pytest.raises(ImportError, match=rf"built with torch 2\.\d+\S*, but torch {re.escape(other)} is"):
        load_native()
