"""Programs that run in another framework's environment, where fastsft may not be installed.

`driver.py` is the program; it loads one of the adapters by its path. An adapter is a function
`encode(request, records)` that yields what `driver.py` writes: first the versions and settings, then an entry
for each record. They import the standard library and, inside functions, the framework.
"""
