"""Keys of LLaMA-Factory's YAML files and command lines, read from the source of release 0.9.5."""

from __future__ import annotations

from fastsft.arguments.imports import shared
from fastsft.arguments.imports.draft import Draft, is_off, whole, words
from fastsft.arguments.imports.framework import Framework, named
from fastsft.arguments.imports.llamafactory_data import data_sets
from fastsft.arguments.imports.templates import llamafactory_template

_RENAMED = {
    "model_name_or_path": "model_name_or_path", "trust_remote_code": "trust_remote_code",
    "cache_dir": "cache_dir", "hf_hub_token": "hub_token", "plot_loss": "plot_loss",
    "early_stopping_steps": "early_stopping_patience",
    "default_system": "default_system",
}  # fmt: skip
_IDLE = named({
    shared.CACHE: "overwrite_cache preprocessing_num_workers preprocessing_batch_size tokenized_path "
    "data_shared_file_system",
    shared.KERNELS: "flash_attn enable_liger_kernel use_unsloth use_unsloth_gc use_v1_kernels use_kv_cache "
    "low_cpu_mem_usage upcast_layernorm upcast_lmhead_output fp8_backend "
    "fp8_enable_fsdp_float8_all_gather quantization_device_map",
    shared.MEMORY: "disable_gradient_checkpointing use_reentrant_gc offload_folder gradient_checkpointing",
    "it is about inference or export": "infer_backend infer_dtype do_sample temperature top_p top_k "
    "num_beams max_length max_new_tokens repetition_penalty length_penalty skip_special_tokens "
    "eval_num_beams export_dir export_size export_device export_legacy_format export_hub_model_id "
    "export_quantization_bit export_quantization_dataset export_quantization_nsamples "
    "export_quantization_maxlen vllm_maxlen vllm_gpu_util vllm_enforce_eager vllm_max_lora_rank vllm_config "
    "generation_max_length generation_num_beams",
    "the method that it belongs to is off or not in": "lora_target_parameters loraplus_lr_embedding "
    "pissa_iter pissa_convert freeze_trainable_layers freeze_trainable_modules freeze_extra_modules "
    "galore_target galore_rank galore_update_interval galore_scale galore_proj_type galore_layerwise "
    "apollo_target apollo_rank apollo_update_interval apollo_scale apollo_proj apollo_proj_type "
    "apollo_scale_type apollo_layerwise apollo_scale_front badam_mode badam_start_block badam_switch_mode "
    "badam_switch_interval badam_update_ratio badam_mask_mode badam_verbose module_dropout oft_rank "
    "oft_block_size oft_target asft_alpha eaft_alpha hyper_parallel_args pref_beta pref_ftx pref_loss "
    "dpo_label_smoothing kto_chosen_weight kto_rejected_weight simpo_gamma ref_model ref_model_adapters "
    "reward_model reward_model_type ppo_buffer_size ppo_epochs ppo_target ppo_score_norm",
    shared.TEXT: "media_dir image_max_pixels image_min_pixels image_do_pan_and_scan crop_to_patches "
    "video_max_pixels video_min_pixels video_fps video_maxlen use_audio_in_video audio_sampling_rate "
    "freeze_vision_tower freeze_multi_modal_projector",
    "there is no SwanLab; trackers are tensorboard, wandb and mlflow": "use_swanlab swanlab_project "
    "swanlab_workspace swanlab_run_name swanlab_mode swanlab_api_key swanlab_logdir swanlab_lark_webhook_url "
    "swanlab_lark_secret",
    "it only reports": "compute_accuracy print_param_status include_effective_tokens_per_second "
    "enable_torch_profiler profiler_output_dir profiler_wait_steps profiler_warmup_steps "
    "profiler_active_steps profiler_repeat profiler_record_shapes profiler_profile_memory "
    "profiler_with_stack profile_modules eval_on_each_dataset",
    "the tokenizer is that of the model directory": "use_fast_tokenizer",
    "padding is never learned, there is none": "ignore_pad_token_for_loss",
    "Ray and other launchers start fastsft by docs/clusters.md": "ray_num_workers ray_init_kwargs "
    "master_addr master_port ray_run_name resources_per_worker placement_strategy",
    "replies to sample prompts are sample_prompts": "predict_with_generate",
    "tokens are for another hub": "ms_hub_token om_hub_token",
    "records are read in blocks": "streaming buffer_size",
})  # fmt: skip
_LOST = named({
    "all weights are trained, or LoRA's adapters": "use_llama_pro use_dora pissa_init create_new_adapter "
    "use_galore use_apollo use_badam use_adam_mini use_muon loraplus_lr_ratio mixture_of_depths "
    "freeze_language_model use_mca use_hyper_parallel use_kt",
    "the loss is the mean of the tokens' cross-entropy": "use_dft_loss use_asft_loss use_eaft_loss "
    "moe_aux_loss_coef",
    "replies alone are learned": "train_on_prompt",
    shared.PACKED: "packing neat_packing",
    "every record is read: make a smaller file, or set max_steps": "max_samples",
    "the model's own template writes tools and thoughts": "tool_format preserve_thinking",
    "add tokens before (docs/templates.md, New tokens)": "resize_vocab add_tokens add_special_tokens "
    "new_special_tokens_config init_special_tokens",
    "download that revision and name its directory": "adapter_folder",
    "the model's own positions count (docs/templates.md, Long context)": "rope_scaling",
    "attention is exact": "shift_attn",
    "weights of an existing model are trained": "train_from_scratch",
    "write fp8: rowwise or tensorwise, docs/numerics.md": "fp8",
    "special tokens in texts are text": "split_special_tokens",
})  # fmt: skip
_LORA = "lora_rank lora_alpha lora_dropout lora_target additional_target use_rslora"


