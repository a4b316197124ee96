"""What no record of bench may hold: values of variables that look like a token, a key or a password, and passwords
inside of URLs. Pure."""

import os
import re
from collections.abc import Mapping

_NAME = re.compile(
    r"(TOKEN|KEY|PASS|AUTH|_PWD|_SAS|COOKIE)S?(_|$)|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL", re.IGNORECASE
)
_IN_URL = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s/:@'\"]*):[^\s/@'\"]+@", re.IGNORECASE)
SHORTEST = 6
"""Characters of a value that is looked for: a shorter one, such as `1`, stands in any text."""


def mask(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """``text`` with the value of each such variable replaced by its name, in brackets, and a URL's password by
    ``[password]``."""
    found = {name: value for name, value in environment.items() if _NAME.search(name) and len(value) >= SHORTEST}
    for name, value in sorted(found.items(), key=lambda item: -len(item[1])):
        for written in {value, repr(value)[1:-1]}:
            text = text.replace(written, f"[{name}]")
    return _IN_URL.sub(r"\1:[password]@", text)
