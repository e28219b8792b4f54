"""Trackers of runs: one file each, named as `--report_to` names it."""
