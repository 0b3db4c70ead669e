"""Settings of every test: Hypothesis never judges by time, and tries more where there is time for it (make test-long)."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "firn",
    deadline=None,
    max_examples=2000 if os.environ.get("FIRN_LONG") else 100,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("firn")
