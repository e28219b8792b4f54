"""`fastsft doctor` checks a run before training, `fastsft verify` a saved directory."""
