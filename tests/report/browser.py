"""Chromium without a window, driven through its pipe by the DevTools protocol: what it does with a page of ours.

https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
_TIMEOUT_S = 60


def find() -> str | None:
    """Return the path of a Chromium, ``None`` where there is none."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@dataclass
class Seen:
    """What a browser did while it showed a page."""

    requests: list[str] = field(default_factory=list)
    """Addresses of all that was asked for, the page's own included; without what the page's policy held back."""
    complaints: list[str] = field(default_factory=list)
    """Of console and log: errors, warnings, violations of the policy; and dialogs that opened."""


class Tab:
    """One tab of a running browser."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._number = 0
        self._pending = b""
        self._session: str | None = None
        self._asked: dict[str, str] = {}
        self.seen = Seen()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "DOM", "Accessibility"):
            self.call(f"{domain}.enable")

    def open(self, page: Path, *, scheme: str = "light", width: int = 1280, settle_s: float = 0) -> Seen:
        """Show a file and return what happened until it was loaded, and so much longer."""
        self.seen = Seen()
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=page.resolve().as_uri())
        self._until("Page.loadEventFired")
        for _ in self._messages(settle_s):
            pass
        return self.seen

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page (the debugger's own, which no policy holds back)."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"].get("description", expression))
        return answer["result"].get("value")

    def printed(self) -> bytes:
        """Return the page as PDF, as it would be printed."""
        return base64.b64decode(self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)["data"])

    def press(self, key: str) -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=9)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        for answer in self._messages(_TIMEOUT_S):
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result
        raise TimeoutError(method)

    def _until(self, event: str) -> None:
        for message in self._messages(_TIMEOUT_S):
            if message.get("method") == event:
                return
        raise TimeoutError(event)

    def _messages(self, seconds: float) -> Iterator[dict[str, Any]]:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            while b"\0" in self._pending:
                text, _, self._pending = self._pending.partition(b"\0")
                message: dict[str, Any] = json.loads(text)
                self._note(message)
                yield message
            if select.select([self._from], [], [], min(left, 0.2))[0]:
                chunk = os.read(self._from, 1 << 20)
                if not chunk:
                    raise RuntimeError("the browser ended")
                self._pending += chunk

    def _note(self, message: dict[str, Any]) -> None:
        method, told = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self._asked[told["requestId"]] = told["request"]["url"]
            self.seen.requests.append(told["request"]["url"])
        elif method == "Network.loadingFailed" and told.get("blockedReason") == "csp":
            self.seen.requests.remove(self._asked[told["requestId"]])
        elif method == "Log.entryAdded":
            self.seen.complaints.append(told["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.seen.complaints.append(told["exceptionDetails"]["text"])
        elif method == "Runtime.consoleAPICalled":
            self.seen.complaints.append(str([one.get("value") for one in told["args"]]))
        elif method == "Page.javascriptDialogOpening":
            self.seen.complaints.append(f"dialog: {told['message']}")


@contextlib.contextmanager
def chromium(program: str, profile: Path) -> Generator[Tab, None, None]:
    """Run a Chromium with an empty profile and yield a tab of it."""
    its_input, to_browser = os.pipe()
    from_browser, its_output = os.pipe()
    arguments = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    shell = f'exec "$@" 3<&{its_input} 4>&{its_output}'
    with subprocess.Popen(
        ["/bin/bash", "-c", shell, "chromium", *arguments],
        pass_fds=(its_input, its_output),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        os.close(its_input)
        os.close(its_output)
        try:
            tab = Tab(to_browser, from_browser)
            yield tab
        finally:
            with contextlib.suppress(OSError, RuntimeError, TimeoutError):
                tab._session = None
                tab.call("Browser.close")
            os.close(to_browser)
            os.close(from_browser)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
