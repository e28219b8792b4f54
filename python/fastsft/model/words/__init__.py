"""The words of config.json that transformers 4 and 5 have for the same thing; a saved file has both."""
