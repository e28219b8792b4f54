"""What a person sees of a run: a start page, progress, one line a log, an end page."""
