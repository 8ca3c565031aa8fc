"""Property tests draw the same examples every time; FEDGREC_EXPLORE=1 looks for new ones."""

import os

from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=200)
settings.load_profile("explore" if os.environ.get("FEDGREC_EXPLORE") else "fixed")
