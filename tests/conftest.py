"""Generated examples are the same in every run, so that a failure is the change's own."""

from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")
