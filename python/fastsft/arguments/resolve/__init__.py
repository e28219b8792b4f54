"""Rules for the fields of TrainingArguments: checks across fields, and values derived from others."""
