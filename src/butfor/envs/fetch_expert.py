"""placeholder"""
from typing import Any
def scripted_action(*a: Any, **k: Any) -> Any:
    raise NotImplementedError
