"""Chromium without a window, driven over a pipe: how wide a page is on a telephone."""

import base64
import json
import os
import subprocess
import tempfile

NAMES = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 60
# The widest element that reaches over the edge, to say what to mend.
MEASURE = """
(() => {
    const width = document.documentElement.clientWidth;
    const over = [...document.querySelectorAll('main *')].filter(e => {
        for (let p = e; p && p !== document.body; p = p.parentElement)
            if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(p).overflowX)) return false;
        return e.getBoundingClientRect().right > width + 1;
    });
    const one = over.length ? over[0].outerHTML.slice(0, 120) : '';
    return [document.documentElement.scrollWidth, document.body.scrollWidth, width, one];
})()
"""


class Browser:
    """`with Browser(program) as browser`: one page, the size of a telephone's."""

    def __init__(self, program):
        self.folder = tempfile.TemporaryDirectory(prefix="cwt-browser-")
        to_it, self.writer = os.pipe()
        self.reader, from_it = os.pipe()
        # It takes commands at descriptor 3 and answers at 4, each ended by a zero byte.
        argv = ["bash", "-c", f'exec 3<&{to_it} 4>&{from_it}; exec "$@"', "bash", program,
                "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                "--remote-debugging-pipe", f"--user-data-dir={self.folder.name}", "about:blank"]
        self.process = subprocess.Popen(argv, pass_fds=(to_it, from_it), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_it)
        os.close(from_it)
        self.number, self.session, self.buffer = 0, None, b""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target,
                                 flatten=True)["sessionId"]
        self.call("Page.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.writer)
        os.close(self.reader)
        self.process.terminate()
        self.process.wait(SECONDS)
        self.folder.cleanup()

    def message(self):
        """The next answer or event."""
        while b"\0" not in self.buffer:
            data = os.read(self.reader, 1 << 16)
            if not data:
                raise OSError("the browser has ended")
            self.buffer += data
        text, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(text)

    def call(self, method, until=None, **params):
        """Calls a method; its result. With `until`, waits for that event, too."""
        self.number += 1
        request = {"id": self.number, "method": method, "params": params}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.writer, json.dumps(request).encode() + b"\0")
        result = None
        while result is None or until:
            said = self.message()
            if said.get("id") == self.number:
                if "error" in said:
                    raise OSError(f"{method}: {said['error']}")
                result = said["result"]
            elif until and said.get("method") == until:
                until = None
        return result

    def show(self, url, width, height):
        """Opens a page on a screen of that size."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=True)
        self.call("Page.navigate", until="Page.loadEventFired", url=url)

    def widths(self):
        """How wide the page is and how wide the screen; what is too wide."""
        found = self.call("Runtime.evaluate", expression=MEASURE, returnByValue=True)
        return found["result"]["value"]

    def picture(self, path):
        """Writes what is seen to a file."""
        data = self.call("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as f:
            f.write(base64.b64decode(data))
