"""Plan of a run: steps, memory, sharding."""
