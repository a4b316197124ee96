"""Sets Python's clock back by an hour as soon as there is a file CLOCK_SET_BACK; only for those that ask it."""

import os
import time

_true, _flag = time.time, os.environ["CLOCK_SET_BACK"]
time.time = lambda: _true() - 3600 * os.path.exists(_flag)
