"""Makes transformers models whose parameters are on the meta device, and whose buffers have values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fastsft.model.config_words import in_older_words, plain_numbers
from fastsft.runtime.versions import library_major

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

# Errors that transformers' classes raise for sizes and names that do not fit together.
FAULTS = (
    *(ValueError, LookupError, TypeError, AttributeError, ImportError),
    *(RuntimeError, ArithmeticError, AssertionError),
)


def empty_model(config: Mapping[str, Any], dtype: torch.dtype) -> PreTrainedModel:
    """Make the causal language model for a config.json, in training mode, with `dtype` parameters.

    ValueError if transformers has no causal language model for the configuration.
    """
    from transformers import AutoModelForCausalLM

    plain = library_config(config)
    return empty_of(
        lambda: AutoModelForCausalLM.from_config(plain, dtype=dtype),
        "transformers",
    )


def empty_of(make: Callable[[], PreTrainedModel], maker: str) -> PreTrainedModel:
    """Call `make`, and put the parameters that it creates on the meta device. ValueError if it fails.

    maker: the called code's name, for messages.
    """
    try:
        with _without_initialisation(), _parameters_on_meta():
            model = make()
    except Exception as error:  # library and model code may raise errors of any class
        raise ValueError(
            f"config.json: {maker} makes no causal language model of it: {first_line(error)}; name another "
            "model, or correct this file"
        ) from error
    model.tie_weights()  # transformers ties weights only when it initializes them
    check_model(model)
    model.train()
    return model


def library_config(config: Mapping[str, Any]) -> PretrainedConfig:
    """Make transformers' configuration object for a config.json.

    ValueError if transformers has no such class.
    """
    from transformers import AutoConfig

    own = ("model_type", "transformers_version")
    read = plain_numbers(config) if library_major() > 4 else in_older_words(config)
    plain = {key: value for key, value in read.items() if key not in own} | {"use_cache": False}
    try:
        return AutoConfig.for_model(str(config.get("model_type")), **plain)
    except Exception as error:  # transformers 5 raises its own error classes
        raise ValueError(
            f"config.json: transformers does not take it: {first_line(error)}; name another "
            "model, or correct this file"
        ) from error


def _without_initialisation() -> AbstractContextManager[None]:
    """Return transformers' context manager that skips weight initialization."""
    try:
        from transformers.initialization import no_init_weights  # transformers 5
    except ImportError:
        from transformers.modeling_utils import no_init_weights  # transformers 4
    context: AbstractContextManager[None] = no_init_weights()
    return context


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the error's type. A KeyError gives both."""
    if isinstance(error, KeyError):
        return f"{type(error).__name__}: {error}"[:200]
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[
        :200
    ]


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Move each parameter to the meta device when a module registers it."""
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        register(module, name, parameter)
        if parameter is not None and not parameter.is_meta:
            empty = nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
            module._parameters[name] = empty

    nn.Module.register_parameter = on_meta  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def check_model(model: PreTrainedModel) -> None:
    """Raise ValueError if the generic engine cannot train the model."""
    kind = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise ValueError(f"{kind} is an encoder-decoder; fastsft trains decoder-only language models")
    if getattr(model.config, "rescale_every", 0):
        raise ValueError(
            f"{kind} rescales its weights in place between training and evaluation, which the generic engine "
            'does not follow: set "rescale_every" to 0 in config.json'
        )
    for name, parameter in model.named_parameters():
        if not parameter.is_floating_point():
            raise ValueError(
                f"{kind}: {name} is {parameter.dtype}; fastsft trains weights that are not quantised"
            )
