"""Generated examples are the same in every run, so that a failure is the change's own."""

import signal

from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")

# A shell that runs the tests in its background has them, and all that they start, ignore these.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, lambda *_: None)  # as under nohup; what they start hears it
