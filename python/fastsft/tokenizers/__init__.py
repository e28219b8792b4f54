"""The tokenizers behind `fastsft.tokenizer.Tokenizer`."""
