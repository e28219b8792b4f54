"""`fastsft verify`: checks that read a model directory or checkpoint whole."""
