"""Differences among the releases of transformers that fastsft goes with (docs/versions.md)."""

from __future__ import annotations

# Functions of the library that put a wrapper of theirs around a method when a class is made: module and name.
WRAPPED_BY_BASES = {("transformers.modeling_layers", "GradientCheckpointingLayer.__init_subclass__")}
