"""Models, trainers and checkpoints of other libraries: how they are saved and read."""
