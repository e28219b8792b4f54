"""The golden run with checkpoints: the files that transformers left, directories that transformers opens."""

import json
from pathlib import Path

import pytest
import torch

from fastsft import _C
from warm_ranks import WarmRanks

GOLDEN = Path(__file__).parents[1] / "golden" / "trainer"
# Pickles of transformers, and what stands in their place.
PICKLES = {"optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"}
OURS = {
    "chat_template.jinja",
    "data_report.json",
    "train_results.json",
    "all_results.json",
    "loss.html",
    "loss.png",
    "training_args.json",
    "fastsft_state.json",
    "fastsft_finished.json",
    ".fastsft-files.json",
    "manifest.json",
    "optimizer-rank-00000-of-00001.safetensors",
    "random-state-rank-00000.json",
}


@pytest.fixture(scope="module")
def reference():
    return json.loads((GOLDEN / "h_resume.json").read_text())


@pytest.fixture(scope="module")
def output(warm: WarmRanks, reference, tmp_path_factory):
    """The recorded flags on one rank."""
    folder = tmp_path_factory.mktemp("output")
    warm.start(reference["flags"], folder).finish(120)
    return folder


def test_files_of_the_reference_run(output, reference):
    found = {str(path.relative_to(output)) for path in output.rglob("*") if path.is_file()}
    expected = {name for name in reference["output_files"] if Path(name).name not in PICKLES}
    assert expected <= found
    assert {Path(name).name for name in found - expected} == OURS


def test_trainer_state_of_the_reference_run(output, reference):
    ours = json.loads((output / "checkpoint-3" / "trainer_state.json").read_text())
    theirs = reference["trainer_state"]
    assert ours.keys() == theirs.keys()
    measured = {"log_history", "total_flos"}
    assert {k: v for k, v in ours.items() if k not in measured} == {
        k: v for k, v in theirs.items() if k not in measured
    }
    assert ours["total_flos"] == theirs["total_flos"]
    for mine, other in zip(ours["log_history"], theirs["log_history"], strict=True):
        assert mine.keys() == other.keys()
        # The recorded state holds losses rounded to four decimals.
        assert mine["loss"] == pytest.approx(other["loss"], abs=6e-5)


def test_weights_of_the_reference_run(output, reference):
    from safetensors.torch import load_file

    found = load_file(output / "model.safetensors")
    expected = reference["final_weights"]["tensors"]
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert list(tensor.shape) == expected[name]["shape"] and tensor.dtype == torch.float32
        assert tensor.double().norm().item() == pytest.approx(expected[name]["l2"], rel=1e-5)


def test_transformers_opens_everything(output):
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    for folder, use_cache in [(output, True), (output / "checkpoint-6", False)]:
        model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        assert not any(report.values()), report
        assert AutoConfig.from_pretrained(folder).use_cache is use_cache
        generation = GenerationConfig.from_pretrained(folder)
        assert (generation.eos_token_id, generation.bos_token_id, generation.pad_token_id) == ([2], 1, 0)
        tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=False)
        assert (tokenizer.model_max_length, tokenizer.pad_token) == (256, "<unk>")
        ids = tokenizer("A chat between a curious user").input_ids
        engine = _C.Engine((folder / "config.json").read_text())
        _C.load_model(engine, str(folder))
        with torch.no_grad():
            theirs = model(torch.tensor([ids])).logits[0]
        ours = engine.logits(torch.tensor(ids).numpy(), [len(ids)])
        assert (ours - theirs).norm() / theirs.norm() < 1e-5
