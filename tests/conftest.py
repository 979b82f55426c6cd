"""How property tests run: the same examples every time, or many more when asked for.

``HYPOTHESIS_PROFILE=long`` is what ``nox -s long`` sets.
"""

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=50)
settings.register_profile("long", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
