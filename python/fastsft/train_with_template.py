"""Not there: FastChat's train_with_template. The message says what to use instead."""

from fastsft.script_names.absent_scripts import refuse

refuse("train_with_template", __name__)
