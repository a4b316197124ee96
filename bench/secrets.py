"""What no record of bench may hold: values of variables that look like a token, a key or a password, and what a URL
holds of such. A rank's log is the workload's own; what is quoted from it is masked. Pure."""

import json
import os
import re
from collections.abc import Mapping
from urllib.parse import quote

_NAME = re.compile(
    r"(TOKEN|KEY|PASS|AUTH|_PWD|_SAS|COOKIE)S?(_|$)|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL", re.IGNORECASE
)
_IN_URL = re.compile(
    r"(\b[a-z][a-z0-9+.-]*://[^\s/:@'\"]*:)[^\s/'\"]+(?=@)"  # user:password@
    r"|(\b[a-z][a-z0-9+.-]*://)[^\s/:@'\"]{16,}(?=@)"  # token@
    r"|([?&](?:[\w-]*(?:token|key|secret|passw\w*|signature|credential)|sig|auth)=)[^\s&'\"]+",
    re.IGNORECASE,
)
SHORTEST = 6
"""Characters of a value that is looked for: a shorter one, such as `1`, stands in any text."""


def mask(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """``text`` with the value of each such variable replaced by its name, in brackets, and a URL's password by
    ``[password]``."""
    found = {name: value for name, value in environment.items() if _NAME.search(name) and len(value) >= SHORTEST}
    for name, value in sorted(found.items(), key=lambda item: -len(item[1])):
        for written in {value, repr(value)[1:-1], json.dumps(value)[1:-1], quote(value), quote(value, safe="")}:
            text = text.replace(written, f"[{name}]")
    return _IN_URL.sub(lambda found: f"{next(filter(None, found.groups()))}[password]", text)
