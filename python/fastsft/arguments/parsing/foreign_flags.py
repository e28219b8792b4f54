"""Flags of other trainers, and what to write here: TRL, peft, LLaMA-Factory, axolotl, Unsloth, torchtune."""

from __future__ import annotations

import re

_LORA = re.compile(r"(^|_)(q?lora|peft|pissa|loftq|adapters?|galore|badam)(_|$)")

# Flags that have a second, short name in every command.
SHORT_NAMES = {"model": "model_name_or_path", "data": "data_path"}

# What to write instead, and what others call it.
_WRITE: tuple[tuple[str, str], ...] = (
    (
        "--model_name_or_path",
        "model base_model model_name model_path model_id model_dir pretrained_model_name_or_path "
        "pretrained_model base_model_name",
    ),
    (
        "--data_path",
        "data dataset datasets dataset_name dataset_path dataset_dir data_file data_files data_dir "
        "train_file train_files train_data train_data_path train_dataset training_data",
    ),
    (
        "--eval_data_path",
        "eval_file eval_data eval_dataset validation_file validation_data val_data val_file test_datasets "
        "test_file",
    ),
    (
        "--output_dir",
        "output output_path out_dir save_dir save_path checkpoint_dir",
    ),
    (
        "--learning_rate",
        "lr base_lr init_lr",
    ),
    (
        "--lr_scheduler_type",
        "lr_scheduler scheduler schedule lr_schedule scheduler_type",
    ),
    (
        "--warmup_ratio or --warmup_steps",
        "warmup lr_warmup warmup_fraction num_warmup_steps lr_warmup_steps",
    ),
    (
        "--lr_scheduler_type cosine_with_min_lr with --lr_scheduler_kwargs",
        "min_lr cosine_min_lr_ratio lr_min min_lr_ratio",
    ),
    (
        "--optim",
        "optimizer optimizer_type optimiser",
    ),
    (
        "--weight_decay",
        "wd",
    ),
    (
        "--adam_beta1 and --adam_beta2",
        "betas adam_betas beta1 beta2",
    ),
    (
        "--adam_epsilon",
        "eps adam_eps epsilon",
    ),
    (
        "--max_grad_norm",
        "clip_grad clip_grad_norm grad_clip gradient_clipping gradient_clip_val max_norm",
    ),
    (
        "--num_train_epochs",
        "epochs num_epochs n_epochs max_epochs num_train_epoch train_epochs",
    ),
    (
        "--max_steps",
        "steps num_steps n_steps max_iters iters iterations total_steps num_train_steps max_train_steps "
        "training_steps max_steps_per_epoch",
    ),
    (
        "--per_device_train_batch_size",
        "batch_size bs train_batch_size micro_batch_size per_device_batch_size device_batch_size "
        "mini_batch_size train_micro_batch_size_per_gpu",
    ),
    (
        "--per_device_train_batch_size, the conversations of one rank; a step has that times "
        "--gradient_accumulation_steps times the ranks",
        "global_batch_size total_batch_size",
    ),
    (
        "--per_device_eval_batch_size",
        "eval_batch_size",
    ),
    (
        "--gradient_accumulation_steps",
        "gradient_accumulation grad_accum grad_accumulation_steps grad_accum_steps accumulation_steps "
        "accumulate_grad_batches gas",
    ),
    (
        "--model_max_length",
        "max_length max_len max_seq_length max_seq_len sequence_len seq_len seq_length block_size "
        "cutoff_len context_length max_tokens max_sequence_length",
    ),
    (
        "--bf16 True, which computes in bfloat16 over float32 weights (--save_dtype: of the saved model)",
        "dtype torch_dtype precision mixed_precision compute_dtype pure_bf16 model_dtype",
    ),
    (
        "--gradient_checkpointing True, or nothing: --recompute auto takes what memory needs",
        "activation_checkpointing use_gradient_checkpointing enable_activation_checkpointing "
        "gradient_checkpoint",
    ),
    (
        "--eval_strategy epoch, or steps with --eval_steps",
        "evals_per_epoch eval_interval eval_every eval_freq",
    ),
    (
        "--save_strategy epoch, or steps with --save_steps",
        "saves_per_epoch save_interval save_every save_freq checkpoint_interval checkpointing_steps",
    ),
    (
        "--logging_steps",
        "log_interval log_every log_every_n_steps logging_interval log_freq log_steps",
    ),
    (
        "--report_to wandb, with WANDB_PROJECT and WANDB_ENTITY in the environment",
        "wandb use_wandb wandb_project wandb_entity wandb_run_name wandb_run_id wandb_name wandb_watch "
        "wandb_log_model",
    ),
    (
        "--report_to",
        "with_tracking tracker logger use_tensorboard use_mlflow use_swanlab",
    ),
    (
        "--run_name",
        "experiment_name exp_name project_name",
    ),
    (
        "--resume_from_checkpoint, or nothing: a run resumes by itself",
        "resume resume_from auto_resume_from_checkpoints auto_resume resume_path",
    ),
    (
        "--seed",
        "random_seed random_state rng_seed",
    ),
    (
        "--data_seed",
        "shuffle_seed",
    ),
    (
        "--template",
        "conv_template conversation_template prompt_template chat_template prompt_style",
    ),
    (
        "--train_turns last",
        "mask_history train_on_last_turn",
    ),
    (
        "--train_sampling_strategy",
        "sampler",
    ),
    (
        '--fsdp "full_shard auto_wrap offload"',
        "cpu_offload fsdp_cpu_offload offload_params offload_optimizer",
    ),
    (
        '--fsdp "full_shard auto_wrap"',
        "zero_stage zero zero3 zero2 use_fsdp use_deepspeed fsdp_strategy",
    ),
    (
        "--use_cpu True for the CPU; GPUs that are seen are used (CUDA_VISIBLE_DEVICES)",
        "device device_map gpu gpus gpu_id gpu_ids n_gpu cuda use_cuda accelerator cuda_visible_devices",
    ),
    (
        "FASTSFT_NUM_PROCESSES in the environment, or torchrun --nproc_per_node, for the number of ranks",
        "num_gpus num_processes nproc_per_node world_size num_machines nnodes num_nodes n_gpus",
    ),
    (
        "--neftune_noise_alpha",
        "neftune_alpha neft_alpha neftune",
    ),
    (
        "--hub_model_id",
        "hub_repo_id repo_id",
    ),
    (
        "--dataloader_num_workers",
        "num_workers",
    ),
)

