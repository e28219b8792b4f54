"""Render conversations with a model's own chat template, in a process apart from the run.

The modules import only jinja2 and the standard library. `main.py` answers the requests of
`data/chat/model_template.py`. `program.py` renders a conversation and finds its replies (`reply_spans.py`).
If a conversation of the same form was rendered before, the places of its replies are reused
(`known_forms.py`, `marks.py`, `watched.py`).
"""
