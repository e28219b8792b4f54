"""Two ranks save and resume: bit for bit, in every way, and when one of them fails."""

import json

import pytest

import saving_run
from fastsft import _C, saving
from fastsft.runtime.output_files import RECORD_NAME
from ranks import run_ranks
from saved_runs import OPTIMIZER, copy, same
from saving_run import make_trainer
from tiny_models import weights_of


def test_two_ranks_save_and_resume_bit_for_bit(model, tmp_path):
    run_ranks(2, saving_run.train, model, tmp_path / "whole", launched=True)
    assert _C.verify_directory(str(tmp_path / "whole" / "checkpoint-2")) == []
    copy(tmp_path / "whole", tmp_path / "resumed", 2)
    run_ranks(2, saving_run.train, model, tmp_path / "resumed", launched=True)
    assert same(weights_of(tmp_path / "resumed"), weights_of(tmp_path / "whole"))
    # One rank reads it too: the same logical tensors, the same global batch.
    trainer = make_trainer(model, tmp_path / "alone")
    saved = saving.load_checkpoint(trainer, tmp_path / "whole" / "checkpoint-6")
    assert saved["world_size"] == 2 and trainer.engine.step_count == 6
    assert same(trainer.engine.named_parameters(), weights_of(tmp_path / "whole" / "checkpoint-6"))


def reduced(model, output, memory=None, asked=None):
    first, *others = run_ranks(4, saving_run.reduce, model, output, memory, asked, launched=True)
    for other in others:
        assert {**other, "weights": None} == {**first, "weights": None}
    assert first.get("gradients", 0) == 0  # the engine has those of the plan
    return first


def test_a_resumed_run_keeps_its_reductions(model, tmp_path):
    """Memory decides between one a step and one a micro-batch; what does not fit is refused."""
    once = reduced(model, tmp_path / "once")
    tight = once["total"] - 1
    each = reduced(model, tmp_path / "each", tight)
    assert (once["planned"], once["used"], each["planned"], each["used"]) == (False, False, True, True)
    assert not same(once["weights"], each["weights"])
    state = json.loads((tmp_path / "once" / "checkpoint-2" / "fastsft_state.json").read_text())
    assert state["sync_each_batch"] is False and state["step"] == 2
    again = reduced(model, copy(tmp_path / "once", tmp_path / "again", 2))
    assert same(again["weights"], once["weights"])
    roomy = reduced(model, copy(tmp_path / "each", tmp_path / "roomy", 2))
    assert (roomy["planned"], roomy["used"]) == (False, True)
    assert same(roomy["weights"], each["weights"])
    refused = reduced(model, copy(tmp_path / "once", tmp_path / "refused", 2), tight)
    assert "micro-batches of 1 tokens and one reduction a step, with which" in refused["refused"]
    assert "does not fit" in refused["refused"] and "--sync_each_batch rounds" in refused["refused"]
    other = reduced(model, copy(tmp_path / "once", tmp_path / "other", 2), tight, True)
    assert other["used"] and not same(other["weights"], once["weights"])


def test_a_run_without_accumulation_gives_whole_gradients_back(model, tmp_path):
    found = run_ranks(2, saving_run.accumulate_less, model, tmp_path, launched=True)
    assert found == [[(False, 0), (True, 0)]] * 2


@pytest.mark.thorough
def test_a_checkpoint_of_an_older_release_goes_on_with_a_reduction_a_micro_batch(model, tmp_path):
    each = reduced(model, tmp_path / "each", asked=True)
    folder = copy(tmp_path / "each", tmp_path / "old", 2) / "checkpoint-2"
    state = json.loads((folder / "fastsft_state.json").read_text())
    del state["sync_each_batch"]
    manifest = _C.read_manifest(str(folder))
    files = [file for file in manifest.files if file.name != "fastsft_state.json"]
    (folder / "fastsft_state.json").unlink()
    files.append(_C.write_file(str(folder / "fastsft_state.json"), json.dumps(state)))
    new = _C.Manifest(manifest.step, manifest.world_size, manifest.layout_hash, files)
    (folder / "manifest.json").write_text(new.json())
    resumed = reduced(model, tmp_path / "old")
    assert (resumed["planned"], resumed["used"]) == (False, True)
    assert same(resumed["weights"], each["weights"])


def test_a_rank_that_fails_fails_the_save_on_all(model, tmp_path):
    first, second = run_ranks(2, saving_run.fail, model, tmp_path, launched=True)
    assert second == "the disk of rank 1 is full"
    assert "rank 1 failed: the disk of rank 1 is full" in first
    assert not list(tmp_path.iterdir())


def files_of(folder, *, model_only=False):
    ignored = {"manifest.json", "training_args.json", RECORD_NAME}
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.name not in ignored and (not model_only or path.name.startswith(("model", "config")))
    }


def test_two_ranks_in_every_way(model, tmp_path):
    """Byte ranges of both ranks, a stream through rank 0, nodes with disks of their own: the same files."""
    outcomes = run_ranks(2, saving_run.ways, model, tmp_path, launched=True)
    parallel, stream = tmp_path / "parallel", tmp_path / "stream"
    assert files_of(parallel / "final") == files_of(stream / "final")
    assert len(list((parallel / "final").glob("model-*.safetensors"))) > 5
    assert same(weights_of(parallel / "final"), weights_of(model))
    assert files_of(parallel / "checkpoint-0") == files_of(stream / "checkpoint-0")
    assert _C.list_checkpoints(str(parallel)) == ["checkpoint-0", "checkpoint-2"]
    saved = [parallel / "checkpoint-0", parallel / "checkpoint-2", stream / "checkpoint-0"]
    saved += [tmp_path / f"node-{rank}" / "checkpoint-0" for rank in range(2)]
    assert [_C.verify_directory(str(path)) for path in saved] == [[]] * 5
    # Both nodes have all of it.
    first, second = (files_of(tmp_path / f"node-{rank}" / "checkpoint-0") for rank in range(2))
    states = [json.loads(files.pop("trainer_state.json")) for files in (first, second)]
    assert [state.pop("is_world_process_zero") for state in states] == [True, False]
    assert (
        states[0] == states[1]
        and first == second
        and OPTIMIZER in first
        and "random-state-rank-00001.json" in first
    )
    whole = files_of(tmp_path / "node-1", model_only=True)
    assert whole == files_of(tmp_path / "node-0", model_only=True) and "model.safetensors" in whole
    assert same(weights_of(tmp_path / "node-1"), weights_of(parallel / "checkpoint-0"))
    # A rank that failed behind the training is heard of on both, after the same step.
    assert outcomes[0][0] == outcomes[1][0]
    assert "rank 1 failed: the disk of rank 1 is full" in outcomes[0][1]
    assert outcomes[1][1] == "the disk of rank 1 is full"
