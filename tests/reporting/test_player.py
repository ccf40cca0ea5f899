"""The player's page: self-contained, small, and drawn without an error in a browser."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from support.browser import chromium
from support.pages import BREAKOUT, FITS, HOSTILE, Tags
from support.scenes import small_scene

from butfor.reporting.player import embed_scene, player_html, player_part, write_player
from butfor.scenes import Scene, pack, read_scene, save_scene
from butfor.scenes.scene import SCENE_FILE


def test_scenes_are_stored_as_the_page_carries_them(tmp_path: Path) -> None:
    scene = small_scene()
    save_scene(tmp_path / "scene.json", scene)
    assert read_scene(tmp_path / "scene.json") == json.loads(json.dumps(pack(scene)))


def test_a_file_that_is_not_a_scene_is_refused(tmp_path: Path) -> None:
    (tmp_path / "scene.json").write_text('{"colour": 1}')
    with pytest.raises(ValueError, match="colour"):
        read_scene(tmp_path / "scene.json")


def test_the_page_needs_nothing_else() -> None:
    """No element fetches anything, the licence of three.js is there, and the policy forbids the network."""
    page = player_html(small_scene())
    tags = Tags(page)
    assert not [tag for tag in tags.named("script") if "src" in tag]
    assert [tag["href"] for tag in tags.named("link")] == ["data:,"]
    assert "Permission is hereby granted, free of charge" in page
    assert "default-src 'none'" in page


def test_a_flat_scene_carries_no_three() -> None:
    assert len(player_html(small_scene(2))) < 300_000 < len(player_html(small_scene(3))) < 5_000_000


def test_names_cannot_break_out_of_the_page() -> None:
    part = player_part(small_scene(title=HOSTILE + BREAKOUT))
    (data,) = re.findall(r'<script type="application/json">(.*?)</script>', part, re.DOTALL)
    assert json.loads(data)["title"] == HOSTILE + BREAKOUT
    assert [tag for tag, _ in Tags(player_html(small_scene(title=HOSTILE))).found].count("img") == 0


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium("--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader") as opened:
        yield opened


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Opens the player of a scene; afterwards no console message may have appeared and nothing been fetched."""
    wrong: list[str] = []
    opened: list[Page] = []

    def open_player(scene: Scene, width: int = 1400, **options: Any) -> Page:
        path = write_player(tmp_path / "view.html", scene)
        view = browser.new_page(viewport={"width": width, "height": 900}, **options)
        view.set_default_timeout(120_000)  # of a busy machine; what it takes is not tested here
        opened.append(view)
        # Chromium itself reports on software drawing; everything else counts.
        view.on("console", lambda message: wrong.append(message.text) if "GPU stall" not in message.text else None)
        view.on("pageerror", lambda error: wrong.append(str(error)))
        view.on("request", lambda request: wrong.append(request.url) if request.url != path.as_uri() else None)
        view.goto(path.as_uri())
        view.wait_for_selector(".bf-player[data-ready]")
        return view

    yield open_player
    for view in opened:
        view.close()
    assert wrong == []


@pytest.mark.parametrize("dimensions", [2, 3])
@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_the_player_works_in_a_browser(show: Callable[..., Page], dimensions: int, width: int, scheme: Any) -> None:
    view = show(small_scene(dimensions), width, color_scheme=scheme)
    assert view.evaluate(FITS)
    timeline = view.locator(".bf-timeline")
    expect(timeline).to_have_attribute("aria-valuenow", "30")  # it opens at the step that decided
    assert "This step decided the outcome." in view.locator(".bf-say").inner_text()
    strips = view.locator(".bf-chart text", has_text=" moves ")
    assert strips.all_text_contents() == [
        "cube moves wall within 3 steps, by the model",  # which is not drawn
        "hand moves cube within 3 steps, by the model",
        "hand moves cube, by the simulator",
    ]
    view.keyboard.press("ArrowRight")
    expect(timeline).to_have_attribute("aria-valuenow", "31")
    view.keyboard.press("Home")
    expect(timeline).to_have_attribute("aria-valuenow", "0")
    assert "does not matter" in view.locator(".bf-say").inner_text()
    view.get_by_role("button", name="Step that decided the outcome").click()
    expect(timeline).to_have_attribute("aria-valuenow", "30")
    view.get_by_role("button", name="Play").click()
    expect(timeline).not_to_have_attribute("aria-valuenow", "30")
    view.get_by_role("button", name="Pause").click()


