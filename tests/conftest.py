"""How property tests run: the same examples every time, fewer or many more when asked for.

``HYPOTHESIS_PROFILE`` names the profile: ``quick`` for ``nox -s layers``, ``long`` for
``nox -s long``.
"""

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=50)
settings.register_profile("quick", derandomize=True, deadline=None, max_examples=10)
settings.register_profile("long", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
