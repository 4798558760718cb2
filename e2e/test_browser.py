"""A user with a browser: the login, the page that waits, and a cell that runs in JupyterLab, all through the master."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator

import pytest

import harness
from browser import SHIFT, Browser
from conftest import equipment, flavoured
from harness import Agent, Cluster, Missing
from waiting import wait_for

pytestmark = pytest.mark.client

# Looked at by developers; the newest run's.
SCREENSHOTS = pathlib.Path(__file__).resolve().parent.parent / ".cache" / "test" / "browser"
OWNER, PASSWORD = "lin", "Compiler1"
AS_OWNER = {"DET_USER": OWNER, "DET_PASS": PASSWORD}
HOLD = "echo holding; while [ ! -e $E2E_DIR/go ]; do sleep 0.1; done"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with equipment():
        harness.wheel_det()
        try:
            import jupyterlab  # noqa: F401
        except ImportError:
            raise Missing("jupyterlab is not installed: make setup") from None
    with flavoured("core", agents=[Agent(slots=1)]) as cluster:
        cluster.run_det("user", "create", OWNER, "--password", PASSWORD, env={"DET_USER": "admin", "DET_PASS": ""})
        yield cluster


@pytest.fixture
def browser() -> Iterator[Browser]:
    with equipment():
        new = Browser(SCREENSHOTS)
    with new as browser:
        yield browser


def log_in(browser: Browser, password: str) -> None:
    """Fills in the form of a login whose first field has the cursor, and sends it."""
    browser.wait("the form", "document.activeElement?.name === 'username'")
    browser.evaluate("document.activeElement.value = ''")
    browser.type(OWNER)
    browser.press("Tab")
    browser.wait("the field of the password", "document.activeElement?.name === 'password'")
    browser.type(password)
    browser.press("Enter")


def test_a_user_logs_in_waits_and_runs_a_cell_in_jupyterlab(cluster: Cluster, browser: Browser) -> None:
    shared = cluster.shared_dir()
    held = cluster.run_det("cmd", "run", "-d", "--config-file", cluster.write_config(harness.share(shared)), HOLD)
    cluster.wait_task_printed(held.out.strip(), "holding")
    # What the client prints is what a user opens.
    flags = ("--no-browser", "--detach", "--config", "description=Digits <b>of</b> pi")
    notebook = cluster.client("notebook", "start", *flags, env=AS_OWNER).out.split()[-1]
    assert re.fullmatch(r"[0-9a-f-]{36}", notebook), notebook
    browser.open(f"{cluster.url}/det/interactive/{notebook}/jupyter-lab/name/default/wait?currentSlotsExceeded=false")

    browser.wait("the login", "location.pathname === '/det/login' && document.activeElement?.name === 'username'")
    browser.screenshot("1-login")
    log_in(browser, "wrong")
    browser.wait("the refusal", "document.querySelector('[role=alert]') !== null")
    assert "invalid" in browser.text("[role=alert]"), browser.text()
    browser.screenshot("2-refused")
    log_in(browser, PASSWORD)

    browser.wait("the page that waits", "document.title.includes('Digits')")
    shown = browser.text()
    assert "Digits <b>of</b> pi is not ready yet" in shown, shown
    assert "It waits for slots: needs 1 slot on one place" in shown and "{" not in shown, shown
    browser.screenshot("3-waits")
    browser.dark(True)
    browser.screenshot("3-waits-dark")
    browser.dark(False)
    # The page looks again by itself, and leads on.
    (shared / "go").touch()
    card = ".jp-LauncherCard[data-category='Notebook']"
    browser.wait("JupyterLab", f"document.querySelector(\"{card}\") !== null", within=120)
    assert f"/proxy/{notebook}/lab" in browser.address
    browser.screenshot("4-jupyterlab")

    browser.click(card)
    # The line at the bottom of the page.
    browser.wait("an idle kernel", "document.querySelector('#jp-main-statusbar')?.innerText.includes('| Idle')")
    browser.click(".jp-Notebook .jp-CodeCell .cm-content")
    browser.type("import os; print('the answer is', 6 * 7, os.environ['DET_TASK_TYPE'])")
    browser.press("Enter", SHIFT)
    output = "document.querySelector('.jp-OutputArea-output')?.innerText"
    browser.wait("the output of the cell", f"{output}?.includes('the answer is 42 NOTEBOOK')")
    browser.screenshot("5-a-cell-has-run")
    assert not [error for error in browser.errors if "/proxy/" in error], browser.errors

    cluster.run_det("notebook", "kill", notebook, env=AS_OWNER)

    def shows_the_end() -> bool:
        browser.open(f"{cluster.url}/det/interactive/{notebook}/jupyter-lab/name/default/wait")
        return "has ended" in browser.text()

    wait_for("the page of what has ended", shows_the_end, within=30, seen=browser.described)
    assert "it was killed" in browser.text()
    browser.screenshot("6-ended")


def test_a_page_of_another_users_notebook_is_refused_with_a_reason(cluster: Cluster, browser: Browser) -> None:
    notebook = cluster.client("notebook", "start", "--no-browser", "--detach", "--config", "resources.slots=0").out
    ident = notebook.split()[-1]
    browser.open(f"{cluster.url}/proxy/{ident}/lab")
    browser.wait("the login", "location.pathname === '/det/login'")
    log_in(browser, PASSWORD)
    browser.wait("the answer", "location.pathname.startsWith('/proxy/') && document.body?.innerText")
    browser.screenshot("7-of-another-user")
    assert "may not connect to service" in browser.text("[role=alert]"), browser.text()
    cluster.client("notebook", "kill", ident)
