"""Influence in other people's training loops: Gymnasium wrappers, and classes for Stable-Baselines3.

Read `wrappers` first. `sb3` needs the extra `sb3`, so it is not imported here.
"""

from butfor.integrations.wrappers import InfluenceWrapper, VectorInfluenceWrapper

__all__ = ["InfluenceWrapper", "VectorInfluenceWrapper"]
