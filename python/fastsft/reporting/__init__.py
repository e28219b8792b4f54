"""Output of a run for its user: start page, progress, log lines, curves and end page."""
