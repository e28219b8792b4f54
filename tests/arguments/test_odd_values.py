"""Values that nobody means: each is refused with its range, or named in a line."""

from __future__ import annotations

import pytest

from argument_outcomes import outcome_of

_WITH = "--lr_scheduler_type {} --lr_scheduler_kwargs '{}'"
_PLATEAU = "--eval_strategy epoch --lr_scheduler_type reduce_lr_on_plateau --lr_scheduler_kwargs '{}'"
REFUSED: dict[str, str] = {
    "--learning_rate -1e-5": "--learning_rate: expected 0 or more, got -1e-05",
    "--learning_rate=-1": "--learning_rate: expected 0 or more, got -1.0",
    "--learning_rate inf": "--learning_rate: expected 0 or more, got inf",
    "--learning_rate nan": "--learning_rate: expected a number, got nan",
    "--weight_decay -0.1": "--weight_decay: expected 0 or more",
    "--adam_beta1 1": "--adam_beta1: expected 0 or more and below 1",
    "--adam_beta1 -.1": "--adam_beta1: expected 0 or more and below 1",
    "--adam_beta2 1.5": "--adam_beta2: expected 0 or more and below 1",
    "--adam_epsilon -1e-8": "--adam_epsilon: expected 0 or more",
    "--max_grad_norm -1": "--max_grad_norm: expected 0 (off) or more",
    "--num_train_epochs 0": "--num_train_epochs: expected more than 0",
    "--num_train_epochs -3": "--num_train_epochs: expected more than 0",
    "--num_train_epochs inf": "--num_train_epochs: expected a finite number",
    "--max_steps 0": "--max_steps: expected the number of steps",
    "--max_steps -5": "--max_steps: expected -1 (by epochs) or more, got -5",
    "--warmup_ratio 2": "--warmup_ratio: expected a share from 0 to 1",
    "--warmup_ratio -0.1": "--warmup_ratio: expected a share from 0 to 1",
    "--warmup_steps -1": "--warmup_steps: expected a number of steps or a share below 1",
    "--warmup_steps 1.5": "--warmup_steps: expected a number of steps or a share below 1",
    "--warmup_steps inf": "--warmup_steps: expected a finite number",
    "--label_smoothing_factor 1": "--label_smoothing_factor: expected 0 or more and below 1",
    "--neftune_noise_alpha -5": "--neftune_noise_alpha: expected 0 or more",
    "--model_max_length 0": "--model_max_length: expected at least 1",
    "--model_max_length -1": "--model_max_length: expected at least 1",
    "--per_device_train_batch_size 0": "--per_device_train_batch_size: expected at least 1",
    "--per_device_train_batch_size -4": "--per_device_train_batch_size: expected at least 1",
    "--gradient_accumulation_steps 0": "--gradient_accumulation_steps: expected at least 1",
    "--micro_batch_tokens 0": "--micro_batch_tokens: expected at least 1",
    "--save_steps 0": "--save_steps: expected a number above 0",
    "--save_steps -5": "--save_steps: expected a number above 0",
    "--save_steps inf": "--save_steps: expected a finite number",
    "--eval_strategy steps --eval_steps -1": "--eval_steps: expected a number above 0",
    "--logging_steps 0": "needs --logging_steps above 0",
    "--logging_steps inf": "--logging_steps: expected a finite number",
    "--max_dropped 5": "--max_dropped: expected a share from 0 to 1 (0.05 is 5%), got 5.0",
    "--max_dropped -1": "--max_dropped: expected a share from 0 to 1",
    "--dump_masked -1": "--dump_masked: expected 0 or more samples",
    "--max_record_bytes 0": "--max_record_bytes: expected at least 1",
    "--save_patience -1": "--save_patience: expected 0 or more",
    "--seed -1": "--seed: expected 0 or more and below 2^63",
    "--seed 99999999999999999999": "--seed: expected 0 or more and below 2^63",
    "--data_seed -1": "--data_seed: expected 0 or more and below 2^63",
    "--ddp_timeout 0": "--ddp_timeout: expected at least 1",
    "--dataloader_num_workers -1": "--dataloader_num_workers: expected 0 or more",
    "--dataloader_num_workers 2 --dataloader_prefetch_factor 0": "--dataloader_prefetch_factor: expected at "
    "least 1",
    "--eval_delay -1": "--eval_delay: expected 0 or more",
    "--loss_spike_factor 0.5": "--loss_spike_factor: expected 0 (off) or a factor above 1",
    "--loss_spike_patience 0": "--loss_spike_patience: expected at least 1",
    "--max_nonfinite_skips -1": "--max_nonfinite_skips: expected at least 0",
    "--replay_check -1": "--replay_check: expected at least 0",
    "--fp16 True --initial_loss_scale 0": "expected an --initial_loss_scale above 0",
    "--fp16 True --loss_scale_window 0": "a --loss_scale_window of at least 1",
    "--lora True --lora_r 0": "--lora_r: expected at least 1",
    "--lora True --lora_r -8": "--lora_r: expected at least 1",
    "--lora True --lora_alpha 0": "--lora_alpha: expected another number than 0",
    "--lora True --lora_dropout 5": "--lora_dropout: expected 0 or more and less than 1",
    _WITH.format("cosine_with_min_lr", '{"min_lr": -1}'): "min_lr: expected 0 or more, got -1",
    _WITH.format("polynomial", '{"power": -2}'): "power: expected 0 or more, got -2",
    _WITH.format("polynomial", '{"lr_end": 1}'): "expected lr_end below the learning rate",
    _WITH.format("cosine_with_restarts", '{"num_cycles": -1}'): "num_cycles: expected 0 or more",
    _PLATEAU.format('{"factor": 5}'): "a number below 1, got 5",
    _PLATEAU.format('{"patience": -5}'): "patience: expected 0 or more",
    "--profile_steps 0": "--profile_steps: expected steps",
    "--phase_timeouts step=-5": "--phase_timeouts: expected",
    "--torch_empty_cache_steps 0": "--torch_empty_cache_steps: expected an integer above 0",
}  # fmt: skip
TOLD: dict[str, str] = {
    "--learning_rate 0": "no weight will change",
    "--learning_rate 1e-12": "hardly a weight changes",
    "--learning_rate 20": "--learning_rate 20: each step moves each weight by about as much",
    "--learning_rate 1e6": "usual are 1e-6 to 1e-3",
    "--optim sgd --learning_rate 1e6": "far above what trains a model",
    "--weight_decay 10": "--weight_decay 10: a step takes 10 times the learning rate off",
    "--adam_beta1 0.999 --adam_beta2 0.9": "may be exchanged",
    "--adam_epsilon 0": "become NaN (0/0)",
    "--adam_epsilon 1": "outweighs the gradients' size",
    "--max_grad_norm 1e-9": "shrinks each gradient to nearly nothing",
    "--num_train_epochs 1000": "each conversation is read 1,000 times",
    "--warmup_ratio 1": "all of the run is warm-up",
    "--max_steps 10 --warmup_steps 500": "a warm-up of 500 steps is not over when the run of 10 steps ends",
    "--max_steps 10 --warmup_steps 10": "the learning rate comes to 4.5e-05, never to 5e-05",
    "--label_smoothing_factor 0.9": "most of the target to tokens that are not there",
    "--neftune_noise_alpha 5000": "drowns the embeddings",
    "--model_max_length 2": "no room for a prompt and a reply",
    "--save_total_limit 0": "keeps every checkpoint, as in transformers",
    "--save_total_limit -1": "keeps every checkpoint, as in transformers",
    "--max_shard_size 5": "--max_shard_size 5 is 5 bytes",
    "--max_shard_size 5KB": "is 5,000 bytes",
    "--lora True --lora_alpha -16": "takes off what adapters add",
    "--lora True --lora_dropout 0.99": "drops most of what adapters read",
    "--lora True --lora_r 100000": "larger than most linear layers",
    _WITH.format("cosine_with_min_lr", '{"min_lr": 1}'): "min_lr 1 is above 5e-05",
    _WITH.format("cosine_with_min_lr", '{"min_lr_rate": 5}'): "min_lr_rate 5 is above 1",
}
# Values of real recipes, of which nothing is said.
USUAL = (
    "--learning_rate 2e-5 --weight_decay 0. --warmup_ratio 0.03 --lr_scheduler_type cosine",
    "--learning_rate 2e-4 --weight_decay 0.1 --adam_beta2 0.95 --max_grad_norm 0.3 --warmup_steps 100",
    "--optim sgd --learning_rate 0.5", "--learning_rate 1e-3 --optim adafactor", "--adam_epsilon 1e-6",
    "--max_steps 100 --warmup_steps 99", "--num_train_epochs 50", "--max_shard_size 500MB",
    "--save_total_limit 1",
    "--lr_scheduler_type constant --max_steps 5 --warmup_steps 0", "--label_smoothing_factor 0.1",
    "--neftune_noise_alpha 15", "--lora True --lora_r 256 --lora_alpha 512 --lora_dropout 0.1",
    _WITH.format("cosine_with_min_lr", '{"min_lr_rate": 0.1}'),
    _WITH.format("warmup_stable_decay", '{"num_decay_steps": 10, "min_lr_ratio": 0.1}'),
)  # fmt: skip


@pytest.mark.parametrize("line", REFUSED)
def test_refused(line: str) -> None:
    found = outcome_of(line)
    assert found.kind == "refused" and REFUSED[line] in found.text, found


@pytest.mark.parametrize("line", TOLD)
def test_told(line: str) -> None:
    found = outcome_of(line)
    assert found.kind == "told" and TOLD[line] in found.text, found


@pytest.mark.parametrize("line", USUAL)
def test_usual(line: str) -> None:
    found = outcome_of(line)
    assert found.kind == "taken", found.text


def test_there_are_enough_of_them() -> None:
    assert len(REFUSED) + len(TOLD) >= 60
