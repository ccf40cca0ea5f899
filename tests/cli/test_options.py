"""Options that several commands share."""

import pytest
import torch

from butfor.cli.options import choose_device


def test_auto_takes_a_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [choose_device(name) for name in ("auto", "cpu", "cuda")] == ["cuda", "cpu", "cuda"]
