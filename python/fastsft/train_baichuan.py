"""Not there: FastChat's train_baichuan. The message says what to use instead."""

from fastsft.script_names.absent_scripts import refuse

refuse("train_baichuan", __name__)
