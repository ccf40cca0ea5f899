"""The player's scene as a GIF or an MP4: the same bodies, ghosts and camera, drawn without a browser.

Scenes in 3-D are drawn by MuJoCo, from a model that is made of the scene's bodies; flat ones by pillow.
"""

from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from butfor.reporting.video import OVERSAMPLING, RecordedEpisode, draw_panel, film_path, panel_height, write_frames
from butfor.scenes.scene import Body, Floats, Scene, SceneEpisode

try:
    from PIL import Image, ImageDraw
except ImportError as error:
    raise ImportError("Films need pillow; install it with: pip install 'butfor[video]'.") from error

COLOURS = {
    "agent": "#222222",
    "object": "#d55e00",
    "goal": "#009e73",
    "other": "#0072b2",
    "scenery": "#c9ced4",
    "robot": "#c9ced4",
}
BACKGROUND = (233, 237, 241)
NO_FAN, FULL_FAN = 5e-4, 0.03  # metres between the ghosts of a robot: below the first there are none
GHOST_OPACITY = 0.3
AROUND, ABOVE = 132.0, -24.0  # degrees of the camera
SPEED = 0.5  # of a film, so that the ghosts can be seen
PAUSE = 1.2  # seconds at the step that decided
SMOOTHING = 2  # pictures in 3-D are drawn this many times as large and reduced
TRAIL = 0.0012  # metres, the radius of a ghost's trail


class Artist(Protocol):
    """Draws states of a scene."""

    def draw(self, episode: SceneEpisode, step: int, hold: int) -> "Image.Image":
        """Return the picture of a state, with ghosts of actions held for some steps."""

    def close(self) -> None:
        """Release what drawing needs."""


def write_film(path: Path | str, scene: Scene, number: int = 0, width: int = 480, hold: int | None = None) -> Path:
    """Write one episode of a scene as a film with ghosts, at half speed, with a pause at the step that decided.

    Args:
        path: the film, .gif or .mp4.
        scene: what to show.
        number: which of its episodes.
        width: of the film, in pixels.
        hold: steps for which the ghosts' actions are held; default: as many as the scene has.

    Returns:
        The path.

    Raises:
        ValueError: `path` does not end in .gif or .mp4, or there is no such episode.
    """
    target = film_path(path)
    if not 0 <= number < len(scene.episodes):
        raise ValueError(f"There is no episode {number}; the scene has {len(scene.episodes)}.")
    episode = scene.episodes[number]
    held = episode.ghosts.hold if episode.ghosts is not None else 1
    artist: Artist = SolidArtist(scene, episode, width) if scene.dimensions == 3 else FlatArtist(scene, episode, width)
    with closing(artist):
        frames = _frames(scene, episode, artist, width, min(hold or held, held))
        if target.suffix.lower() == ".gif":  # this palette keeps rare colours, such as the goal's
            frames = (frame.quantize(256, Image.Quantize.FASTOCTREE) for frame in frames)
        write_frames(target, frames, SPEED / scene.step_seconds)
    return target


def strength(scene: Scene, episode: SceneEpisode, step: int, hold: int, place: int) -> float:
    """Return how visible the ghosts of an object are: 0 where all coincide, 1 from a clear fan on."""
    ghosts = episode.ghosts
    if ghosts is None or step >= len(episode.action):
        return 0.0
    low, full = (NO_FAN, FULL_FAN) if _is_robot(scene) else (1e-3 * _extent(episode), 0.04 * _extent(episode))
    return float(min(1.0, np.sqrt(max(ghosts.spread()[step, hold - 1, place] - low, 0.0) / full)))


