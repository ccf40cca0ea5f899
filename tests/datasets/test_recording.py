"""Recordings from arrays of every form, and what is refused."""

import re
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from support.recordings import BOX, LENGTHS, flat, same, some_episodes

from butfor.datasets.recording import read_arrays


def test_a_recording_knows_where_its_states_stand() -> None:
    found = read_arrays(*some_episodes())
    assert found.episode.tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 2]
    assert found.time.tolist() == [0, 1, 2, 3, 0, 1, 0, 1, 2, 3, 4]
    assert np.flatnonzero(found.last).tolist() == [3, 5, 10]
    assert len(found) == 3
    chosen = np.array([False, True, False, True, False, False, False, True])
    obs, action, next_obs = found.transitions(chosen)
    np.testing.assert_array_equal(obs, found.observation[[1, 4, 9]])
    np.testing.assert_array_equal(action, found.action[[1, 3, 7]])
    np.testing.assert_array_equal(next_obs, found.observation[[2, 5, 10]])
    *same_steps, later = found.transitions(later=2)  # not beyond the end of an episode
    np.testing.assert_array_equal(later, found.observation[[2, 3, 3, 5, 8, 9, 10, 10]])
    for one, other in zip(same_steps, found.transitions(), strict=False):
        np.testing.assert_array_equal(one, other)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=6).map(tuple))
def test_all_forms_of_the_same_episodes_are_read_alike(lengths: tuple[int, ...]) -> None:
    observations, actions = some_episodes(lengths)
    rows, most = flat(observations, actions), max(lengths)
    padded = [np.stack([np.pad(one, ((0, most + more - len(one)), (0, 0)), constant_values=np.nan) for one in parts])
              for parts, more in ((observations, 1), (actions, 0))]  # fmt: skip
    obs, action, after, timeouts = (rows[key] for key in ("observations", "actions", "next_observations", "timeouts"))
    ended = np.arange(most) == np.array(lengths)[:, None] - 1
    for found in (
        read_arrays(observations, actions),
        read_arrays(obs, action, after, timeouts=timeouts),
        read_arrays(obs, action, after),  # an episode ends where the next row does not follow
        read_arrays(obs, action, after, length=lengths),
        read_arrays(np.concatenate(observations), action, length=lengths),
        read_arrays(*padded, length=lengths),
        read_arrays(*padded, terminals=ended),
        read_arrays(padded[0][:, :-1], padded[1], padded[0][:, 1:], timeouts=ended),
    ):
        same(found, observations, actions)
        np.testing.assert_array_equal(np.concatenate(found.transitions()[::2]), np.concatenate([obs, after]))


def test_without_the_state_after_it_the_last_action_is_not_used() -> None:
    observations, actions = some_episodes()
    ends = np.concatenate([np.arange(n + 1) == n for n in LENGTHS])
    spare = np.concatenate([np.concatenate([one, np.full((1, 2), 9.0)]) for one in actions])
    same(read_arrays(np.concatenate(observations), spare, terminals=ends), observations, actions)
    rows = [n + 1 for n in LENGTHS]
    same(read_arrays(np.concatenate(observations), spare, length=rows), observations, actions)
    same(read_arrays(observations[0], actions[0]), observations[:1], actions[:1])  # one state more than actions
    padded = np.zeros((3, 5, 3)), np.full((3, 5, 2), 9.0)
    for place, n in enumerate(LENGTHS):
        padded[0][place, : n + 1], padded[1][place, :n] = observations[place], actions[place]
    same(read_arrays(*padded, length=rows), observations, actions)


def test_the_parts_of_a_dictionary_stand_in_the_order_of_their_names() -> None:
    obs = {
        "robot": {"hand": np.full((4, 2), 4.0), "arm": np.full((4, 3), 3.0)},
        "cube": np.arange(4),
        "b": np.ones((4, 1, 2)),
    }
    found = read_arrays(obs, np.zeros((3, 1)))
    assert found.sizes == {"b": 2, "cube": 1, "robot/arm": 3, "robot/hand": 2}
    assert found.observation[2].tolist() == [1, 1, 2, 3, 3, 3, 4, 4]
    assert found.entities(["cube=cube", "hand=robot/hand:1"]) == {"cube": [2], "hand": [7]}
    assert read_arrays(obs, np.zeros((3, 1)), ignore=["b", "robot/arm"]).sizes == {"cube": 1, "robot/hand": 2}


