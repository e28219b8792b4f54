"""Names that scripts know from FastChat's modules, and values that scripts bind to them."""
