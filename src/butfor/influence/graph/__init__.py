"""Influence with a source, a target and a horizon: who moves whom, and for how long.

`edges.py` defines influence between entities and computes it from any model; read it first. `pairs.py` is the model
made for it, of entities that touch each other, and `pair_fitting.py` fits it. `horizon.py` rolls that model out over
several steps. `methods.py` are the methods of `Influence` that use them.
"""
