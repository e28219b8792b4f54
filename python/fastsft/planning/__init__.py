"""Plans a run before its first step: number of steps, memory, and predicted speed."""
