"""What a run will take: steps, memory, sharding."""