class SolidArtist:
    """Draws a scene in 3-D: every body is a mocap body of a MuJoCo model."""

    def __init__(self, scene: Scene, episode: SceneEpisode, width: int) -> None:
        """Build the model and open a graphics context."""
        from butfor.envs.drawing import open_context
        from butfor.envs.fetch_physics import mujoco

        self.mujoco: Any = mujoco
        self.scene = scene
        self.width = SMOOTHING * width
        self.height = SMOOTHING * (width * 3 // 4 // 2 * 2)
        self.model = _model(scene, self.width, self.height)
        self.data = mujoco.MjData(self.model)
        self._context = open_context(self.width, self.height)
        self._context.make_current()
        self._drawn = mujoco.MjvScene(self.model, maxgeom=4000)
        self._option = mujoco.MjvOption()
        self._camera = mujoco.MjvCamera()
        middle, distance = _view(scene, episode)
        self._camera.lookat[:] = middle
        self._camera.distance = distance
        self._camera.azimuth = AROUND
        self._camera.elevation = ABOVE
        self._graphics = mujoco.MjrContext(self.model, int(mujoco.mjtFontScale.mjFONTSCALE_100))
        mujoco.mjr_resizeOffscreen(self.width, self.height, self._graphics)
        mujoco.mjr_setBuffer(int(mujoco.mjtFramebuffer.mjFB_OFFSCREEN), self._graphics)

    def draw(self, episode: SceneEpisode, step: int, hold: int) -> "Image.Image":
        """Return the picture of a state."""
        mujoco = self.mujoco
        self.data.mocap_pos[:] = episode.pose[step, :, :3]
        self.data.mocap_quat[:] = episode.pose[step, :, 3:]
        mujoco.mj_forward(self.model, self.data)
        self._context.make_current()
        everything = int(mujoco.mjtCatBit.mjCAT_ALL)
        mujoco.mjv_updateScene(self.model, self.data, self._option, None, self._camera, everything, self._drawn)
        self._add_ghosts(episode, step, hold)
        for drawn in self._drawn.geoms[: self._drawn.ngeom]:
            if drawn.rgba[3] < 1:  # neither ghosts nor the goal cast a shadow
                drawn.category = int(mujoco.mjtCatBit.mjCAT_DECOR)
                drawn.transparent = 1
        view = mujoco.MjrRect(0, 0, self.width, self.height)
        mujoco.mjr_render(view, self._drawn, self._graphics)
        frame = np.empty((self.height, self.width, 3), dtype=np.uint8)
        mujoco.mjr_readPixels(frame, None, view, self._graphics)
        return Image.fromarray(frame[::-1]).reduce(SMOOTHING)  # OpenGL's rows go upwards

    def close(self) -> None:
        """Release the graphics context."""
        self._context.make_current()
        self._graphics.free()
        self._context.free()

    def _add_ghosts(self, episode: SceneEpisode, step: int, hold: int) -> None:
        ghosts = episode.ghosts
        if ghosts is None or step >= len(episode.action):
            return
        changed = _changed(episode)
        for place, number in enumerate(ghosts.bodies):
            visible = strength(self.scene, episode, step, hold, place)
            if visible < 0.02:
                continue
            for other in range(ghosts.action.shape[1]):
                path = ghosts.path[step, other, :hold, place]
                if not np.isfinite(path).all():
                    continue
                colour = _rgb("other" if changed[step, other] else "object")
                self._add_body(self.scene.bodies[number], number, path[-1], [*colour, GHOST_OPACITY * visible])
                ends = np.concatenate([episode.pose[step, number, None, :3], path[:, :3]])
                for start, end in pairwise(ends):
                    self._add_line(start, end, [*colour, 0.6 * visible])

    def _add_body(self, body: Body, number: int, pose: Floats, colour: list[float]) -> None:
        mujoco = self.mujoco
        drawn = self._drawn.geoms[self._drawn.ngeom]
        matrix = np.empty(9)
        mujoco.mju_quat2Mat(matrix, np.asarray(pose[3:], dtype=np.float64))
        size = self.model.geom_size[number]
        rgba = np.array(colour, dtype=np.float32)
        mujoco.mjv_initGeom(drawn, self.model.geom_type[number], size, np.array(pose[:3], float), matrix, rgba)
        if body.form == "mesh":
            drawn.dataid = 2 * self.model.geom_dataid[number]
        self._drawn.ngeom += 1

    def _add_line(self, start: Floats, end: Floats, colour: list[float]) -> None:
        mujoco = self.mujoco
        if np.linalg.norm(end - start) < TRAIL:
            return
        drawn = self._drawn.geoms[self._drawn.ngeom]
        kind = mujoco.mjtGeom.mjGEOM_CAPSULE
        rgba = np.array(colour, dtype=np.float32)
        mujoco.mjv_initGeom(drawn, int(kind), np.zeros(3), np.zeros(3), np.eye(3).ravel(), rgba)
        mujoco.mjv_connector(drawn, int(kind), TRAIL, np.array(start, float), np.array(end, float))
        self._drawn.ngeom += 1


class FlatArtist:
    """Draws a scene from above with pillow."""

    def __init__(self, scene: Scene, episode: SceneEpisode, width: int) -> None:
        """Choose the part of the plane that is shown."""
        self.scene = scene
        places = episode.pose[..., :2].reshape(-1, 2)
        sizes = np.array([[max(body.size[0], 0), body.size[1] or body.size[0]] for body in scene.bodies])
        sizes = np.tile(sizes, (len(episode.pose), 1))
        low, high = (places - sizes).min(axis=0), (places + sizes).max(axis=0)
        self.middle = (low + high) / 2
        span = (high - low) * 1.08
        self.width = width
        self.height = int(np.clip(width * span[1] / span[0], width // 4, width)) // 2 * 2
        self.scale = min(width / span[0], self.height / span[1]) * OVERSAMPLING
        self.line = bool((places[:, 1] == 0).all())

    def draw(self, episode: SceneEpisode, step: int, hold: int) -> "Image.Image":
        """Return the picture of a state."""
        picture = Image.new("RGBA", (self.width * OVERSAMPLING, self.height * OVERSAMPLING), (*BACKGROUND, 255))
        order = ["scenery", "goal", "robot", "agent"]
        pose = episode.pose[step]
        for role in order:
            for body, place in zip(self.scene.bodies, pose, strict=True):
                if body.role == role:
                    self._fill(picture, body, place, role, body.opacity)
        ghosts = episode.ghosts
        changed = _changed(episode)
        for place, number in enumerate(ghosts.bodies if ghosts is not None else ()):
            visible = strength(self.scene, episode, step, hold, place)
            if ghosts is None or visible < 0.02:
                continue
            count = ghosts.action.shape[1]
            for other in range(count):
                rise = visible * (other - (count - 1) / 2) * 7 * OVERSAMPLING if self.line else 0.0
                paint = "other" if changed[step, other] else "object"
                final = ghosts.path[step, other, hold - 1, place]
                if np.isfinite(final).all():
                    self._fill(picture, self.scene.bodies[number], final, paint, GHOST_OPACITY * visible, rise)
        for body, place in zip(self.scene.bodies, pose, strict=True):
            if body.role == "object":
                self._fill(picture, body, place, "object", 1.0)
        return picture.convert("RGB").reduce(OVERSAMPLING)

    def close(self) -> None:
        """Do nothing: pillow holds nothing."""

    def _fill(
        self, picture: "Image.Image", body: Body, pose: Floats, paint: str, opacity: float, rise: float = 0.0
    ) -> None:
        across = picture.width / 2 + self.scale * (pose[0] - self.middle[0])
        down = picture.height / 2 - self.scale * (pose[1] - self.middle[1]) + rise
        is_box = body.form == "box"
        wide = max(self.scale * body.size[0], 2.0)
        high = max(self.scale * body.size[1], 2.0) if is_box else wide
        layer = Image.new("RGBA", picture.size, (0, 0, 0, 0))
        colour = (*(round(255 * part) for part in _rgb(paint)), round(255 * opacity))
        pen = ImageDraw.Draw(layer)
        box = (across - wide, down - high, across + wide, down + high)
        (pen.rectangle if is_box else pen.ellipse)(box, colour)
        picture.alpha_composite(layer)


def _frames(scene: Scene, episode: SceneEpisode, artist: Artist, width: int, hold: int) -> Iterator["Image.Image"]:
    """A frame for each state: its picture, and the panel below; the step that decided is held."""
    steps = len(episode.action)
    if episode.scores:
        values = np.max(np.stack(list(episode.scores.values())), axis=0)
        quantity, unit = "CAI", "nats"
    elif episode.ghosts is not None:
        values = episode.ghosts.spread()[:, hold - 1].max(axis=1) * (100 if scene.unit == "m" else 1)
        quantity, unit = "fan", "cm" if scene.unit == "m" else ""
    else:
        values, quantity, unit = np.zeros(steps), "", ""
    reached = episode.reached if episode.reached is not None else np.zeros(steps + 1, dtype=np.bool_)
    title = f"{scene.title}, {episode.title.lower()}"
    if episode.ghosts is not None:
        title += f"; ghosts: other actions{f' held for {hold} steps' if hold > 1 else ''}"
    last = np.concatenate([values, values[-1:]]).astype(np.float64)
    recorded = RecordedEpisode([], quantity, unit, last, reached, title)
    pause = round(PAUSE * SPEED / scene.step_seconds)
    for step in range(steps + 1):
        picture = artist.draw(episode, step, hold)
        frame = Image.new("RGB", (width, picture.height + panel_height(width)), (255, 255, 255))
        frame.paste(picture, (0, 0))
        frame.paste(draw_panel(recorded, step, width), (0, picture.height))
        for _ in range(pause if step in (episode.decided, steps) else 1):
            yield frame


def _model(scene: Scene, width: int, height: int) -> Any:
    """A MuJoCo model with a mocap body for each body of the scene, a floor, a light and a background."""
    from butfor.envs.fetch_physics import mujoco

    kinds = {
        "box": mujoco.mjtGeom.mjGEOM_BOX,
        "sphere": mujoco.mjtGeom.mjGEOM_SPHERE,
        "cylinder": mujoco.mjtGeom.mjGEOM_CYLINDER,
        "capsule": mujoco.mjtGeom.mjGEOM_CAPSULE,
        "ellipsoid": mujoco.mjtGeom.mjGEOM_ELLIPSOID,
        "mesh": mujoco.mjtGeom.mjGEOM_MESH,
    }
    spec = mujoco.MjSpec()
    spec.visual.global_.offwidth = width
    spec.visual.global_.offheight = height
    spec.visual.headlight.ambient = [0.45] * 3
    spec.visual.headlight.diffuse = [0.35] * 3
    spec.visual.quality.shadowsize = 4096
    back = [part / 255 for part in BACKGROUND]
    sky = spec.add_texture(name="sky", type=mujoco.mjtTexture.mjTEXTURE_SKYBOX, width=64, height=64)
    sky.builtin = mujoco.mjtBuiltin.mjBUILTIN_FLAT
    sky.rgb1 = sky.rgb2 = back
    spec.worldbody.add_light(pos=[1.6, -0.6, 3.0], dir=[-0.2, 0.5, -1.0], diffuse=[0.5] * 3, castshadow=True)
    for number, body in enumerate(scene.bodies):
        holder = spec.worldbody.add_body(name=f"body{number}", mocap=True)
        geom = holder.add_geom(type=kinds[body.form], contype=0, conaffinity=0)
        if body.vertices is not None and body.faces is not None:
            mesh = spec.add_mesh(name=f"mesh{number}", inertia=mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL)
            mesh.uservert = np.asarray(body.vertices, dtype=np.float64).ravel()
            mesh.userface = np.asarray(body.faces, dtype=np.int32).ravel()
            geom.meshname = mesh.name
        else:
            geom.size = [max(size, 1e-4) for size in body.size]
        paint = body.colour if body.colour and body.role in ("robot", "scenery") else COLOURS[body.role]
        geom.rgba = [*_hex(paint), body.opacity]
    return spec.compile()


def _view(scene: Scene, episode: SceneEpisode) -> tuple[NDArray[np.float64], float]:
    """Where the camera looks, and from how far: at the way of objects and goals; without meshes at everything."""
    robot = _is_robot(scene)
    roles = ("object", "goal", "agent")
    seen = [place for place, body in enumerate(scene.bodies) if not robot or body.role in roles]
    places = episode.pose[:, seen, :3]  # [T + 1, B, 3]
    sizes = np.array([0.0 if robot else max(scene.bodies[place].size) / 2 for place in seen])[:, None]
    low, high = (places - sizes).min(axis=(0, 1)), (places + sizes).max(axis=(0, 1))
    reach = max(float(np.linalg.norm(high - low)) / 2, 0.16 if robot else 0.1)
    middle = (low + high) / 2 + np.array([0, 0, 0.06 if robot else 0.0])
    return middle, 2.4 * reach + 0.56 if robot else 2.1 * reach


def _changed(episode: SceneEpisode) -> NDArray[np.bool_]:
    """Which other actions [T, M] would have changed the outcome."""
    ghosts = episode.ghosts
    if ghosts is None:
        return np.zeros((len(episode.action), 0), dtype=np.bool_)
    if ghosts.success is None or episode.reached is None:
        return np.zeros(ghosts.action.shape[:2], dtype=np.bool_)
    return np.asarray(ghosts.success != episode.reached[-1])


def _is_robot(scene: Scene) -> bool:
    return any(body.form == "mesh" for body in scene.bodies)


def _extent(episode: SceneEpisode) -> float:
    return max(float(np.ptp(episode.pose[..., :3].reshape(-1, 3), axis=0).max()), 1e-9)


def _rgb(name: str) -> list[float]:
    return _hex(COLOURS[name])


def _hex(colour: str) -> list[float]:
    return [int(colour[first : first + 2], 16) / 255 for first in (1, 3, 5)]
