"""Write a chat template for Ollama, in the language of Go's text/template.

`export.py` finds the texts of a Jinja template by rendering marked conversations (`marked.py`, `turns.py`,
`calls.py`, `thoughts.py`), writes them as a Go template (`go_text.py`), and compares both on conversations
(`trial.py`). For the trial, `requests.py` and `go_execution.py` do what Ollama does.
"""
