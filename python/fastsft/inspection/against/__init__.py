"""`fastsft inspect --against`: labels of another framework, made by its own code, next to ours.

`frameworks.py` lists the frameworks. `request.py` runs one in a process of its own, whose program is in
`adapters/`. `alignment.py` pairs the tokens of both, `differences.py` names the kinds of difference, and
`comparison.py` joins the parts; `comparison_text.py` and `comparison_page.py` show the result.
"""
