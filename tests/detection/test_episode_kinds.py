"""CAI by kind of episode, on episodes made by hand."""

import numpy as np
import pytest

from butfor.detection.episode_kinds import cai_by_kind
from butfor.rollouts.episodes import Episodes


def test_cai_by_kind_of_episode() -> None:
    """Three episodes of 20 steps: untouched, touched at step 3, handled from step 8 on; two seeds, twice as high."""
    contact = np.zeros((3, 20), bool)
    contact[1, 3], contact[2, 8:] = True, True
    label = contact.copy()
    label[2, 6:8] = True  # the agent hovers
    achieved = np.zeros((3, 21, 3), np.float32)
    achieved[2, :, 0] = np.linspace(0, 0.3, 21)
    whole = np.zeros((3, 21, 25), np.float32), np.zeros((3, 20, 4), np.float32), achieved, np.zeros_like(achieved)
    episodes = Episodes(*whole, np.full(3, 20), np.zeros((3, 20), bool), contact, {"exact": label})
    score = np.zeros((3, 20))
    score[1, 2:5], score[2, 8:], score[2, 6:8] = 1.0, 2.0, 0.5
    rows = {row["title"]: row for row in cai_by_kind(episodes, np.stack([score.ravel()] * 2) * [[1], [2]], "push")}
    assert {title: row["steps"] for title, row in rows.items()} == {
        "no contact": 20, "manipulation": 20, "around a brief touch": 3, "the rest of these episodes": 17,
        "influenced, in contact": 13, "influenced, no contact": 2,
    }  # fmt: skip
    means = {title: row["cai"]["mean"] / 1.5 for title, row in rows.items()}
    assert means["no contact"] == means["the rest of these episodes"] == 0
    assert means["around a brief touch"] == pytest.approx(1)
    assert means["manipulation"] == pytest.approx((12 * 2.0 + 2 * 0.5) / 20)
    assert means["influenced, no contact"] == pytest.approx(0.5)
    assert rows["around a brief touch"]["cai"]["std"] == pytest.approx(0.5)
    assert cai_by_kind(episodes, np.zeros((2, 60)), "slide") == []
    episodes.contact = None
    assert cai_by_kind(episodes, np.zeros((2, 60)), "push") == []
