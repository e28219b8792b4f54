"""Known library replacements that compute the same, recognized by module, name and code."""

from __future__ import annotations

import sys
from types import FunctionType

from fastsft.model.family import GEMMA, is_native
from fastsft.originals.functions import is_defined_there, plain

# These replacements compute exact causal attention within each row, without padding and dropout. They differ
# from the original only in the mask's form.
_OF_FLASH = ("forward", "_prepare_decoder_attention_mask")
_EXACT_ATTENTION = {
    "fastchat.train.llama_flash_attn_monkey_patch": _OF_FLASH,
    "fastchat.train.llama2_flash_attn_monkey_patch": _OF_FLASH,
    "fastchat.train.llama_xformers_attn_monkey_patch": ("xformers_forward",),
    "longchat.train.monkey_patch.llama_flash_attn_monkey_patch": _OF_FLASH,
    # torch's attention with is_causal; differs only if a row ends with padding
    "toolbench.train.llama_flash_attn_monkey_patch": ("forward_2", "_prepare_decoder_attention_mask"),
}
# Fused kernels that compute these families' formulas: rotation, norm without offset, SwiGLU, and head with
# cross entropy. The package's other kernels compute other formulas (GEGLU, Gemma's norm).
_LIGER = {
    "liger_kernel.transformers.rope": ("liger_rotary_pos_emb",),
    "liger_kernel.transformers.rms_norm": ("LigerRMSNorm", "LigerRMSNorm.forward"),
    "liger_kernel.transformers.swiglu": (
        "LigerSwiGLUMLP", "LigerSwiGLUMLP.forward", "LigerPhi3SwiGLUMLP", "LigerPhi3SwiGLUMLP.forward",
    ),
    "liger_kernel.transformers.functional": ("liger_cross_entropy",),
}  # fmt: skip
_LIGER_MODELS = "liger_kernel.transformers.model"
# An autograd function that computes F.linear without saving gathered weights. DeepSpeed replaces F.linear
# with this function, and never restores the original.
_DEEPSPEED = ("deepspeed.runtime.zero.linear", "zero3_linear_wrap")


def equal_replacement(value: object) -> str | None:
    """Return the phrase that names a known replacement in messages; None for other values."""
    function = value if isinstance(value, type) else plain(value)
    if isinstance(function, type):
        module, name = function.__module__, function.__qualname__
    elif isinstance(function, FunctionType):
        module, name = str(function.__globals__.get("__name__", "")), function.__code__.co_qualname
    else:
        return None
    notice = _notice(module, name)
    return notice if notice is not None and _is_defined(function, module, name) else None


def _notice(module: str, name: str) -> str | None:
    if name in _EXACT_ATTENTION.get(module, ()):
        return f"{module}, whose attention fastsft computes itself,"
    if name in _LIGER.get(module, ()) or (name == "lce_forward" and _is_equal_head(module)):
        return "liger_kernel, whose kernels compute what fastsft's do,"
    if (module, name) == _DEEPSPEED:
        return "DeepSpeed's linear, which computes what fastsft's does,"
    return None


def _is_equal_head(module: str) -> bool:
    """Return True if liger_kernel's `module` has the head and the cross entropy of a native family."""
    package, _, family = module.rpartition(".")
    return package == _LIGER_MODELS and family not in GEMMA and is_native({"model_type": family})


def _is_defined(value: type | FunctionType, module: str, name: str) -> bool:
    """Return True if the file of `module` defines this function or class with the same code."""
    if isinstance(value, type):
        return _defines_class(module, value)
    return module in sys.modules and is_defined_there(value, module, name)


def _defines_class(module: str, kind: type) -> bool:
    """Return True if the module contains this class, with the methods that the file defines."""
    if vars(sys.modules.get(module, object)).get(kind.__qualname__) is not kind:
        return False
    functions = {name: value for name, value in vars(kind).items() if isinstance(value, FunctionType)}
    return all(
        is_defined_there(value, module, f"{kind.__qualname__}.{name}") for name, value in functions.items()
    )