@pytest.mark.parametrize(("simulated", "first"), [(True, 20), (False, 24)])
def test_arrows_are_the_simulator_s_where_it_was_asked(show: Callable[..., Page], simulated: bool, first: int) -> None:
    """Of the model, those above 0.1 nats, or above the threshold of the page around the player."""
    view = show(small_scene(2, simulated=simulated))
    count = (
        """t => document.querySelector(".bf-player").butfor.episode.arrows.filter(arrow => arrow.isThere(t)).length"""
    )
    assert [view.evaluate(count, step) for step in (first - 1, first)] == [0, 1]
    by = "simulator" if simulated else "model"
    assert view.locator(".bf-legend", has_text=f"who moves whom, by the {by}").count() == 1
    assert view.locator(".bf-notes", has_text="above 0.1 nats").count() == (not simulated)
    view.evaluate("window.butforThreshold = 0.45; document.dispatchEvent(new Event('butfor-threshold'))")
    assert view.evaluate(count, first) == simulated
    assert view.locator(".bf-notes", has_text="above 0.45 nats").count() == (not simulated)


def test_an_arrow_is_drawn_between_bodies(show: Callable[..., Page]) -> None:
    """Pixels of its colour, which nothing else of this scene has."""
    view = show(small_scene(2, ghosts=False, simulated=False))
    coloured = """() => {
      const canvas = document.querySelector(".bf-stage canvas");
      const copy = Object.assign(document.createElement("canvas"), {width: canvas.width, height: canvas.height});
      const pen = copy.getContext("2d", {willReadFrequently: true});
      pen.drawImage(canvas, 0, 0);
      const {data} = pen.getImageData(0, 0, copy.width, copy.height);
      let count = 0;
      for (let i = 0; i < data.length; i += 4) count += data[i] === 230 && data[i + 1] === 159 && data[i + 2] === 0;
      return count;
    }"""
    found = {}
    for step in (22, 30):
        view.evaluate(f"document.querySelector('.bf-player').butfor.seek({step})")
        view.wait_for_timeout(200)
        found[step] = view.evaluate(coloured)
    assert found[22] == 0 < found[30]


def test_a_click_on_a_ghost_shows_its_action(show: Callable[..., Page]) -> None:
    """The ghost of action 0 lies at +x of the object, within the flat drawing."""
    view = show(small_scene(2))
    place = view.evaluate("""() => {
      const player = document.querySelector(".bf-player").butfor;
      const canvas = document.querySelector(".bf-stage canvas").getBoundingClientRect();
      for (let y = 0.02; y < 1; y += 0.02) for (let x = 0.01; x < 1; x += 0.01)
        if (player.stage.pick(x, y) === 0) return [canvas.left + x * canvas.width, canvas.top + y * canvas.height];
    }""")
    view.mouse.click(*place)
    card = view.locator(".bf-card")
    card.wait_for()
    assert "+1.00" in card.inner_text()
    assert "The goal would be reached." in card.inner_text()


def test_without_ghosts_the_page_still_plays(show: Callable[..., Page]) -> None:
    view = show(small_scene(3, ghosts=False))
    assert view.get_by_role("button", name="Ghosts").count() == 0
    expect(view.locator(".bf-timeline")).to_have_attribute("aria-valuenow", "20")  # the first of the largest scores


def test_the_threshold_of_a_page_is_a_line_in_the_chart(show: Callable[..., Page]) -> None:
    """Scores are drawn from 0 to 1.5 nats, 64 pixels high."""
    view = show(small_scene(2))
    line = view.locator(".bf-threshold")
    assert line.count() == 0
    heights = []
    for value in (0.0, 0.75, 1.5):
        view.evaluate(f"window.butforThreshold = {value}; document.dispatchEvent(new Event('butfor-threshold'))")
        heights.append(float(str(line.get_attribute("y1"))))
    assert heights[0] - heights[1] == pytest.approx(32, abs=0.1)
    assert heights[1] - heights[2] == pytest.approx(32, abs=0.1)


def test_other_actions_fan_out_where_they_matter(show: Callable[..., Page]) -> None:
    """Pixels change when the ghosts are hidden at a step of the fan, and none where all ghosts coincide."""
    view = show(small_scene(3))
    stage = view.locator(".bf-stage")
    differs = {}
    for step in (5, 40):
        view.evaluate(f"document.querySelector('.bf-player').butfor.seek({step})")
        pictures = []
        for _ in range(2):
            view.wait_for_timeout(150)
            pictures.append(stage.screenshot())
            view.keyboard.press("g")
        differs[step] = pictures[0] != pictures[1]
    assert differs == {5: False, 40: True}


def test_a_page_embeds_the_scene_of_a_run_folder(tmp_path: Path) -> None:
    """The part, its styles and its scripts; nothing where there is no scene."""
    assert embed_scene(tmp_path / SCENE_FILE) is None
    save_scene(tmp_path / SCENE_FILE, small_scene(2))
    found = embed_scene(tmp_path / SCENE_FILE)
    assert found is not None
    assert found["part"].startswith('<div class="bf-player">')
    assert "THREE" not in found["scripts"]
    assert ".bf-player" in found["styles"]
