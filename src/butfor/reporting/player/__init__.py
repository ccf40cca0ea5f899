"""The player: one self-contained page, or a part of a report, that shows a `butfor.scenes.Scene`.

`player_part` gives the element and `player_scripts` what it needs once on a page; `player_html` and `write_player` make
a page of their own. `player.js` is the timeline and the chart, `stage3d.js` and `stage2d.js` draw the scene.
`three.min.js` contains the parts of three.js that they use; `three.LICENSE` is its licence.
"""

from butfor.reporting.player.page import (
    Packed,
    embed,
    embed_scene,
    embed_scenes,
    join_scenes,
    player_html,
    player_part,
    player_scripts,
    player_styles,
    write_player,
)

__all__ = [
    "Packed", "embed", "embed_scene", "embed_scenes", "join_scenes", "player_html", "player_part", "player_scripts",
    "player_styles", "write_player",
]  # fmt: skip
