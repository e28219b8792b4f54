"""Chat templates and label policies."""
