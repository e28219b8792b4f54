"""Chat templates and mask policies.

`labelling.py` makes a run's labeller. `mask_policy.py` resolves the policy that decides which tokens are
targets. `template_choice.py` finds the template: a named template, which C++ renders, or the model's own
Jinja template (`model_template.py`), which a separate process renders (`rendering`).
"""
