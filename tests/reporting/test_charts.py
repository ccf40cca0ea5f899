"""Charts as data."""

import numpy as np
import pytest

from butfor.reporting import charts


def test_roc_curve_of_known_scores() -> None:
    label = np.array([False, True, False, True])
    scores = np.array([[0.1, 0.9, 0.2, 0.8], [1, 1, 1, 1], [0.9, 0.1, 0.8, 0.2]])
    x, y = charts.seed_curves(label, scores, "roc")
    assert len(x) <= 400
    assert (x[0], x[-1]) == (0.0, 1.0)
    assert np.array_equal(y[:, 0], np.zeros(3))
    assert np.array_equal(y[0, 1:], np.ones(len(x) - 1))  # perfect
    assert y[1] == pytest.approx(x)  # tells nothing
    assert np.array_equal(y[2, x < 1.0], np.zeros((x < 1.0).sum()))  # always wrong


def test_precision_is_that_of_the_first_threshold_that_reaches_a_recall() -> None:
    label = np.array([True, False, True])
    x, y = charts.seed_curves(label, np.array([[3.0, 2.0, 1.0], [1.0, 1.0, 1.0]]), "pr")
    assert y[0] == pytest.approx(np.where(x <= 0.5, 1.0, 2.0 / 3.0))
    assert y[0].mean() == pytest.approx(0.5 * 1.0 + 0.5 * 2.0 / 3.0)  # average precision
    assert y[1] == pytest.approx(np.full(len(x), 2.0 / 3.0))
