"""Hints for flags of other trainers: TRL, peft, LLaMA-Factory, axolotl, Unsloth and torchtune."""

from __future__ import annotations

import re
from collections.abc import Mapping

# short name -> full name of each flag for which every command accepts both
SHORT_NAMES = {"model": "model_name_or_path", "data": "data_path"}
_SPLIT = "--eval_split, a share below 1 or a number of conversations"
# flag to use in fastsft -> its names in other trainers
_WRITE = {
    "--model_name_or_path":
    "model base_model model_name model_path model_id model_dir pretrained_model_name_or_path "
    "pretrained_model base_model_name",
    "--data_path":
    "data dataset datasets dataset_name dataset_path dataset_dir data_file data_files data_dir train_file "
    "train_files train_data train_data_path train_dataset training_data",
    "--eval_data_path":
    "eval_file eval_data eval_dataset validation_file validation_data val_data val_file test_datasets "
    "test_file",
    _SPLIT:
    "val_size val_set_size validation_split_percentage validation_split test_size val_ratio val_split "
    "eval_ratio eval_size test_split validation_size valid_size validation_ratio",
    "--eval_data_path for files that are there, as in hf://datasets/owner/name/test-*":
    "dataset_test_split test_split_name eval_split_name",
    "--output_dir": "output output_path out_dir save_dir save_path checkpoint_dir",
    "--learning_rate": "lr base_lr init_lr",
    "--lr_scheduler_type": "lr_scheduler scheduler schedule lr_schedule scheduler_type",
    "--warmup_ratio or --warmup_steps":
    "warmup lr_warmup warmup_fraction num_warmup_steps lr_warmup_steps",
    "--lr_scheduler_type cosine_with_min_lr with --lr_scheduler_kwargs":
    "min_lr cosine_min_lr_ratio lr_min min_lr_ratio",
    "--optim": "optimizer optimizer_type optimiser",
    "--weight_decay": "wd",
    "--adam_beta1 and --adam_beta2": "betas adam_betas beta1 beta2",
    "--adam_epsilon": "eps adam_eps epsilon",
    "--max_grad_norm": "clip_grad clip_grad_norm grad_clip gradient_clipping gradient_clip_val max_norm",
    "--num_train_epochs": "epochs num_epochs n_epochs max_epochs num_train_epoch train_epochs",
    "--max_steps":
    "steps num_steps n_steps max_iters iters iterations total_steps num_train_steps max_train_steps "
    "training_steps max_steps_per_epoch",
    "--per_device_train_batch_size":
    "batch_size bs train_batch_size micro_batch_size per_device_batch_size device_batch_size "
    "mini_batch_size train_micro_batch_size_per_gpu",
    "--per_device_train_batch_size, the conversations of one rank; a step has that times "
    "--gradient_accumulation_steps times the ranks":
    "global_batch_size total_batch_size",
    "--per_device_eval_batch_size": "eval_batch_size",
    "--gradient_accumulation_steps":
    "gradient_accumulation grad_accum grad_accumulation_steps grad_accum_steps accumulation_steps "
    "accumulate_grad_batches gas",
    "--model_max_length":
    "max_length max_len max_seq_length max_seq_len sequence_len seq_len seq_length block_size cutoff_len "
    "context_length max_tokens max_sequence_length",
    "--bf16 True, which computes in bfloat16 over float32 weights (--save_dtype: of the saved model)":
    "dtype torch_dtype precision mixed_precision compute_dtype pure_bf16 model_dtype",
    "--gradient_checkpointing True, or nothing: --recompute auto takes what memory needs":
    "activation_checkpointing use_gradient_checkpointing enable_activation_checkpointing "
    "gradient_checkpoint",
    "--early_stopping_patience with --eval_strategy, and --load_best_model_at_end True for the best weights":
    "early_stopping early_stopping_steps early_stop early_stop_patience patience",
    "--sample_prompts, a file of prompts or a number of evaluation conversations":
    "eval_table_size generate_samples predict_with_generate eval_sample_generation num_generation_samples",
    "--sample_max_new_tokens": "eval_max_new_tokens generation_max_new_tokens",
    "--early_stopping_threshold": "early_stopping_delta min_delta early_stopping_min_delta",
    "--eval_strategy epoch, or steps with --eval_steps":
    "evals_per_epoch eval_interval eval_every eval_freq",
    "--save_strategy epoch, or steps with --save_steps":
    "saves_per_epoch save_interval save_every save_freq checkpoint_interval checkpointing_steps",
    "--logging_steps": "log_interval log_every log_every_n_steps logging_interval log_freq log_steps",
    "--report_to wandb, with WANDB_PROJECT and WANDB_ENTITY in the environment":
    "wandb use_wandb wandb_project wandb_entity wandb_run_name wandb_run_id wandb_name wandb_watch "
    "wandb_log_model",
    "--report_to": "with_tracking tracker logger use_tensorboard use_mlflow use_swanlab",
    "--run_name": "experiment_name exp_name project_name",
    "--resume_from_checkpoint, or nothing: a run resumes by itself":
    "resume resume_from auto_resume_from_checkpoints auto_resume resume_path",
    "--seed": "random_seed random_state rng_seed",
    "--data_seed": "shuffle_seed",
    "--template": "conv_template conversation_template prompt_template chat_template prompt_style",
    "--default_system": "default_system_message default_system_prompt system_prompt system_message system",
    "--learn last":
    "mask_history train_on_last_turn train_on_last_turn_only last_response_loss last_round_loss "
    "train_on_last_message_only",
    "--learn last, --learn_thoughts filled or --learn_tool_calls False": "loss_scale",
    '"enable_thinking" and "chat_template_kwargs" in a record': "enable_thinking chat_template_kwargs",
    "--train_sampling_strategy": "sampler",
    '--fsdp "full_shard auto_wrap offload"':
    "cpu_offload fsdp_cpu_offload offload_params offload_optimizer",
    '--fsdp "full_shard auto_wrap"': "zero_stage zero zero3 zero2 use_fsdp use_deepspeed fsdp_strategy",
    "--use_cpu True for the CPU; GPUs that are seen are used (CUDA_VISIBLE_DEVICES)":
    "device device_map gpu gpus gpu_id gpu_ids n_gpu cuda use_cuda accelerator cuda_visible_devices",
    "FASTSFT_NUM_PROCESSES in the environment, or torchrun --nproc_per_node, for the number of ranks":
    "num_gpus num_processes nproc_per_node world_size num_machines nnodes num_nodes n_gpus ranks num_ranks "
    "n_ranks num_devices n_devices devices",
    "--context_parallel_size":
    "sequence_parallel_size sequence_parallel_degree cp_size sp_size ulysses_size ulysses_degree "
    "ulysses_sequence_parallel_size cp_degree context_parallel sequence_parallel cp sp",
    "--neftune_noise_alpha": "neftune_alpha neft_alpha neftune",
    "--hub_model_id": "hub_repo_id repo_id",
    "--dataloader_num_workers": "num_workers",
}  # fmt: skip
# name in other programs -> flag of a command that training does not have
OF_COMMANDS = dict.fromkeys(
    ("ranks", "n_ranks", "num_gpus", "n_gpus", "num_processes", "nproc_per_node"), "world_size"
)
# reason why fastsft has no such flag -> the flag's names in other trainers
_ABSENT = {
    "leave it out; LoRA has its base model in 4 bits (NF4, double quantisation) with --lora True --q_lora "
    "True, other weights are float32, and --bf16 True computes in bfloat16":
    "load_in_4bit load_in_8bit use_4bit use_8bit quantization quantization_bit quantization_method "
    "quantize quant_type bnb_4bit_compute_dtype bnb_4bit_quant_type bnb_4bit_use_double_quant "
    "use_nested_quant use_bnb_nested_quant bnb_4bit_quant_storage double_quant double_quantization bits "
    "gptq nf4 load_in_fp8 gptq_groupsize use_quantization",
    "leave it out: conversations are laid end to end without padding, and each sees itself alone":
    "packing sample_packing neat_packing eval_packing eval_sample_packing packing_strategy packing_method "
    "pack pad_to_sequence_len pad_to_max_length padding_free max_packed_sequence_len use_packing packed "
    "multipack group_texts pad_to_multiple_of",
    "leave it out: there is one attention, exact and without padding":
    "attn_implementation attn_impl flash_attn flash_attention flash_attention_2 use_flash_attn "
    "use_flash_attn_2 use_flash_attention use_flash_attention_2 sdp_attention sdpa xformers "
    "xformers_attention eager_attention use_xformers attention attn shift_attn flash_attn_cross_entropy "
    "flash_attn_rms_norm s2_attention flex_attention",
    "leave it out: replies alone are learned (--learn last, after_last_user, marked: some of them)":
    "train_on_inputs train_on_prompt train_on_responses_only completion_only_loss assistant_only_loss "
    "completion_only mask_inputs train_on_input mask_prompt response_template",
    "leave it out: records are read as they are (docs/data_files.md)":
    "dataset_text_field text_column text_field dataset_kwargs dataset_config dataset_format dataset_type "
    "dataset_info messages_field field_messages prompt_column response_column input_column output_column "
    "dataset_train_split",
    "leave it out: every record is read; make a smaller file, or use --max_steps":
    "max_samples max_train_samples max_eval_samples num_samples",
    "leave it out: labels are made by threads and kept in a cache (--data_cache)":
    "preprocessing_num_workers dataset_num_proc num_proc dataset_processes dataset_prepared_path "
    "overwrite_cache tokenized_path preprocessing_batch_size dataset_batch_size",
    "leave it out: the tokenizer is that of the model directory":
    "tokenizer tokenizer_name tokenizer_name_or_path tokenizer_path tokenizer_type use_fast_tokenizer "
    "tokenizer_config use_fast special_tokens resize_vocab new_special_tokens add_tokens tokens",
    "leave it out: the family is that of config.json": "model_type model_arch architecture",
    "leave it out: download that revision, and name its directory":
    "model_revision revision revision_of_model",
    "leave it out: supervised fine-tuning is all there is":
    "stage task recipe rl dpo beta dpo_beta pref_beta pref_loss loss_type reward_model ref_model kto orpo",
    "leave it out: weights are read tensor by tensor":
    "low_cpu_mem_usage low_cpu_mem use_unsloth use_unsloth_gc fast_inference",
    "leave it out: micro-batches and recomputing are planned by memory":
    "auto_find_micro_batch max_memory gpu_memory_limit max_memory_per_gpu gpu_memory_utilization",
    "leave it out: without --lora True all weights are trained":
    "finetuning_type finetune_type train_type tuner_type freeze freeze_layers freeze_trainable_layers "
    "unfrozen_parameters trainable_params full_finetuning freeze_vision_tower freeze_backbone use_llama_pro",
    "leave it out: it changes nothing here":
    "strict plugins debug_mode tokenizer_save_jinja_files seed_worker report_mem",
    "leave it out: --loss_spike_factor leaves out steps whose loss is far above the others":
    "loss_watchdog_threshold loss_watchdog_patience",
    "leave it out: the engine has kernels of its own":
    "enable_liger_kernel liger_rope liger_rms_norm liger_swiglu liger_glu_activation liger_layer_norm "
    "liger_fused_linear_cross_entropy cut_cross_entropy liger_cross_entropy use_kernels",
    "leave it out: ranks divide the rows, and with --fsdp the weights, but no matrix and no layers":
    "tensor_parallel tensor_parallel_size tensor_model_parallel_size tp num_tp pipeline_parallel "
    "pipeline_parallel_size pipeline_model_parallel_size pp pp_size",
    "give it to torchrun, before -m fastsft.train":
    "master_port master_addr node_rank rdzv_endpoint rdzv_backend",
    "leave it out: log in with hf auth login, or set HF_TOKEN in the environment":
    "token hf_token auth_token use_auth_token",
    "leave it out: the files are mapped, and labels are kept on disk (--data_cache)": "streaming iterable",
    "leave it out: the model's own positions count": "rope_scaling rope_theta overrides_of_model_config",
    "leave it out: the roles that are learned are the assistant's (--learn, --role_map)":
    "roles_to_train train_on_eos train_on_eot message_property_mappings message_field_role "
    "message_field_content roles field_system",
    "not in; conversations are of text":
    "vision_tower image_folder image_dir mm_projector media_dir image_max_pixels image_min_pixels "
    "video_max_pixels video_min_pixels processor_type freeze_multi_modal_projector",
}  # fmt: skip
_SAID = {
    **{name: f"write {flag}" for flag, names in _WRITE.items() for name in names.split()},
    **{name: why for why, names in _ABSENT.items() for name in names.split()},
}
_LORA = re.compile(r"(^|_)(q?lora|peft|pissa|loftq|adapters?|galore|badam)(_|$)")
_LORA_NAMES = (
    "r", "rank", "additional_target", "target_modules", "modules_to_save", "use_dora", "use_rslora",
    "relora_steps", "rslora",
)  # fmt: skip
# Values of the names in _KINDS, which decide the hint: `finetuning_type: lora` means `--lora True`.
_FULL = "leave it out: without --lora True all weights are trained"
_ADAPTERS = "write --lora True"
_QLORA = "write --lora True and --q_lora True"
_OF_KIND: Mapping[str, str] = {
    "full": _FULL, "sft": _FULL, "none": _FULL, "lora": _ADAPTERS, "qlora": _QLORA, "lora+": _ADAPTERS,
    "rslora": f"{_ADAPTERS} and --lora_rslora True",
    "freeze": "fastsft trains all weights, or LoRA's adapters (--lora True): some layers alone are not in",
}  # fmt: skip
_KINDS = (
    "finetuning_type", "finetune_type", "train_type", "tuner_type", "adapter", "adapter_type", "peft_type",
)  # fmt: skip
_SWITCHES = (
    "use_lora", "use_peft", "lora_enable", "enable_lora", "peft", "use_adapter", "use_qlora", "qlora",
)  # fmt: skip
_RANKS = ("lora_rank", "lora_dim", "r", "rank", "adapter_rank", "lora_attention_dim")
_TARGETS = ("lora_target", "target_modules", "lora_targets", "lora_target_linear", "lora_modules")
_WHOLE = ("modules_to_save", "additional_target")
_PATHS = ("lora_model_dir", "adapter_name_or_path", "peft_model_path", "adapter_path", "resume_lora")
_ALL = ("all", "all-linear", "all_linear", "true", "1")
_FILES = ("datasets", "dataset", "test_datasets", "eval_dataset", "dataset_mixer")
_ON = ("true", "yes", "on", "1")
_OFF = ("false", "no", "off", "none", "null", "")
_OF_RECORDS = ("enable_thinking",)  # flags that change the text if they are off, too
_HUB_NAME = re.compile(r"[\w-]+/[\w.-]+(?<!\.json)(?<!\.jsonl)(?<!\.parquet)")


