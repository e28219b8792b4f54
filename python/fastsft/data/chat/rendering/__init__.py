"""The process in which a model's own chat template renders conversations, apart from the run.

Its modules import nothing but jinja2 and the standard library. `main.py` answers the requests of
`data/chat/model_template.py`. `program.py` renders a conversation and finds its replies (`reply_spans.py`),
or takes them from a conversation of the same form (`known_forms.py`, `marks.py`, `watched.py`).
"""
