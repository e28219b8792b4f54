"""Models, trainers and data sharded or made by other libraries."""
