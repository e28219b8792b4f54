"""Model directories: configuration, weights, card."""
