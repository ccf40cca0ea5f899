"""What the player shows: episodes in 3-D or 2-D, with ghosts of the actions that were not taken.

Read `scene.py` first: a `Scene` is plain arrays and needs no torch. `view.py` makes one of a run or of episodes,
`ghosts.py` finds where other actions lead and which step decided, by branches of the simulators in `branches.py`;
`forked.py` does both for environments that are not built in; `robot.py` takes the meshes out of a MuJoCo model.
`butfor.reporting.player` draws it.
"""

from butfor.scenes.scene import Body, Ghosts, Scene, SceneEpisode, pack, read_scene, save_scene

__all__ = ["Body", "Ghosts", "Scene", "SceneEpisode", "pack", "read_scene", "save_scene"]
