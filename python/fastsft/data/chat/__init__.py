"""Chat templates and label policies.

`labelling.py` makes the labeller of a run, `mask_policy.py` decides which tokens are learned, and
`template_choice.py` finds the template: a named one, rendered in C++, or the model's own
(`model_template.py`), which `rendering` renders in a process of its own.
"""
