"""Check that the engine computes what a model of transformers, as a script hands it over, would compute."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from fastsft.model.alterations.finding import Alteration, refuse
from fastsft.model.alterations.held import HeldSettings
from fastsft.model.alterations.held_rope import is_rounded
from fastsft.model.alterations.hooks import global_hooks, hooks_of, observers
from fastsft.model.alterations.instances import replaced_on_instances
from fastsft.model.alterations.parameters import foreign_tensors
from fastsft.model.alterations.reach import Reach
from fastsft.model.alterations.registries import follow_builders, follow_registries
from fastsft.model.alterations.shared import shared_parameters
from fastsft.model.alterations.tree import Tree
from fastsft.model.alterations.wrappers import family_module
from fastsft.originals.snapshots import WatchedNames
from fastsft.originals.source import imported_by, names_in
from fastsft.runtime.messages import warn_once

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_DEFAULT_ATTENTION = "sdpa"
# The modules, the model's own excepted, that compute a step.
_COMPUTING = ("transformers.integrations.sdpa_attention", "transformers.loss.loss_utils")


def held_settings(
    module: PreTrainedModel, prefix: str, config: dict[str, Any], caller: str, training: bool
) -> HeldSettings:
    """Settings in the parts of `module`, a <prefix>ForCausalLM; a line for each that `config` says otherwise.

    caller: what a message begins with. training: whether steps are to follow, where dropout counts.
    ValueError that names every object and attribute that makes it compute something else.
    """
    tree = Tree(module, prefix)
    if tree.found:  # nothing can be said of modules that are others
        refuse([*tree.found, *hooks_of(module)], caller)
    reach = Reach(with_init=False)
    for kind in {type(node.module): None for node in tree.nodes}:
        if kind.__module__.startswith(("transformers.", "torch.")):
            reach.follow_class(kind)
    follow_registries(reach, str(module.config._attn_implementation or _DEFAULT_ATTENTION))
    instances = list(replaced_on_instances(tree, reach))
    held = HeldSettings(tree, config)
    held.places = reach.places
    dropout = list(held.dropout()) if training else []
    refuse(
        [*reach.found, *instances, *global_hooks(), *hooks_of(module), *shared_parameters(module),
         *foreign_tensors(module), *held.found, *dropout],
        caller,
    )  # fmt: skip
    _tell(reach.equal + tree.equal)
    for notice in [*held.notices(), *observers()]:
        warn_once(notice)
    if is_rounded(next(tree.of("RotaryEmbedding"))):
        warn_once(
            "model.model.rotary_emb.inv_freq was rounded by model.to() or half(); fastsft rotates by the "
            "unrounded frequencies, as a model that is loaded in its type does"
        )
    return held


def check_library(model_type: str, prefix: str, caller: str) -> WatchedNames:
    """For a model directory: refuses patches of torch and transformers that the original would train in.

    Nothing is imported: of a file of transformers that is not imported yet, what it names is looked at.
    Returns what was looked at. ValueError that names the patched object.
    """
    reach = Reach(with_init=True)
    home = family_module(model_type)
    if f"{prefix}ForCausalLM" in vars(sys.modules.get(home, object)):
        reach.follow_name(home, f"{prefix}ForCausalLM")
    else:
        for module, name in imported_by(home):
            reach.follow_name(module, name)
    for file in (home, *_COMPUTING):
        if file not in sys.modules:
            reach.follow_torch(names_in(file))
    for name in ("Linear", "Embedding", "SiLU", "ModuleList"):
        reach.follow_class(getattr(sys.modules["torch.nn"], name))
    follow_registries(reach, _DEFAULT_ATTENTION)
    follow_builders(reach, "gelu_pytorch_tanh" if prefix.startswith("Gemma") else "silu")
    refuse([_of_directory(found) for found in [*reach.found, *global_hooks()]], caller)
    for notice in observers():
        warn_once(notice)
    _tell(reach.equal)
    return reach.places


def _of_directory(found: Alteration) -> Alteration:
    return Alteration(
        found.where, f"{found.found}, which has no effect on fastsft", found.native, found.way_out
    )


def _tell(equal: list[str]) -> None:
    for known in dict.fromkeys(equal):
        warn_once(f"{known} has no effect here and is not needed")
