"""Translates configuration files of other trainers to files for `--config`: the command `fastsft import`."""
