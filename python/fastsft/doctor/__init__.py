"""`fastsft doctor`: a run is examined before it begins. Nothing is trained, and nothing stays on disk."""
