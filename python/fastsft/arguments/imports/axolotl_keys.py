"""Tables of axolotl's keys, read from release 0.19.0's source."""

from __future__ import annotations

from fastsft.arguments.imports import shared
from fastsft.arguments.imports.framework import named

RENAMED = {
    "base_model": "model_name_or_path", "trust_remote_code": "trust_remote_code",
    "output_dir": "output_dir", "micro_batch_size": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "eval_batch_size": "per_device_eval_batch_size", "num_epochs": "num_train_epochs",
    "max_steps": "max_steps", "learning_rate": "learning_rate", "weight_decay": "weight_decay",
    "adam_beta1": "adam_beta1", "adam_beta2": "adam_beta2", "adam_epsilon": "adam_epsilon",
    "max_grad_norm": "max_grad_norm", "warmup_steps": "warmup_steps", "warmup_ratio": "warmup_ratio",
    "logging_steps": "logging_steps", "save_total_limit": "save_total_limit",
    "save_only_model": "save_only_model", "resume_from_checkpoint": "resume_from_checkpoint",
    "early_stopping_patience": "early_stopping_patience", "neftune_noise_alpha": "neftune_noise_alpha",
    "noisy_embedding_alpha": "neftune_noise_alpha", "seed": "seed", "ddp_timeout": "ddp_timeout",
    "tf32": "tf32", "metric_for_best_model": "metric_for_best_model",
    "greater_is_better": "greater_is_better",
    "gradient_checkpointing": "gradient_checkpointing",
    "dataloader_drop_last": "dataloader_drop_last",
    "include_tokens_per_second": "include_tokens_per_second", "wandb_name": "run_name",
    "mlflow_run_name": "run_name", "hub_revision": "hub_revision",
    "hub_strategy": "hub_strategy", "context_parallel_size": "context_parallel_size",
    "sequence_parallel_degree": "context_parallel_size",
}  # fmt: skip
IDLE = named({
    shared.CACHE: "dataset_prepared_path dataset_processes dataset_num_proc dataset_keep_in_memory "
    "skip_prepare_dataset num_dataset_shards_to_save push_dataset_to_hub is_preprocess preprocess_iterable "
    "total_num_tokens total_supervised_tokens sample_packing_eff_est",
    shared.KERNELS: "flash_attention xformers_attention sdp_attention flex_attention eager_attention "
    "sage_attention attn_implementation flash_attn_cross_entropy flash_attn_rms_norm flash_attn_fuse_mlp "
    "flash_attn_fuse_qkv flash_optimum flex_attn_compile_kwargs fused_attn_kernel experts_implementation "
    "lora_mlp_kernel lora_qkv_kernel lora_o_kernel lora_embedding_kernel chunked_cross_entropy "
    "chunked_cross_entropy_num_chunks tiled_mlp tiled_mlp_num_shards tiled_mlp_use_original_mlp use_kernels "
    "torch_compile torch_compile_backend torch_compile_mode torch_compile_options liger_rope liger_rms_norm "
    "liger_glu_activation liger_layer_norm liger_fused_linear_cross_entropy liger_swiglu liger_cross_entropy "
    "cut_cross_entropy unsloth_cross_entropy_loss unsloth_lora_mlp unsloth_lora_qkv unsloth_lora_o "
    "unsloth_rms_norm unsloth_rope",
    shared.MEMORY: "gradient_checkpointing_kwargs selective_checkpointing activation_offloading "
    "layer_offloading gc_steps gc_collect_steps torch_empty_cache_steps low_cpu_mem_usage max_memory "
    "gpu_memory_limit lora_on_cpu qlora_sharded_model_loading embeddings_skip_upcast",
    "the text that it replaces is in no template any more": "default_system_message",
    "there is no padding": "pad_to_sequence_len pad_to_multiple_of",
    "packing is off, conversations lie end to end": "eval_sample_packing sample_packing_group_size "
    "sample_packing_bin_size sample_packing_sequentially sample_packing_mp_start_method "
    "pretrain_multipack_buffer_size pretrain_multipack_attn pretraining_sample_concatenation "
    "streaming_multipack_buffer_size multipack_real_batches batch_flattening",
    "the family is that of config.json": "model_type type_of_model is_llama_derived_model "
    "is_mistral_derived_model is_falcon_derived_model is_qwen_derived_model base_model_config",
    "the tokenizer is that of the model directory": "tokenizer_type tokenizer_use_fast tokenizer_legacy "
    "tokenizer_config tokenizer_use_mistral_common tokenizer_save_jinja_files",
    "ranks are started by torchrun or FASTSFT_NUM_PROCESSES": "local_rank world_size ddp device device_map "
    "ddp_bucket_cap_mb ddp_broadcast_buffers ddp_find_unused_parameters use_ray ray_run_name "
    "ray_num_workers resources_per_worker",
    "all data is shuffled together": "shuffle_merged_datasets shuffle_before_merging_datasets",
    "it is about W&B; set WANDB_PROJECT, WANDB_ENTITY, ... in the environment": "wandb_entity wandb_watch "
    "wandb_log_model wandb_mode wandb_run_id",
    "it is about MLflow; set MLFLOW_TRACKING_URI, ... in the environment": "mlflow_tracking_uri "
    "mlflow_experiment_name hf_mlflow_log_artifacts",
    "trackers are tensorboard, wandb and mlflow": "use_comet comet_api_key comet_workspace "
    "comet_project_name comet_experiment_key comet_mode comet_online comet_experiment_config use_trackio "
    "trackio_project_name trackio_run_name trackio_space_id use_otel_metrics otel_metrics_host "
    "otel_metrics_port",
    "it only reports": "include_tkps profiler_steps profiler_steps_start eval_table_size eval_max_new_tokens "
    "do_bench_eval bench_dataset do_causal_lm_eval eval_causal_lm_metrics axolotl_config_path "
    "save_first_step generation_temperature generation_top_p generation_top_k generation_prompt_ratio "
    "generation_do_sample debug gradio_title gradio_share gradio_server_name gradio_server_port "
    "gradio_max_new_tokens gradio_temperature",
    "steps with a loss far above the others: loss_spike_factor": "loss_watchdog_threshold "
    "loss_watchdog_patience",
    "fsdp says how weights are held (docs/sharding.md)": "fsdp_version dp_shard_size dp_replicate_size",
    "it changes nothing here": "strict hf_use_auth_token auto_resume_from_checkpoints remove_unused_columns "
    "accelerator_config save_safetensors dataloader_num_workers dataloader_pin_memory "
    "dataloader_prefetch_factor lora_fan_in_fan_out merge_lora merge_method resize_token_embeddings_to_32x "
    "loraplus_lr_embedding torchdistx_path mean_resizing_embeddings experimental_skip_move_to_device "
    "fsdp_final_state_dict_type streaming trl vllm",
    "replies end with the template's stop token": "eot_tokens",
    shared.TEXT: "processor_type processor_kwargs image_size image_resize_algorithm freeze_mm_modules",
})  # fmt: skip
LOST = named({
    "supervised fine-tuning is all there is": "pretraining_dataset reward_model process_reward_model ebft",
    "all weights are trained, or LoRA's adapters": "unfrozen_parameters relora relora_steps "
    "relora_warmup_steps relora_prune_ratio relora_cpu_offload jagged_restart_steps "
    "jagged_restart_warmup_steps jagged_restart_anneal_steps lisa_n_layers lisa_step_interval "
    "lisa_layers_attribute peft_use_dora peft_layers_to_transform peft_layers_pattern peft_layer_replication "
    "peft_init_lora_weights peft_trainable_token_indices lora_rank_pattern lora_alpha_pattern "
    "lora_target_parameters loraplus_lr_ratio peft peft_ensure_weight_tying quantize_moe_experts trainer_cls "
    "shrink_embeddings reinit_weights",
    "replies alone are learned": "train_on_inputs",
    shared.PACKED: "sample_packing",
    "the base model has 4 bits (adapter: qlora) or the compute dtype": "load_in_8bit gptq "
    "model_quantization_config use_onebitllms qat quantization bnb_config_kwargs",
    "write fp8: rowwise or tensorwise, docs/numerics.md": "fp8 fp8_config",
    "one learning rate counts for all weights": "embedding_lr embedding_lr_scale lr_groups "
    "lr_quadratic_warmup cosine_constant_lr_ratio lr_div_factor adam_beta3 adam_epsilon2 optim_args "
    "optim_target_modules",
    "the loss is the mean of the tokens' cross-entropy": "use_eaft scaling_softmax",
    "the model's own configuration counts": "rope_scaling overrides_of_model_config "
    "overrides_of_model_kwargs use_pose s2_attention",
    "download that revision and name its directory": "revision_of_model",
    "add tokens before (docs/templates.md, New tokens)": "tokens added_tokens_overrides",
    "write the text to chat_template.jinja in the model directory": "chat_template_jinja",
    "a template is not told more": "chat_template_kwargs",
    "ranks share the tokens of a row, not its weights: context_parallel_size": "tensor_parallel_size",
    "every record is read": "dataset_exact_deduplication dataset_shard_num dataset_shard_idx min_sample_len",
    "tokens are trained as they are": "fix_untrained_tokens",
})  # fmt: skip
