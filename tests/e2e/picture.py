"""The picture of the published report that the README shows."""

import tempfile
from pathlib import Path

from browser import browser

PUBLISHED = Path(__file__).parent.parent.parent / "reports" / "published-8xA100"


def main() -> None:
    with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as page:
        page.open(PUBLISHED / "report.html")
        (PUBLISHED / "page.png").write_bytes(page.picture(1200, 816, "header"))


if __name__ == "__main__":
    main()
