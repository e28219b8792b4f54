"""Not there: FastChat's train_yuan2. The message says what to use instead."""

from fastsft.script_names.absent_scripts import refuse

refuse("train_yuan2", __name__)
