"""Not there: FastChat's train_lora. The message says what to use instead."""

from fastsft.script_names.absent_scripts import refuse

refuse("train_lora", __name__)
