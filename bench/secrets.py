"""What no record of bench may hold: the values of variables that look like a token, a key or a password. Pure."""

import os
import re
from collections.abc import Mapping

_NAME = re.compile(
    r"(TOKEN|KEY|PASS|AUTH|_PWD|_SAS|COOKIE)S?(_|$)|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL", re.IGNORECASE
)
SHORTEST = 6
"""Characters of a value that is looked for: a shorter one, such as `1`, stands in any text."""


def mask(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """``text`` with the value of each such variable replaced by its name, in brackets."""
    found = {name: value for name, value in environment.items() if _NAME.search(name) and len(value) >= SHORTEST}
    for name, value in sorted(found.items(), key=lambda item: -len(item[1])):
        for written in {value, repr(value)[1:-1]}:
            text = text.replace(written, f"[{name}]")
    return text
