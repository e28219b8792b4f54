"""Names that scripts know from FastChat's modules, and what a script puts in their place."""