# Why there is no such flag, and what others call it.
_ABSENT: tuple[tuple[str, str], ...] = (
    (
        "leave it out; LoRA has its base model in 4 bits (NF4, double quantisation) with --lora True "
        "--q_lora True, other weights are float32, and --bf16 True computes in bfloat16",
        "load_in_4bit load_in_8bit use_4bit use_8bit quantization quantization_bit quantization_method "
        "quantize quant_type bnb_4bit_compute_dtype bnb_4bit_quant_type bnb_4bit_use_double_quant "
        "use_nested_quant use_bnb_nested_quant bnb_4bit_quant_storage double_quant double_quantization bits"
        " gptq fp8 nf4 load_in_fp8 gptq_groupsize use_quantization",
    ),
    (
        "leave it out: conversations are laid end to end without padding, and each sees itself alone",
        "packing sample_packing neat_packing eval_packing eval_sample_packing packing_strategy "
        "packing_method pack pad_to_sequence_len pad_to_max_length padding_free max_packed_sequence_len "
        "use_packing packed multipack group_texts pad_to_multiple_of",
    ),
    (
        "leave it out: there is one attention, exact and without padding",
        "attn_implementation attn_impl flash_attn flash_attention flash_attention_2 use_flash_attn "
        "use_flash_attn_2 use_flash_attention use_flash_attention_2 sdp_attention sdpa xformers "
        "xformers_attention eager_attention use_xformers attention attn shift_attn flash_attn_cross_entropy"
        " flash_attn_rms_norm s2_attention flex_attention",
    ),
    (
        "leave it out: replies alone are learned (--train_turns last: the last one)",
        "train_on_inputs train_on_prompt train_on_responses_only completion_only_loss assistant_only_loss "
        "completion_only mask_inputs train_on_input mask_prompt response_template",
    ),
    (
        "leave it out: records are read as they are (docs/data_files.md)",
        "dataset_text_field text_column text_field dataset_kwargs dataset_config dataset_format "
        "dataset_type dataset_info messages_field field_messages prompt_column response_column input_column"
        " output_column dataset_train_split",
    ),
    (
        "leave it out: nothing is split off; --eval_data_path names a file",
        "val_size val_set_size validation_split_percentage eval_split validation_split test_size "
        "dataset_test_split val_ratio",
    ),
    (
        "leave it out: every record is read; make a smaller file, or use --max_steps",
        "max_samples max_train_samples max_eval_samples num_samples",
    ),
    (
        "leave it out: labels are made by threads and kept in a cache (--data_cache)",
        "preprocessing_num_workers dataset_num_proc num_proc dataset_processes dataset_prepared_path "
        "overwrite_cache tokenized_path preprocessing_batch_size dataset_batch_size",
    ),
    (
        "leave it out: the tokenizer is that of the model directory",
        "tokenizer tokenizer_name tokenizer_name_or_path tokenizer_path tokenizer_type use_fast_tokenizer "
        "tokenizer_config use_fast special_tokens resize_vocab new_special_tokens add_tokens tokens",
    ),
    (
        "leave it out: the family is that of config.json",
        "model_type model_arch architecture",
    ),
    (
        "leave it out: download that revision, and name its directory",
        "model_revision revision revision_of_model",
    ),
    (
        "leave it out: supervised fine-tuning is all there is",
        "stage task recipe rl dpo beta dpo_beta pref_beta pref_loss loss_type reward_model ref_model kto "
        "orpo",
    ),
    (
        "leave it out: weights are read tensor by tensor",
        "low_cpu_mem_usage low_cpu_mem use_unsloth use_unsloth_gc fast_inference",
    ),
    (
        "leave it out: micro-batches and recomputing are planned by memory",
        "auto_find_micro_batch max_memory gpu_memory_limit max_memory_per_gpu gpu_memory_utilization",
    ),
    (
        "leave it out: without --lora True all weights are trained",
        "finetuning_type finetune_type train_type tuner_type freeze freeze_layers freeze_trainable_layers "
        "unfrozen_parameters "
        "trainable_params full_finetuning freeze_vision_tower freeze_backbone "
        "use_llama_pro",
    ),
    (
        "leave it out: a callback does that, in a script (fastsft.EarlyStoppingCallback, docs/trainer.md)",
        "early_stopping_patience early_stopping early_stopping_threshold early_stopping_steps",
    ),
    (
        "leave it out: it changes nothing here",
        "strict plugins debug_mode tokenizer_save_jinja_files seed_worker report_mem",
    ),
    (
        "leave it out: --loss_spike_factor leaves out steps whose loss is far above the others",
        "loss_watchdog_threshold loss_watchdog_patience",
    ),
    (
        "leave it out: no replies are generated in an evaluation; fastsft chat talks to a checkpoint",
        "eval_table_size eval_max_new_tokens generate_samples predict_with_generate eval_sample_generation",
    ),
    (
        "leave it out: the engine has kernels of its own",
        "enable_liger_kernel liger_rope liger_rms_norm liger_swiglu liger_glu_activation liger_layer_norm "
        "liger_fused_linear_cross_entropy cut_cross_entropy liger_cross_entropy use_kernels",
    ),
    (
        "leave it out: the model's own positions count",
        "rope_scaling rope_theta overrides_of_model_config",
    ),
    (
        "leave it out: the roles that are learned are the assistant's (--train_turns, --role_map)",
        "roles_to_train train_on_eos train_on_eot message_property_mappings message_field_role "
        "message_field_content roles field_system",
    ),
    (
        "not in; conversations are of text",
        "vision_tower image_folder image_dir mm_projector media_dir image_max_pixels image_min_pixels "
        "video_max_pixels video_min_pixels processor_type freeze_multi_modal_projector",
    ),
)

_OF_LORA = (
    "r",
    "rank",
    "additional_target",
    "target_modules",
    "modules_to_save",
    "use_dora",
    "use_rslora",
    "relora_steps",
    "rslora",
)

_SAID = {
    **{name: f"write {flag}" for flag, names in _WRITE for name in names.split()},
    **{name: why for why, names in _ABSENT for name in names.split()},
}


def is_of_lora(name: str) -> bool:
    """True if a flag of this name, without dashes in front, is about LoRA or another adapter."""
    return name in _OF_LORA or _LORA.search(name) is not None


def about_foreign(name: str) -> str | None:
    """The flag to write instead of one of another trainer, or why there is none; None for other names.

    name: without dashes in front, words joined by `_`.
    """
    return _SAID.get(name)


def foreign_names() -> dict[str, str]:
    """All names with what is said about them."""
    return dict(_SAID)
