"""Rules between the fields of TrainingArguments: checks, and values that are derived from other fields."""
