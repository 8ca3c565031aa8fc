"""Property tests draw the same examples every time; FEDGREC_EXPLORE=1 looks for new ones."""

import os

from hypothesis import settings

from fedgrec.devices import gpu_is_there

if not gpu_is_there():  # Triton decides when it is imported
    os.environ.setdefault("TRITON_INTERPRET", "1")

settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=200)
settings.load_profile("explore" if os.environ.get("FEDGREC_EXPLORE") else "fixed")
