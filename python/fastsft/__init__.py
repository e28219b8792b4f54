"""fastsft: fine-tunes chat models with FastChat's flags and labels on a C++/CUDA core."""
