"""Scripts that several simulations share: push an object along a line, or pick it up, with a hand moved in x, y, z.

An action of 1 moves the target of the hand by 0.05 m, as in the Fetch and the Panda environments.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
GAIN = 20.0
NEAR = 0.015


def push(hand: Floats, thing: Floats, target: Floats, behind: float, clear: float, speed: float) -> Floats:
    """Go over the object to the far side from the target, down, and push -> move [3] within [-1, 1].

    Args:
        hand: position [3] of the hand.
        thing: position [3] of the object.
        target: where to push it, x and y [2].
        behind: distance from the object's centre at which the hand goes down.
        clear: height over the object's centre at which the hand passes over it.
        speed: of the push, at most 1.
    """
    pusher = hand - thing
    line = target - thing[:2]
    direction = line / max(float(np.linalg.norm(line)), 1e-9)
    along = float(pusher[:2] @ direction)
    aside = pusher[:2] - along * direction
    way = -behind * direction - pusher[:2]
    if along < -behind / 2 and np.linalg.norm(aside) < NEAR and abs(pusher[2]) < 0.02:
        move = np.append(speed * direction - GAIN * aside, -GAIN * pusher[2])
    elif np.linalg.norm(way) < NEAR:
        move = np.append(GAIN * way, -GAIN * pusher[2])
    elif pusher[2] > clear - 0.02:
        move = np.append(GAIN * way, GAIN * (clear - pusher[2]))
    else:  # straight up first: something may be in the way
        move = np.array([0.0, 0.0, GAIN * (clear - pusher[2])])
    return np.asarray(np.clip(move, -1, 1))


def pick(hand: Floats, thing: Floats, target: Floats, opening: float, size: float) -> Floats:
    """Hover over the object, go down with open fingers, close them, carry the object to the target -> action [4].

    Args:
        hand: position [3] between the fingers.
        thing: position [3] of the object.
        target: where to carry it [3].
        opening: distance between the fingers.
        size: width of the object.
    """
    way = thing - hand
    over = np.linalg.norm(way[:2]) < NEAR
    around = over and abs(way[2]) < 0.015
    if around and opening < size + 0.005:
        move = target - hand
    elif over:
        move = way
    else:
        move = way + np.array([0.0, 0.0, 0.08])
    return np.asarray(np.clip(np.append(GAIN * move, -1.0 if around else 1.0), -1, 1))
