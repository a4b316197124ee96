"""A headless Chromium controlled through the pipe of its DevTools protocol: no port, no driver."""

import base64
import itertools
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")


def executable() -> str | None:
    """The first browser on PATH."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """One tab."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands = os.fdopen(commands, "wb", buffering=0)
        self._answers = os.fdopen(answers, "rb")
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._commands.close()
        self._answers.close()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command and wait for its answer. Events that arrive meanwhile are kept in `events`."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != number:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def open(self, file: Path) -> None:
        self.call("Page.navigate", url=file.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression; of a promise, what it resolves to."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise RuntimeError(done["exceptionDetails"])
        return done["result"].get("value")

    def point_at(self, selector: str, *, click: bool = False) -> None:
        """Move the mouse to the middle of an element, as a person would, and click."""
        at = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'center'});"
            " const r = e.getBoundingClientRect(); return {x: r.x + r.width / 2, y: r.y + r.height / 2}; })()"
        )
        for kind in ("mouseMoved", *(("mousePressed", "mouseReleased") if click else ())):
            self.call("Input.dispatchMouseEvent", type=kind, **at, button="left" if click else "none", clickCount=1)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def picture(self, width: int, height: int, below: str) -> bytes:
        """A PNG of the page in its light theme, scrolled so that the element ``below`` is at the top."""
        self.call("Emulation.setScrollbarsHidden", hidden=True)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
        self.evaluate(f"document.querySelector({json.dumps(below)}).scrollIntoView()")
        self.evaluate("window.scrollBy(0, -16)")
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def happened(self, method: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.events if event["method"] == method]

    def _read(self) -> dict[str, Any]:
        text = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            if not byte:
                raise RuntimeError("the browser has gone")
            text += byte
        return json.loads(text)


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A browser with a fresh profile; no process of it is left afterwards."""
    to_browser, commands = os.pipe()
    answers, from_browser = os.pipe()
    # A shell puts the pipe where Chromium looks for it: at descriptors 3 and 4.
    placed = ["bash", "-c", f'exec "$@" 3<&{to_browser} 4>&{from_browser}', "bash", executable() or ""]
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    process = subprocess.Popen(
        [*placed, *options, "--remote-debugging-pipe", f"--user-data-dir={profile}"],
        pass_fds=(to_browser, from_browser),
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(to_browser)
    os.close(from_browser)
    page = None
    try:
        page = Page(commands, answers)
        yield page
    finally:
        if page:
            page.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
