"""The learned parts of the data, for people: `fastsft.inspect`, its page and its text."""
