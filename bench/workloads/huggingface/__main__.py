"""``python -m bench.workloads.huggingface SOURCE`` prints a description as JSON, or an error and exits with 2."""

import json
import sys

sys.modules["torch"] = None  # type: ignore[assignment]

from bench.errors import InputError  # noqa: E402
from bench.workloads.huggingface.description import read  # noqa: E402

try:
    print(read(sys.argv[1]).model_dump_json())  # noqa: T201
except InputError as error:
    print(json.dumps({name: getattr(error, name) for name in ("problem", "where", "field", "allowed", "fix")}))  # noqa: T201
    sys.exit(2)
