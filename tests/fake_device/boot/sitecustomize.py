"""Load the fake device in each Python process whose environment asks for it."""

import os

if os.environ.get("FAKE_DEVICE"):
    import load_fake_device  # noqa: F401
