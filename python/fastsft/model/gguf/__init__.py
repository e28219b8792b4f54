"""Convert a model directory to a GGUF file by llama.cpp's own converter, and check the file.

`conversion.py` finds and runs the converter. `check.py` runs in a process of its own, which imports the
package gguf, and compares each tensor of the file with the model's (`expected.py`).
"""