def is_of_lora(name: str) -> bool:
    """True if a flag with this name (without leading dashes) is about LoRA or another kind of adapter."""
    return name in _LORA_NAMES or _LORA.search(name) is not None


def is_of_quantising(name: str) -> bool:
    """True if a flag with this name (without leading dashes) makes weights of fewer bits."""
    return "in 4 bits (NF4" in _SAID.get(name, "")


def about_foreign(name: str) -> str | None:
    """Return a hint for another trainer's flag: the flag to use in fastsft, or why fastsft has none.

    None for a name that no other trainer has. name: without leading dashes, words joined by `_`.
    """
    return _SAID.get(name)


def foreign_names() -> dict[str, str]:
    """Return the hint for each name of other trainers' flags."""
    return dict(_SAID)


def place_names() -> set[str]:
    """Return the names of flags for a model, data or output, here and in other trainers."""
    flags = ("--model_name_or_path", "--data_path", "--output_dir")
    return {flag.removeprefix("--") for flag in flags} | {
        name for flag in flags for name in _WRITE[flag].split()
    }


def about_value(name: str, value: object) -> str | None:
    """Return a hint for another trainer's flag with a value; None if the value does not change the hint.

    name: without leading dashes, words joined by `_`. value: from a file, Python or the command line.
    """
    word = str(value).strip().lower()
    if name in _KINDS and word in _OF_KIND:
        return _OF_KIND[word]
    if word in _OFF and name not in _OF_RECORDS:
        return _FULL if name in (*_KINDS, *_SWITCHES) else "leave it out: it is off"
    if name in _SWITCHES and word in _ON:
        return _QLORA if "qlora" in name else _ADAPTERS
    if name in _RANKS and word.isdigit():
        return f"write --lora True and --lora_r {word}"
    if name in _TARGETS:
        return f"write --lora True and --lora_target_modules {_modules(value, word)}"
    if name in _WHOLE:
        return f"write --lora True and --lora_modules_to_save {_modules(value, word)}"
    if name in _PATHS:
        return f"write --lora True and --lora_weight_path {value}"
    if (share := _eval_share(name, word)) is not None:
        return f"write --eval_split {share:g}"
    if name == "use_rslora" and word in _ON:
        return "write --lora True and --lora_rslora True"
    if name == "stage" and word not in ("sft", "1"):
        return f"supervised fine-tuning is all there is: {word} is not in"
    return _about_files(name, value)


def _eval_share(name: str, word: str) -> float | None:
    """Return the value for --eval_split that a flag of another trainer means; None for other flags."""
    if name not in _WRITE[_SPLIT].split():
        return None
    try:
        return float(word) / (100 if name == "validation_split_percentage" else 1)
    except ValueError:
        return None


def _modules(value: object, word: str) -> str:
    if word in _ALL and not isinstance(value, list):
        return "all-linear"
    names = value if isinstance(value, list | tuple) else str(value).replace(",", " ").split()
    return " ".join(map(str, names))


def _about_files(name: str, value: object) -> str | None:
    """Return the hint for a list of files or data sets, as in axolotl files; None for other values."""
    if name not in _FILES or not isinstance(value, list) or not value:
        return None
    paths = [item.get("path") if isinstance(item, dict) else item for item in value]
    if not all(isinstance(path, str) for path in paths):
        return None
    paths = [f"hf://datasets/{path}" if _HUB_NAME.fullmatch(str(path)) else path for path in paths]
    flag = "--eval_data_path" if name in ("test_datasets", "eval_dataset") else "--data_path"
    return f"write {flag} {','.join(map(str, paths))}; the form of records is found (--data_format names it)"
