"""Not there: FastChat's train_flant5. The message says what to use instead."""

from fastsft.script_names.absent_scripts import refuse

refuse("train_flant5", __name__)
