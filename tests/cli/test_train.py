"""The words of `butfor train` that are about entities and rivals."""

import dataclasses
from typing import Any

import pytest

import butfor.training.loop
from butfor.cli.train import train_command
from butfor.training.settings import Config, preset


class Asked(Exception):
    """Ends the command where the training would begin."""


def asked(monkeypatch: pytest.MonkeyPatch, command: str) -> Config:
    """The settings that a command would train with."""

    def stop(config: Config, *rest: Any, **named: Any) -> None:
        raise Asked(config)

    monkeypatch.setattr(butfor.training.loop, "train", stop)
    with pytest.raises(Asked) as caught:
        train_command(command.split(), "")
    config: Config = caught.value.args[0]
    return config


def test_entities_are_named_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    config = asked(monkeypatch, "push --entities cube=3:6 hand=0:3 --combine max --influence priority bonus active")
    expected = dataclasses.replace(
        preset("push"), entities=("cube=3:6", "hand=0:3"), combine="max", use=("priority", "bonus", "active")
    )
    assert config == expected


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("slide --curiosity vime --model.network.width 12", "--model.network.width: vime has no influence model"),
        (
            "slide --preset disagreement --model.batch-size 12 --model.scoring.actions 5",
            r"--model.scoring.actions, --model.batch-size: disagreement .* are --ensemble\.\*",
        ),
    ],
)
def test_settings_that_a_rival_ignores_are_refused(command: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        train_command(command.split(), "")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("slide --influence priority --influence bonus", "--influence is given 2 times; give it once, with all its"),
        ("slide --influence bonus --entities a=0 --entities=b=2", "--entities is given 2 times"),
        ("slide --model.batch-size 8 --model.batch_size 9", "--model.batch-size is given 2 times"),
        ("slide --priority per --priority.kind ebp", "--priority.kind is given 2 times"),
        ("--resume here --resume there", "--resume is given 2 times"),
    ],
)
def test_an_option_that_is_given_twice_is_refused(command: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        train_command(command.split(), "")


def test_settings_that_a_rival_shares_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    command = "slide --curiosity vime --model.every 7 --model.schedule 50 7 --model.network.target-scale 3"
    model = asked(monkeypatch, command).model
    assert (model.every, model.schedule, model.network.target_scale) == (7, ((50, 7),), 3.0)
