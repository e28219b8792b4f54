"""Experiment trackers. Each module has the name by which `--report_to` selects its tracker."""
