"""Render conversations with a model's own chat template, in a process apart from the run.

The modules import only jinja2 and the standard library. `main.py` answers the requests of
`data/chat/model_template.py`. `program.py` renders a conversation and finds its replies (`reply_spans.py`).
For later conversations of the same form, the replies' positions are computed from an earlier rendering
(`known_forms.py`, `marks.py`, `watched.py`).
"""
