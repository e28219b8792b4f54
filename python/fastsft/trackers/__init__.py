"""Trackers: a file for each, named as `--report_to` names the tracker."""
