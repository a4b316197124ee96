"""Sets Python's clock back by an hour while the file named by CLOCK_SET_BACK exists; only for `time.time`."""

import os
import time

_true, _flag = time.time, os.environ["CLOCK_SET_BACK"]
time.time = lambda: _true() - 3600 * os.path.exists(_flag)
