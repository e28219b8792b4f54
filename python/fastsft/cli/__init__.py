"""The `fastsft` command."""
