"""Masks secrets in everything that bench stores or prints: values of environment variables that look like a token, a
key or a password, and credentials in URLs. A rank's log belongs to the workload and is kept as it is; quotes from it
are masked. Pure."""

import json
import os
import re
from collections.abc import Mapping
from urllib.parse import quote

_NAME = re.compile(
    r"(TOKEN|KEY|PASS|AUTH|_PWD|_SAS|COOKIE)S?(_|$)|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL", re.IGNORECASE
)
_IN_URL = re.compile(
    r"([a-z][a-z0-9+.-]{0,30}://[^\s/:@'\"]*:)[^\s/'\"]+(?=@)"  # user:password@
    r"|([a-z][a-z0-9+.-]{0,30}://)[^\s/:@'\"]{16,}(?=@)"  # token@
    r"|([?&](?:[\w-]*(?:token|key|secret|passw\w*|signature|credential)|sig|auth)=)[^\s&'\"]+",
    re.IGNORECASE,
)
SHORTEST = 6
"""Characters. A shorter value, such as `1`, occurs in any text and is not masked."""


def mask(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """``text`` with each secret value replaced by its variable's name in brackets, and a URL's password by
    ``[password]``."""
    values = {name: value for name, value in environment.items() if _NAME.search(name) and len(value) >= SHORTEST}
    for name, value in sorted(values.items(), key=lambda item: -len(item[1])):
        quoted = [quote(value, safe, errors="surrogateescape") for safe in ("/", "")]
        for written in {value, repr(value)[1:-1], json.dumps(value)[1:-1], *quoted}:
            text = text.replace(written, f"[{name}]")
    return _IN_URL.sub(lambda match: f"{next(filter(None, match.groups()))}[password]", text)
