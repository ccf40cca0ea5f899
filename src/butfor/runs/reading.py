"""Reads the JSON files of run folders, also those of earlier versions; needs no torch."""

from typing import Any

# Fields that had another name in files of schema 1.
RENAMED = {"world": "env", "worlds": "num_envs", "agent_worlds": "agent_envs"}


def with_new_names(held: Any) -> Any:
    """Return the content of a config.json or summary.json with the fields' present names."""
    if not isinstance(held, dict):
        return held
    renamed = {RENAMED.get(name, name): value for name, value in held.items()}
    if isinstance(held.get("config"), dict):
        renamed["config"] = with_new_names(held["config"])
    return renamed
