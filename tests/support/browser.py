"""A real headless browser, and the checks of pages in it."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from selenium.webdriver.remote.webelement import WebElement

MISSING = "chromium and chromedriver are not installed (Debian: chromium, chromium-driver)"

ASKED = "Network.requestWillBeSent"


def programs() -> tuple[str, str] | None:
    """Return the paths of Chromium and its driver, or None if one is missing."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    return None if chromium is None or driver is None else (chromium, driver)


@dataclass(frozen=True)
class Browser:
    """A Chromium instance with one page."""

    driver: Chrome

    @classmethod
    def started(cls, chromium: str, driver: str) -> Self:
        """Return a new browser."""
        options = ChromeOptions()
        options.binary_location = chromium
        for switch in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage"):
            options.add_argument(switch)
        if os.geteuid() == 0:
            options.add_argument("--no-sandbox")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        return cls(Chrome(options=options, service=Service(driver)))

    def close(self) -> None:
        """End the browser."""
        self.driver.quit()

    # --- pages -----------------------------------------------------------------------------------

    def open(self, page: Path, width: int = 1200, **media: str) -> None:
        """Load a page in a window of a width, with media features such as dark colours."""
        features = [{"name": k.replace("_", "-"), "value": v} for k, v in media.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
        )
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.driver.get(page.as_uri())

    def on_paper(self) -> None:
        """Show the page with the print style."""
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})

    def pdf(self) -> bytes:
        """Return the page as an A4 PDF, with an outline of its headings."""
        from base64 import b64decode

        asked = {"preferCSSPageSize": True, "generateDocumentOutline": True}
        return b64decode(self.driver.execute_cdp_cmd("Page.printToPDF", asked)["data"])

    # --- elements --------------------------------------------------------------------------------

    def all(self, selector: str) -> Sequence[WebElement]:
        """Return the elements that match a selector."""
        return self.driver.find_elements("css selector", selector)

    def one(self, selector: str) -> WebElement:
        """Return the first element that matches a selector."""
        return self.driver.find_element("css selector", selector)

    def js(self, script: str, *arguments: object) -> Any:
        """Return the result of a script."""
        return self.driver.execute_script(script, *arguments)

    def boxes(self, selector: str) -> list[dict[str, float]]:
        """Return the x, y, width and height of each element that matches a selector."""
        return self.js(
            "return Array.from(document.querySelectorAll(arguments[0])).map((e) => {"
            "const b = e.getBoundingClientRect();"
            "return {x: b.x, y: b.y + scrollY, width: b.width, height: b.height}; })",
            selector,
        )

    def press(self, *keys: str) -> None:
        """Type keys sequentially."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def complaints(self) -> list[str]:
        """Return the messages of the browser console."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Return the requested addresses since the page was opened."""
        told = [json.loads(e["message"])["message"] for e in self.driver.get_log("performance")]
        return [m["params"]["request"]["url"] for m in told if m["method"] == ASKED]

    # --- checks of every page --------------------------------------------------------------------

    def assert_quiet(self, page: Path, sections: Sequence[str]) -> None:
        """Check that the page has these sections, no network requests and no console messages."""
        assert [heading.text for heading in self.all("h2")] == list(sections)
        assert self.requests() == [page.as_uri()]
        assert self.complaints() == []

    def assert_roomy(self, least_height: float) -> int:
        """Check that each chart is visible below its title, and return the number of charts."""
        charts, titles = self.boxes("figure .chart"), self.boxes("figure figcaption")
        for chart, title in zip(charts, titles, strict=True):
            assert chart["width"] > 300
            assert chart["height"] > least_height
            assert title["y"] + title["height"] <= chart["y"]
        return len(charts)
