"""The demo: its episodes, how they are split, its numbers, and its page in a browser."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.browser import chromium

from butfor import FitConfig, Influence, ModelConfig
from butfor.datasets import demo
from butfor.envs.facts import BUILT_IN
from butfor.rollouts.episodes import Episodes

FACTS = BUILT_IN["pick-and-place"]


def quick_fit(episodes: Episodes, *others: object) -> Influence:
    fitting = FitConfig(batch_size=500, learning_rate=1e-3, max_epochs=2)
    return Influence.fit(
        *episodes.transitions(), {"cube": [3, 4, 5]}, model=ModelConfig(layers=1, width=16), fitting=fitting
    )


def test_the_episodes_are_small_and_of_every_policy() -> None:
    assert demo.FILE.stat().st_size < 2_000_000
    episodes = Episodes.load(demo.FILE)
    parts = episodes.metadata["parts"]
    assert len(episodes) == sum(parts.values())
    assert set(parts) == set(demo.TITLES)
    assert episodes.reset_seed is not None  # the player plays them again
    assert {"exact", "contact"} <= set(episodes.labels())
    first = episodes.take(np.arange(parts["random"]))
    assert first.sampled.all()
    assert not episodes.sampled[-parts["learned"] :].any()


def test_whole_episodes_are_split_and_keep_their_policy() -> None:
    episodes = Episodes.load(demo.FILE)
    split = demo.split_episodes(episodes)
    sizes = [len(part) for part in (split.fit, split.held_out, split.test)]
    assert sum(sizes) == len(episodes)
    assert sizes[2] == len(split.policies)
    seeds = [set(map(tuple, part.observation[:, 0])) for part in (split.fit, split.held_out, split.test)]
    assert len(set.union(*seeds)) == sum(sizes)
    for policy, sampled in zip(split.policies, split.test.sampled, strict=True):
        assert sampled.all() == (policy == "random")


def test_the_map_moves_the_gripper_and_keeps_dependent_columns_right(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Seen:
        def score(self, obs: np.ndarray) -> dict[str, np.ndarray]:
            seen.append(obs)
            return {"cube": np.arange(len(obs), dtype=float)}

    obs = Episodes.load(demo.FILE).transitions()[0][:200]
    shown = demo.map_around(Seen(), obs, FACTS)  # type: ignore[arg-type]
    grid = seen[-1]
    assert shown["cai"].shape == (demo.CELLS, demo.CELLS)
    assert np.allclose(grid[:, 6:9], grid[:, 3:6] - grid[:, :3])
    assert np.ptp(grid[:, 0]) == pytest.approx(2 * demo.AROUND)
    assert (np.ptp(grid[:, 3:6], axis=0) == 0).all()


def test_the_demo_without_a_simulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "fit_cube", quick_fit)
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    summary = demo.run_demo(tmp_path / "demo")
    assert json.loads((tmp_path / "demo" / "summary.json").read_text()).items() >= summary.items()
    assert not summary["film"]
    assert [row["name"] for row in summary["detectors"]] == ["cai", "distance", "moved", "contact"]
    assert summary["states"] == 50 * summary["episodes"]["test"]
    assert 0.4 < summary["influenced"] < 0.7
    assert Influence.load(tmp_path / "demo" / "influence.safetensors").calibration
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 390, "height": 800})
        wrong: list[str] = []
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto((tmp_path / "demo" / "report.html").as_uri())
        page.wait_for_selector("#plot-map .main-svg")
        assert "butfor[fetch]" in page.inner_text("main")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.click("#trust ~ details summary")
        assert page.locator("#plot-gain").bounding_box()["width"] > 200  # type: ignore[index]
        assert wrong == []


@pytest.mark.long
def test_the_demo_convinces(tmp_path: Path) -> None:
    """The default model, against the exact answer: at least as good as the paper's best on pick-and-place."""
    summary = demo.run_demo(tmp_path, film=False)
    cai = summary["detectors"][0]
    assert cai["auc"] > 0.98
    assert cai["ap"] > 0.98
    assert summary["decisions"]["found"] > 0.8
    assert summary["decisions"]["false"] < 0.1
    assert summary["problems"] == []
