"""The `fastsft` command and its subcommands."""
