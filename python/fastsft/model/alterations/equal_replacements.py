"""Recognise replacements of library code that compute the same, by module, name and code."""

from __future__ import annotations

import sys
from types import FunctionType

from fastsft.originals.functions import is_defined_there, plain

# Exact causal attention inside each row without its padding, without dropout. Only the mask's form differs.
_OF_FLASH = ("forward", "_prepare_decoder_attention_mask")
_EXACT_ATTENTION = {
    "fastchat.train.llama_flash_attn_monkey_patch": _OF_FLASH,
    "fastchat.train.llama2_flash_attn_monkey_patch": _OF_FLASH,
    "fastchat.train.llama_xformers_attn_monkey_patch": ("xformers_forward",),
    "longchat.train.monkey_patch.llama_flash_attn_monkey_patch": _OF_FLASH,
    # torch's attention with is_causal: the same up to each row's padding, which is at its end.
    "toolbench.train.llama_flash_attn_monkey_patch": ("forward_2", "_prepare_decoder_attention_mask"),
}
# Fused kernels for the formulas of these families: rotation, norm without offset, SwiGLU, head with cross
# entropy. The package's other names belong to other families (GEGLU, Gemma's norm).
_LIGER = {
    "liger_kernel.transformers.rope": ("liger_rotary_pos_emb",),
    "liger_kernel.transformers.rms_norm": ("LigerRMSNorm", "LigerRMSNorm.forward"),
    "liger_kernel.transformers.swiglu": (
        "LigerSwiGLUMLP", "LigerSwiGLUMLP.forward", "LigerPhi3SwiGLUMLP", "LigerPhi3SwiGLUMLP.forward",
    ),
    "liger_kernel.transformers.functional": ("liger_cross_entropy",),
    **{f"liger_kernel.transformers.model.{family}": ("lce_forward",)
       for family in ("llama", "mistral", "qwen2", "qwen3", "phi3")},
}  # fmt: skip
# F.linear as an autograd function that saves no gathered weights; DeepSpeed leaves it in its place.
_DEEPSPEED = ("deepspeed.runtime.zero.linear", "zero3_linear_wrap")


def equal_replacement(value: object) -> str | None:
    """Return the name of a known replacement in a notice; else None."""
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
    if name in _LIGER.get(module, ()):
        return "liger_kernel, whose kernels compute what fastsft's do,"
    if (module, name) == _DEEPSPEED:
        return "DeepSpeed's linear, which computes what fastsft's does,"
    return None


def _is_defined(value: type | FunctionType, module: str, name: str) -> bool:
    """Return True if the module's file defines the function or class so."""
    if isinstance(value, type):
        return _defines_class(module, value)
    return module in sys.modules and is_defined_there(value, module, name)


def _defines_class(module: str, kind: type) -> bool:
    """Return True if the module has this class, with the methods in its file."""
    if vars(sys.modules.get(module, object)).get(kind.__qualname__) is not kind:
        return False
    functions = {name: value for name, value in vars(kind).items() if isinstance(value, FunctionType)}
    return all(
        is_defined_there(value, module, f"{kind.__qualname__}.{name}") for name, value in functions.items()
    )
