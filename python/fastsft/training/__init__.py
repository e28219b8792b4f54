"""The training loop and the parts of `fastsft.trainer.Trainer`."""
