"""Output of a run for the user: start page, progress, log lines, loss curves and end page."""
