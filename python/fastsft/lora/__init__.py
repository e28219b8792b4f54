"""Low-rank adapters (LoRA), in peft's format.

attach.py adds adapters to a model: new adapters by flags or a LoraConfig, a saved adapter, or those of a
PeftModel. settings.py has LoraConfig's fields, and targets.py matches them with modules. adapted_model.py
trains adapters in the native engine, generic_model.py in the generic engine, and given_model.py trains a
script's PeftModel. adapter_files.py reads and writes adapters. merge.py merges an adapter into its base
model, and merged_save.py does so at a run's end.
"""
