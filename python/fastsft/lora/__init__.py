"""Low-rank adapters (LoRA): which linears have them, their files in peft's format, merging."""
