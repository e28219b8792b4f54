"""Names of FastChat's modules that scripts import from fastsft, and values that scripts bind to them."""
