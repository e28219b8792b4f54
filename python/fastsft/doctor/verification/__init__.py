"""`fastsft verify`: a model directory or a checkpoint is read whole, and judged. Nothing is written."""
