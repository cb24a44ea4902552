"""Make the picture of a report for the README: `python docs/pictures/make.py [RUN]`.

Without RUN, the digits are trained first, which takes a minute or two. Needs Chromium or Chrome;
`--browser` names the program. The browser fetches nothing: a report is one file.
"""

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

import coterie

PICTURE = Path(__file__).with_name("report.png")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTH, HEIGHT = 1200, 1010
COLOURS = 256  # a palette keeps the file small


def draw(report: Path, browser: str, out: Path) -> None:
    """Take a picture of the top of a page, with a palette of few colours."""
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "shot.png"
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        options += ["--no-first-run", "--disable-background-networking"]
        options += [f"--user-data-dir={folder}/profile", f"--window-size={WIDTH},{HEIGHT}"]
        options += ["--virtual-time-budget=10000", f"--screenshot={shot}"]
        command = [browser, *options, report.resolve().as_uri()]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL, timeout=120)
        Image.open(shot).convert("RGB").quantize(COLOURS).save(out, optimize=True)


def main() -> None:
    """Read the words of the command line, train if no run is named, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--browser", default=next(filter(shutil.which, BROWSERS), BROWSERS[0]))
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = words.run
        if run is None:
            run = Path(folder) / "run"
            coterie.run("digits/moon", out=run, record={"embedding": 500})
        draw(run / "report.html", words.browser, PICTURE)
    print(PICTURE)


if __name__ == "__main__":
    main()
