"""Not there: FastChat's train_lora_t5. The message says what to use instead."""

from fastsft.script_names.absent_scripts import refuse

refuse("train_lora_t5", __name__)
