"""Draw the pictures of the docs that show environments and pages.

    python docs/pictures/make_screens.py environments docs/pictures/environments.png
    python docs/pictures/make_screens.py PAGE.html docs/pictures/NAME.png [HEIGHT]

The first needs the extra `fetch`, the second playwright and Chromium. A page is shown from its top, as it opens.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from playwright.sync_api import sync_playwright

from butfor.detection.collect import CollectConfig, collect_file
from butfor.reporting.player.film import FlatArtist, SolidArtist
from butfor.scenes.view import view_episodes

ENVS = ("slide", "pucks", "push", "pick-and-place", "fetch-slide", "rot-table", "push-two", "stack-two")
COLUMNS = 4
CELL = (240, 200)
TITLE = 24  # pixels above each environment
COLOURS = 256  # of a picture, so that it stays small


def draw_environments(path: Path) -> None:
    """Draw a moment of a scripted episode in each environment, with ghosts, as films of the player show it."""
    font = ImageFont.load_default(14)
    rows = -(-len(ENVS) // COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * CELL[0], rows * (CELL[1] + TITLE)), "white")
    pen = ImageDraw.Draw(sheet)
    for place, name in enumerate(ENVS):
        with tempfile.TemporaryDirectory() as folder:
            episodes = collect_file(CollectConfig(name, "expert", 1, seed=1), Path(folder) / "one.npz")
        scene = view_episodes(episodes, outcomes=False)
        episode = scene.episodes[0]
        artist = (SolidArtist if scene.dimensions == 3 else FlatArtist)(scene, episode, 2 * CELL[0])
        step = int(np.argmax(episode.labels["exact"]))  # the first at which the action matters
        picture = artist.draw(episode, step, 5)
        artist.close()
        picture.thumbnail((CELL[0] - 8, CELL[1]), Image.Resampling.LANCZOS)
        left, top = place % COLUMNS * CELL[0], place // COLUMNS * (CELL[1] + TITLE)
        pen.text((left + 4, top + 4), name, (30, 30, 30), font)
        sheet.paste(picture, (left + 4, top + TITLE))
    sheet.quantize(COLOURS, Image.Quantize.FASTOCTREE).save(path, optimize=True)


def draw_page(page: Path, path: Path, width: int = 1100, height: int = 1000) -> None:
    """Draw the beginning of a page as a browser shows it."""
    options = ["--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=options)
        view = browser.new_page(viewport={"width": width, "height": height})
        view.goto(page.absolute().as_uri())
        view.wait_for_timeout(4000)  # until charts and player are drawn
        view.screenshot(path=path)
        browser.close()
    with Image.open(path) as shown:
        small = shown.convert("RGB").quantize(COLOURS, Image.Quantize.FASTOCTREE)  # keeps rare colours
    small.save(path, optimize=True)


if __name__ == "__main__":
    source, target = sys.argv[1], Path(sys.argv[2])
    height = int(sys.argv[3]) if len(sys.argv) > 3 else 1000
    draw_environments(target) if source == "environments" else draw_page(Path(source), target, height=height)
    print(target)