def test_padded_parts_may_be_single_numbers_and_matrices_are_not_padded_episodes() -> None:
    padded = {"clock": np.arange(6.0).reshape(2, 3), "place": np.zeros((2, 3, 2))}
    found = read_arrays(padded, {"push": np.ones((2, 2, 1)), "turn": np.zeros((2, 2))})
    assert (found.length.tolist(), found.sizes) == ([2, 2], {"clock": 1, "place": 2})
    assert found.observation[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert found.action.tolist() == [[1, 0]] * 4
    matrix, action = np.arange(24.0).reshape(4, 2, 3), np.zeros((4, 2))  # one row a step, as many numbers in an action
    for told in ({"terminals": [0, 1, 0, 1]}, {"length": [2, 2]}, {"next_observation": matrix + 100}):
        assert read_arrays(matrix, action, **told).sizes == {"": 6}
    with pytest.raises(ValueError, match="terminals"):
        read_arrays(np.arange(24.0).reshape(4, 6), action)


def test_flags_tell_where_last_states_stand_among_the_others() -> None:
    observations, actions = some_episodes()
    ended = np.concatenate([np.arange(n) == n - 1 for n in LENGTHS])
    same(read_arrays(np.concatenate(observations), np.concatenate(actions), terminals=ended), observations, actions)


def test_texts_and_tuples_may_be_ignored() -> None:
    obs = {"mission": np.array(["go"] * 4), "pair": (STATES, STATES), "x": STATES}
    assert read_arrays(obs, ACTS, ignore=["mission", "pair"]).sizes == {"x": 2}
    with pytest.raises(TypeError, match=r"'mission' .*<U2.*--ignore mission"):
        read_arrays(obs, ACTS)


def test_actions_of_every_kind() -> None:
    obs = np.zeros((4, 2))
    whole = read_arrays(obs, np.array([5, 7, 6]), action_space=spaces.Discrete(3, start=5))
    assert whole.action.tolist() == [0, 2, 1]
    assert whole.action_space == spaces.Discrete(3)
    for given_actions in (np.array([[1], [0], [1]]), np.array([True, False, True])):
        found = read_arrays(obs, given_actions)
        assert (found.action.tolist(), found.action.dtype.kind) == ([1, 0, 1], "i")
    assert read_arrays(obs, np.array([0.5, 0.1, 0.2])).action.shape == (3, 1)
    assert read_arrays(obs, np.zeros((3, 2)), action_space=spaces.Box(-np.inf, np.inf, (2,))).action_space is None
    largest = float(np.finfo(np.float32).max)  # how some environments show that there is no bound
    assert read_arrays(obs, np.zeros((3, 2)), action_space=spaces.Box(-largest, largest, (2,))).action_space is None
    both = spaces.Dict({"turn": spaces.Box(0, 2, (1,)), "push": spaces.Box(-1, 1, (1, 2))})
    found = read_arrays(obs, {"turn": np.full((3, 1), 2.0), "push": np.ones((3, 1, 2))}, action_space=both)
    assert found.action[0].tolist() == [1, 1, 2]
    assert isinstance(found.action_space, spaces.Box)
    assert found.action_space.low.tolist() == [-1, -1, 0]
    with pytest.raises(TypeError, match="MultiDiscrete"):
        read_arrays(obs, np.zeros((3, 2), int), action_space=spaces.MultiDiscrete([2, 2]))
    with pytest.raises(TypeError, match="Tuple"):
        read_arrays([obs], [(np.zeros((3, 2)), np.zeros(3))], action_space=spaces.Tuple([BOX, spaces.Discrete(2)]))


STATES, ACTS = np.zeros((4, 2)), np.zeros((3, 1))
NAN = np.where(np.arange(8).reshape(4, 2) == 5, np.nan, 0.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"observation": np.zeros((4, 64, 64, 3), np.uint8)}, r"images.*\[64, 64, 3\]"),
        ({"observation": np.zeros((4, 84 * 84), np.uint8)}, "images"),
        ({"observation": np.zeros((4, 64, 64))}, "images"),
        ({"observation": {"s": STATES, "camera": np.zeros((4, 8, 8), np.uint8)}}, "images.*--ignore camera"),
        ({"observation": NAN}, "NaN.* 1 state.*episode 0, step 2, column 1;"),
        ({"observation": {"a": STATES, "b": NAN}}, "step 2, column 1 of 'b'"),
        ({"action": np.array([[0.0], [np.inf], [0.0]])}, "infinity.* action.* episode 0, step 1"),
        ({"observation": np.zeros((3, 2))}, "terminals, timeouts, length or next_observation"),
        ({"observation": np.zeros((7, 2))}, "7 observations and 3 actions in 1 "),
        ({"length": [1, 1]}, "length .* 2; .* 3"),
        ({"observation": np.zeros((3, 2)), "length": [1, 1]}, "length .* 2; .* 3"),
        ({"observation": np.zeros((2, 2)), "terminals": [0, 0, 1]}, "2 observations and 3 actions"),
        ({"observation": np.zeros((3, 2)), "terminals": [0, 1]}, r"shape \[2\]; expected \[3\]"),
        ({"observation": np.zeros((3, 2)), "next_observation": np.zeros((3, 3))}, r"\[3, 3\]; expected \[3, 2\]"),
        ({"observation": np.array(["a", "b", "c", "d"])}, "observation .*<U1"),
        ({"observation": {"a": STATES, "b": (STATES,)}}, "'b' .*tuple"),
        ({"observation": {"a": STATES, "b": np.zeros((5, 1))}}, r"observation .*4.*5"),
        ({"observation": {"a": STATES}, "ignore": ["b"]}, "ignore .*b, .* a"),
        ({"observation": {"a": STATES}, "ignore": ["a"]}, "ignore"),
        ({"observation": np.zeros((1, 2)), "action": np.zeros((0, 1))}, "1 observations and 0 actions"),
        ({"observation": [np.zeros((1, 2))], "action": [np.zeros((0, 1))]}, "no steps"),
        ({"observation": [STATES], "action": [np.zeros((4, 1))]}, "4 observations and 4 actions"),
        ({"observation": np.zeros((2, 4, 2)), "action": np.zeros((2, 3, 1)), "length": [2, 4]}, "length .* 4.* 3"),
        ({"observation": np.where(np.isnan(NAN), 1e39, 0.0)}, "too large .* 1 state.*step 2"),
        ({"action": np.array([[0.0], [np.inf], [0.0]], np.float16)}, "infinity.* episode 0, step 1"),
        ({"terminals": [0.0, np.nan, 1.0]}, "terminals .*nan in row 1"),
        ({"terminals": np.array(["False", "False", "True"])}, "terminals .*'False' in row 0"),
        ({"timeouts": [False, None, True]}, "timeouts .*None in row 1"),
        ({"sampled": [1, 0, 2]}, "sampled .*2 in row 2"),
        (
            {"observation": np.zeros((2, 4, 2)), "action": np.zeros((2, 3, 1)), "terminals": [[0, 0, 1], [0, -1, 0]]},
            "terminals .*-1 in row 1, 1",
        ),
        ({"sampled": [True]}, r"sampled .*\[1\].*\[3\]"),
        ({"length": [3, 0]}, r"length is \[3, 0\]"),
        ({"length": [np.nan]}, r"length is \[nan\]"),
        ({"action": np.array([0, 10**9, 1])}, "action .*0 to 1000000000"),
        ({"action": np.array([0, -1, 1])}, "action .*-1 to 1"),
        ({"action": np.zeros((3, 2), int)}, "action .* 2 columns"),
        ({"action": np.array(5)}, "action"),
        ({"terminals": [0, 1, 0]}, "4 observations and 3 actions in 2 "),  # what followed row 1 is not known
        ({"ignore": ["a"]}, "ignore .*a"),
        ({"observation": [STATES], "action": [ACTS], "sampled": [True]}, "list of episodes"),
        ({"observation": [STATES], "action": [ACTS, ACTS]}, "1 episodes .* 2"),
    ],
)
def test_what_cannot_be_read_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message) as raised:
        read_arrays(**{"observation": STATES, "action": ACTS} | arguments)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("states", "acts"), [((2, 7, 2), (2, 5, 2)), ((3, 6, 2), (2, 5, 2))])
def test_padded_episodes_that_do_not_fit_are_told_with_their_shapes(states: tuple[int, ...], acts: Any) -> None:
    with pytest.raises(
        ValueError, match=rf"observation has shape {re.escape(str([*states]))} and action \[2, 5, 2\].*padded"
    ):
        read_arrays(np.zeros(states), np.zeros(acts), length=[4, 5])


@pytest.mark.parametrize(("columns", "numbers", "word"), [(0, 2, "observation"), (3, 0, "action")])
def test_arrays_without_numbers_are_told(columns: int, numbers: int, word: str) -> None:
    with pytest.raises(ValueError, match=f"{word} has shape"):
        read_arrays(np.zeros((6, columns)), np.zeros((5, numbers)), length=[5])
