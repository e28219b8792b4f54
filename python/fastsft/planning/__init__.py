"""Plans a run before its first step: step count, memory, and predicted speed."""
