"""Put a scene and the player's scripts into HTML."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from butfor import __version__
from butfor.reporting.page import write_page
from butfor.scenes.scene import Scene, pack, read_scene

FOLDER = Path(__file__).parent
Packed = Mapping[str, Any]
"""A scene as `butfor.scenes.pack` or `read_scene` returns it."""


def player_part(scene: Scene | Packed, whole: bool = False) -> Markup:
    """Return the player of a scene as an element of a page, which also needs `player_styles` and `player_scripts`.

    Args:
        scene: what to show.
        whole: whether the player is the only subject of the page, and hears its keys everywhere on it.
    """
    packed = pack(scene) if isinstance(scene, Scene) else scene
    # JSON inside a script element must not contain the beginning of a tag or of a comment
    text = json.dumps(packed, separators=(",", ":")).replace("<", "\\u003c").replace("&", "\\u0026")
    data = Markup('<script type="application/json">{}</script>').format(Markup(text))
    words = Markup("<noscript>The player needs JavaScript.</noscript>")
    return Markup('<div class="bf-player"{}>{}{}</div>').format(Markup(" data-whole") if whole else "", data, words)


def player_styles() -> Markup:
    """Return the style sheet of the player, for a style element of the page."""
    return Markup((FOLDER / "player.css").read_text(encoding="utf-8"))


def player_scripts(three_dimensional: bool = True) -> Markup:
    """Return the script elements that bring every player of a page to life; put them once, behind the players.

    Args:
        three_dimensional: whether any of the players shows a scene in 3-D, which needs three.js.
    """
    names = ["three.min.js", "stage3d.js"] if three_dimensional else []
    texts = [(FOLDER / name).read_text(encoding="utf-8") for name in [*names, "stage2d.js", "player.js"]]
    if three_dimensional:
        texts[0] = f"/*\n{(FOLDER / 'three.LICENSE').read_text(encoding='utf-8')}*/\n{texts[0]}"
    return Markup("\n").join(Markup("<script>{}</script>").format(Markup(text)) for text in texts)


def embed_scene(path: Path) -> dict[str, Markup] | None:
    """Return what a page needs to show the scene in a file, `styles`, `part` and `scripts`, or None without a file."""
    return embed(read_scene(path)) if path.is_file() else None


def embed_scenes(scenes: Sequence[Packed]) -> dict[str, Markup] | None:
    """Return what a page with several players needs once, `styles` and `scripts`, or None without a scene."""
    if not scenes:
        return None
    return {"styles": player_styles(), "scripts": player_scripts(any(scene["dimensions"] == 3 for scene in scenes))}


def join_scenes(named: Mapping[str, Packed], most: int) -> list[dict[str, Any]]:
    """Put the episodes of scenes with the same bodies into one, so that one player shows them.

    Args:
        named: scenes by the name that their episodes get.
        most: number of episodes in all, at least one of each scene.
    """
    joined: list[dict[str, Any]] = []
    for name, scene in named.items():
        chosen = scene["episodes"][: max(most // len(named), 1)]
        episodes = [episode | {"title": f"{name}: {episode['title']}"} for episode in chosen]
        same = [one for one in joined if one["bodies"] == scene["bodies"]]
        if same:
            same[0]["episodes"] += episodes
        else:
            joined.append({**scene, "episodes": episodes})
    return joined


def embed(scene: Scene | Packed) -> dict[str, Markup]:
    """Return what a page needs to show a scene: `styles`, `part` and `scripts`."""
    packed = pack(scene) if isinstance(scene, Scene) else scene
    scripts = player_scripts(packed["dimensions"] == 3)
    return {"styles": player_styles(), "part": player_part(packed), "scripts": scripts}


def player_html(scene: Scene | Packed) -> str:
    """Return a self-contained page with the player of a scene: nothing is fetched, and it works offline."""
    packed = pack(scene) if isinstance(scene, Scene) else scene
    loader = jinja2.FileSystemLoader([FOLDER, FOLDER.parent / "templates"])
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.get_template("player.html.j2").render(
        title=packed["title"],
        css=player_styles(),
        player=player_part(packed, whole=True),
        scripts=player_scripts(packed["dimensions"] == 3),
        three=packed["dimensions"] == 3,
        version=__version__,
    )


def write_player(path: Path | str, scene: Scene | Packed) -> Path:
    """Write the page of `player_html`; the file is complete or absent.

    Args:
        path: the file, such as view.html.
        scene: what to show.

    Returns:
        The path.
    """
    return write_page(Path(path), player_html(scene))
