"""Why it happened: an episode of Pucks whose reason is known."""

from typing import Any

import numpy as np
import pytest

from butfor.detection.collect import CollectConfig, collect_file
from butfor.detection.why import find_reasons
from butfor.rollouts.episodes import Episodes


@pytest.fixture(scope="module")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> Episodes:
    path = tmp_path_factory.mktemp("why") / "pucks.npz"
    return collect_file(CollectConfig("pucks", "noisy-expert", episodes=12), path)


def moved(episodes: Episodes, columns: slice) -> Any:
    """How far each episode's entity gets from its start [E]."""
    way = episodes.observation[:, :, columns] - episodes.observation[:, :1, columns]
    return np.linalg.norm(way, axis=-1).max(1)


def test_the_third_puck_needs_the_agent(episodes: Episodes) -> None:
    number = int(moved(episodes, slice(12, 14)).argmax())
    found = find_reasons(episodes, number, "third moved", alternatives=8)
    assert found.happened is not None
    assert found.entities["agent"]
    assert set(found.entities) == {"agent", "first", "second"}
    assert found.prevented.shape == episodes.action.shape[1:2]
    assert ((found.prevented >= 0) & (found.prevented <= 1)).all()
    assert (found.prevented[found.happened + 1 :] == 0).all()  # what comes later does not matter
    whole = find_reasons(episodes, number, "third moved", alternatives=8, window=60)
    assert whole.prevented[0] >= found.prevented[0]


def test_an_event_that_did_not_happen_has_no_reasons(episodes: Episodes) -> None:
    best = np.linalg.norm(episodes.achieved_goal - episodes.desired_goal, axis=-1).min(1)
    found = find_reasons(episodes, int(best.argmax()), alternatives=2)  # never near the goal
    assert found.happened is None
    assert not found.prevented.any()
    assert found.entities == {}


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"event": "fourth moved"}, "fourth"),
        ({"number": 12}, "12"),
        ({"alternatives": 0}, "0"),
        ({"window": 0}, "0"),
    ],
)
def test_mistakes_are_named(episodes: Episodes, options: dict[str, Any], value: str) -> None:
    with pytest.raises(ValueError, match=value):
        find_reasons(episodes, **options)
