"""A headless Chromium, driven over its DevTools protocol: what a user with a browser does and sees.

Only what tests need: opening pages, clicking and typing as a user does (events of the input devices, not of scripts),
reading the page, screenshots. https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import json
import pathlib
import shutil
import subprocess
import tempfile
import urllib.request
from typing import Any

import pytest

from harness import Missing
from waiting import Hopeless, wait_for

websocket = pytest.importorskip("websocket", reason="websocket-client is not installed: make setup")

# Names of the program, Debian's first.
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
# Codes of the keys that tests press, and what they write: `Input.dispatchKeyEvent`.
KEYS = {"Enter": (13, "\r"), "Tab": (9, ""), "Escape": (27, "")}
SHIFT, CONTROL = 8, 2
# How long one command of the protocol may take, and how long a page is waited for.
COMMAND_SECONDS, PAGE_SECONDS = 30.0, 60.0
# A laptop's window.
SIZE = "1280,800"


class Browser:
    """One browser with one page. Use it with `with`: leaving it ends the browser and removes its profile."""

    def __init__(self, screenshots: pathlib.Path) -> None:
        program = next(filter(None, map(shutil.which, PROGRAMS)), None)
        if program is None:
            raise Missing("there is no Chromium: install the package chromium")
        self._program = program
        self._screenshots = screenshots
        # What the page's scripts complained about.
        self.errors: list[str] = []
        self._number = 0

    def __enter__(self) -> Browser:
        self._profile = pathlib.Path(tempfile.mkdtemp(prefix="det-e2e-browser-", dir="/var/tmp"))
        argv = [self._program, "--headless=new", "--remote-debugging-port=0", f"--user-data-dir={self._profile}"]
        # Its own sandbox needs an account other than root; the pages are this repository's and JupyterLab's.
        argv += ["--no-sandbox", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage"]
        # It sends requests to the cluster alone.
        argv += ["--disable-background-networking", "--disable-component-update", "--no-proxy-server"]
        argv += [f"--window-size={SIZE}", "about:blank"]
        self._log = (self._profile / "log").open("wb")
        self._process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            self._connect()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if hasattr(self, "_socket"):
            self._socket.close()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        self._log.close()
        shutil.rmtree(self._profile, ignore_errors=True)

    def _connect(self) -> None:
        port_file = self._profile / "DevToolsActivePort"

        def page() -> str | None:
            if self._process.poll() is not None:
                raise Hopeless(f"{self._program} has ended: {(self._profile / 'log').read_text(errors='replace')}")
            port = port_file.read_text().split("\n")[0]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=5) as answer:
                pages = [target for target in json.load(answer) if target["type"] == "page"]
            return pages[0]["webSocketDebuggerUrl"] if pages else None

        address = wait_for("the browser's page", page, within=PAGE_SECONDS)
        self._socket = websocket.create_connection(address, timeout=COMMAND_SECONDS, suppress_origin=True)
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def _call(self, method: str, **parameters: Any) -> Any:
        """A command of the protocol; what comes before its answer are events."""
        self._number += 1
        number = self._number
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == number:
                if "error" in message:
                    raise AssertionError(f"{method} {parameters}: {message['error']}")
                return message["result"]
            self._note(message)

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Page.javascriptDialogOpening":
            # A page with unsaved work asks whether it may be left. The answer to this command is passed over.
            self._number += 1
            command = {"method": "Page.handleJavaScriptDialog", "params": {"accept": True}}
            self._socket.send(json.dumps({"id": self._number, **command}))
        elif event.get("method") == "Runtime.exceptionThrown":
            details = event["params"]["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            entry = event["params"]["entry"]
            self.errors.append(f"{entry['text']} {entry.get('url', '')}")

    # --- what a user does --------------------------------------------------------------------------------------------

    def open(self, address: str) -> None:
        """Goes to an address, as one types it; does not wait for the page."""
        self._call("Page.navigate", url=address)

    def click(self, selector: str) -> None:
        """Clicks in the middle of the first visible element, once it exists and nothing covers it."""
        code = """(selector => {
            const element = [...document.querySelectorAll(selector)].find(e => e.getClientRects().length);
            if (!element) return null;
            element.scrollIntoView({block: 'center'});
            const box = element.getBoundingClientRect();
            const at = {x: box.x + box.width / 2, y: box.y + box.height / 2};
            const top = document.elementFromPoint(at.x, at.y);
            return top && (element.contains(top) || top.contains(element)) ? at : null;
        })"""
        at = self.wait(f'"{selector}" to be clicked', f"{code}({json.dumps(selector)})")
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            button = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
            self._call("Input.dispatchMouseEvent", type=kind, **at, **button)

    def type(self, text: str) -> None:
        """Types where the cursor is."""
        for character in text:
            self._call("Input.dispatchKeyEvent", type="keyDown", text=character, key=character)
            self._call("Input.dispatchKeyEvent", type="keyUp", key=character)

    def press(self, key: str, modifiers: int = 0) -> None:
        """Presses a key of `KEYS`, or a letter, with Shift or Control held."""
        number, text = KEYS.get(key, (ord(key.upper()[0]), ""))
        code = key if key in KEYS else f"Key{key.upper()}"
        common = {"key": key, "code": code, "windowsVirtualKeyCode": number, "modifiers": modifiers}
        written = {"text": text} if text and not modifiers & CONTROL else {}
        self._call("Input.dispatchKeyEvent", type="keyDown" if written else "rawKeyDown", **common, **written)
        self._call("Input.dispatchKeyEvent", type="keyUp", **common)

    # --- what a user sees --------------------------------------------------------------------------------------------

    def evaluate(self, code: str) -> Any:
        """The value of an expression in the page; None while the page changes to another one."""
        try:
            answer = self._call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        except AssertionError as error:
            if "context" in str(error) or "navigated" in str(error):
                return None
            raise
        assert "exceptionDetails" not in answer, f"{code}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def wait(self, what: str, code: str, within: float = PAGE_SECONDS) -> Any:
        """Waits until an expression is something true in the page."""
        return wait_for(what, lambda: self.evaluate(code), within=within, seen=self.described)

    def text(self, selector: str = "body") -> str:
        """The text that the first such element shows; empty where there is none."""
        return self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText") or ""

    @property
    def address(self) -> str:
        """Where the page is."""
        return self.evaluate("location.href") or ""

    def described(self) -> str:
        """What a reader of a failure wants to know; with a screenshot."""
        picture = self.screenshot("failed")
        return f"at {self.address}, picture {picture}, errors {self.errors[-5:]}\n{self.text()[:2000]}"

    def dark(self, wanted: bool) -> None:
        """Whether the user prefers dark pages."""
        value = "dark" if wanted else "light"
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def screenshot(self, name: str) -> pathlib.Path:
        """Saves what is seen as a PNG file; gives its path."""
        self._screenshots.mkdir(parents=True, exist_ok=True)
        path = self._screenshots / f"{name}.png"
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))
        return path