def _stage(draft: Draft) -> None:
    stage = draft.get("stage", "sft")
    if stage != "sft":
        way = "; text that is all learned is data_format: text" if stage == "pt" else "; write sft"
        raise ValueError(f"stage: {stage} is not in, supervised fine-tuning is all there is{way}")
    if draft.given.get("do_train") is False:
        raise ValueError("do_train: false is no training: fastsft chat replies, docs/commands.md")
    if "stage" in draft.left:
        draft.idle("stage", "supervised fine-tuning is all there is")


def _method(draft: Draft) -> None:
    """Read how weights are trained: adapters by default."""
    kind = draft.get("finetuning_type", "lora")
    if kind not in ("lora", "full"):
        raise ValueError(
            f"finetuning_type: expected lora or full, got {kind}: fastsft trains all weights or adapters"
        )
    is_lora = kind == "lora"
    if "finetuning_type" in draft.left:
        draft.carry("finetuning_type", {"lora": is_lora})
    rank = draft.get("lora_rank", 8)
    target, whole = words(draft.get("lora_target", "all")), words(draft.get("additional_target"))
    values: dict[str, tuple[str, object]] = {
        "lora_rank": ("lora_r", rank), "lora_alpha": ("lora_alpha", draft.get("lora_alpha")),
        "lora_dropout": ("lora_dropout", draft.get("lora_dropout")),
        "lora_target": ("lora_target_modules", ["all-linear"] if target == ["all"] else target),
        "additional_target": ("lora_modules_to_save", whole),
        "use_rslora": ("lora_rslora", draft.get("use_rslora")),
    }  # fmt: skip
    shared.adapters(draft, _LORA, values, is_lora)
    _quantization(draft)
    _adapter_path(draft)


def _quantization(draft: Draft) -> None:
    bits = draft.get("quantization_bit")
    for key in ("quantization_method", "quantization_type", "double_quantization"):
        usual = ("bnb", "bitsandbytes", "nf4", True) if bits else (draft.get(key),)
        draft.expect(key, usual, "q_lora has bitsandbytes' NF4 with double quantisation")
    if "quantization_bit" not in draft.left or is_off(bits):
        return
    if str(bits) == "4":
        draft.carry("quantization_bit", {"q_lora": True})
    else:
        draft.lose("quantization_bit", "the base model has 4 bits (q_lora: true) or the compute dtype")


def _adapter_path(draft: Draft) -> None:
    path = draft.get("adapter_name_or_path")
    if path is None:
        return
    if "," in str(path):
        draft.lose("adapter_name_or_path", "one adapter goes on: merge the others first (fastsft merge)")
    else:
        draft.carry("adapter_name_or_path", {"lora_weight_path": path})


def _lengths(draft: Draft) -> None:
    if "cutoff_len" in draft.left:
        draft.carry(
            "cutoff_len", {"model_max_length": draft.get("cutoff_len", 2048)},
            "longer conversations are cut at the end; there each turn is shortened",
        )  # fmt: skip


def _labels(draft: Draft) -> None:
    llamafactory_template(draft)
    draft.switch("mask_history", {"learn": "last"}, off="every reply is learned")
    draft.expect("enable_thinking", (True,), "thoughts are trained where the template writes them")


def _others(draft: Draft) -> None:
    draft.switch("pure_bf16", {"bf16": True}, "weights are float32 next to their bfloat16 values")
    draft.switch("disable_shuffling", {"train_sampling_strategy": "sequential"})
    draft.expect("model_revision", ("main",), "download the revision and name its directory")
    change = "a checkpoint in output_dir is resumed; no_resume: true starts anew, as there"
    draft.switch("overwrite_output_dir", {"overwrite_output_dir": True}, change)
    shared.optimizer(draft, "optim")
    shared.schedule(draft, "lr_scheduler_type")
    shared.trackers(draft)
    shared.deepspeed(draft)
    shared.fsdp(draft)


def _defaults(draft: Draft) -> None:
    if "finetuning_type" not in draft.given:
        draft.default("lora", True, "finetuning_type")
    if draft.values["lora"]:
        draft.default("lora_r", 8)
        draft.default("lora_alpha", 2 * whole("lora_rank", draft.values["lora_r"]), "twice lora_rank")
        draft.default("lora_dropout", 0.0)
        draft.default("lora_target_modules", ["all-linear"])
    draft.default("model_max_length", 2048, "cutoff_len")


LLAMAFACTORY = Framework(
    "LLaMA-Factory", "llamafactory", "0.9.5", _RENAMED, _IDLE, _LOST,
    f"{_LORA} stage finetuning_type quantization_bit quantization_method quantization_type "
    "double_quantization adapter_name_or_path pure_bf16 cutoff_len template mask_history "
    "enable_thinking disable_shuffling model_revision dataset dataset_dir eval_dataset val_size mix_strategy "
    "interleave_probs",
    (_stage, data_sets, _labels, _method, _lengths, _others), _defaults,
)  # fmt: skip
