"""The output of a run for a person: a start page, progress, one line a log, an end page."""
