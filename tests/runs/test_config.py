"""Configs come back from JSON as they were, and labels say how they differ from the defaults."""

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, Literal, Optional

import pytest
from support.configs import Inner, Outer

from butfor.detection.settings import DetectionConfig, detection_preset
from butfor.runs.config import check_finite, config_from, differences, plain
from butfor.runs.folder import run_label


@dataclass(frozen=True)
class Fields:
    """Every type that a config's field may have."""

    needed: int
    rate: float = 0.5
    flag: bool = True
    name: str = "a"
    choice: Literal["mean", "clip", 3] = "mean"
    limit: float | None = None
    old_style: Optional[int] = 4  # noqa: UP045
    sizes: tuple[int, ...] = (1, 2, 3)
    pairs: tuple[tuple[int, int], ...] = ()
    betas: tuple[float, float] = (0.9, 0.999)
    mixed: tuple[str, Inner | None] = ("x", None)
    inner: Inner = field(default_factory=Inner)
    extra: Inner | None = None
    several: tuple[Inner, ...] = ()
    either: int | Literal["auto"] | None = "auto"
    bounds: "tuple[float, ...] | None" = None


CONFIGS: list[Any] = [
    detection_preset("slide"),
    detection_preset("slide", "demo"),
    detection_preset("pick-and-place"),
    detection_preset("pick-and-place", "reduced"),
    DetectionConfig(seeds=1),
    Outer(extra=Inner(betas=(0.0, 1.0)), form="x"),
    Fields(1),
    Fields(
        needed=-2, rate=float("inf"), flag=False, name="ä", choice=3, limit=1e-300, old_style=None, sizes=(),
        pairs=((1, 2), (3, 4)), betas=(0.0, 1.0), mixed=("y", Inner(width=2)), inner=Inner(width=3),
        extra=Inner(width=4), several=(Inner(), Inner(width=5)), either=7, bounds=(1.0,),
    ),
    Fields(1, limit=0.0, either=None, bounds=(), extra=Inner()),
    Fields(1, rate=2, betas=(0, 1), limit=3, inner=Inner(betas=(0, 1))),  # whole numbers stand for floats
]  # fmt: skip


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_config_from_is_the_inverse_of_plain(config: Any) -> None:
    again = config_from(type(config), plain(config))
    assert again == config
    assert plain(again) == plain(config)
    assert hash(again) == hash(config)  # tuples, not lists, at any depth


def test_whole_numbers_become_floats_where_the_field_is_one() -> None:
    again = config_from(Fields, {"needed": 1, "rate": 2, "limit": 3, "betas": [0, 1], "bounds": [4]})
    floats = [again.rate, again.limit, *again.betas, *(again.bounds or ())]
    assert floats == [2, 3, 0, 1, 4]
    assert {type(number) for number in floats} == {float}
    assert type(again.needed) is int


def test_missing_fields_take_the_defaults_of_their_own_place() -> None:
    assert config_from(Fields, {"needed": 1}) == Fields(1)
    assert config_from(Outer, {}) == Outer()
    assert config_from(Outer, {"model": {}}).model == Inner()  # given, if only as {}: not Outer's own default
    assert config_from(Outer, {"extra": {"width": 3}}).extra == Inner(width=3)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({}, "The config .*Fields.* 'needed'"),
        ({"needed": 1, "ned": 2}, "ned .*Fields.* needed, rate, "),
        ({"needed": 1, "inner": {"wdth": 2}}, r"inner\.wdth .*Inner.* width, betas"),
        ({"needed": 1, "extra": {"wdth": 2}}, r"extra\.wdth .*Inner"),
        ({"needed": "1"}, "needed .*int.* '1'"),
        ({"needed": 1.0}, r"needed .*int.* 1\.0"),
        ({"needed": True}, "needed .*int.* True"),
        ({"needed": None}, "needed .*int.* None"),
        ({"needed": 1, "rate": "fast"}, "rate .*float.* 'fast'"),
        ({"needed": 1, "rate": True}, "rate .*float.* True"),
        ({"needed": 1, "rate": None}, "rate .*float.* None"),
        ({"needed": 1, "flag": 1}, "flag .*bool.* 1"),
        ({"needed": 1, "name": 5}, "name .*str.* 5"),
        ({"needed": 1, "choice": "max"}, r"choice .*Literal\['mean', 'clip', 3\].* 'max'"),
        ({"needed": 1, "choice": 3.0}, r"choice .*Literal\[.*\].* 3\.0"),
        ({"needed": 1, "choice": []}, r"choice .*Literal\[.*\].* \[\]"),
        ({"needed": 1, "limit": "x"}, "limit .*float.* 'x'"),
        ({"needed": 1, "old_style": 1.5}, r"old_style .*int.* 1\.5"),
        ({"needed": 1, "sizes": 3}, r"sizes .*tuple\[int, \.\.\.\].* 3"),
        ({"needed": 1, "sizes": "123"}, "sizes .*tuple"),
        ({"needed": 1, "sizes": [1, "2"]}, r"sizes\[1\] .*int.* '2'"),
        ({"needed": 1, "pairs": [[1, 2], [3]]}, r"pairs\[1\] .*tuple\[int, int\].* \[3\]"),
        ({"needed": 1, "pairs": [[1, 2], [3, None]]}, r"pairs\[1\]\[1\] .*int.* None"),
        ({"needed": 1, "betas": [0.9]}, r"betas .*tuple\[float, float\].* \[0\.9\]"),
        ({"needed": 1, "betas": []}, "betas .*tuple"),
        ({"needed": 1, "mixed": ["y", {"width": "2"}]}, r"mixed\[1\]\.width .*int.* '2'"),
        ({"needed": 1, "inner": None}, "inner .*Inner.* None"),
        ({"needed": 1, "inner": [1]}, r"inner .*Inner.* \[1\]"),
        ({"needed": 1, "several": [{}, {"betas": [1, "x"]}]}, r"several\[1\]\.betas\[1\] .*float.* 'x'"),
        ({"needed": 1, "either": "off"}, r"either .*int.*'auto'.* 'off'"),
        ([], r"The config .*Fields.* \[\]"),
        (None, "The config .*Fields.* None"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_field_named(data: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}"):
        config_from(Fields, data)


def test_inconsistent_values_are_refused_by_the_config_itself() -> None:
    with pytest.raises(ValueError, match=r"seeds .* 0"):
        config_from(DetectionConfig, {"seeds": 0})


def test_one_of_several_dataclasses_is_refused_not_guessed() -> None:
    @dataclass(frozen=True)
    class Ambiguous:
        part: Inner | Outer = field(default_factory=Inner)

    with pytest.raises(ValueError, match=r"^part .*Inner \| .*Outer"):
        config_from(Ambiguous, plain(Ambiguous()))


@pytest.mark.parametrize(
    ("config", "label"),
    [
        (Outer(), "detection-slide"),
        (Outer(env="push"), "detection-push"),
        (Outer(seeds=2, form="mean"), "detection-slide-seeds=2-form=mean"),
        (Outer(model=Inner(width=64)), "detection-slide"),
        (Outer(model=Inner()), "detection-slide-model.width=128"),
        (Outer(fitting=Inner(width=64)), "detection-slide-fitting.width=64"),
        (Outer(fitting=Inner(betas=(0.0, 0.5))), "detection-slide-fitting.betas=(0.0, 0.5)"),
        (Inner(), "detection"),
        (Inner(width=1), "detection-width=1"),
    ],
)
def test_labels_say_how_a_config_differs_from_the_defaults(config: Any, label: str) -> None:
    assert run_label("detection", config) == label


def test_different_configs_have_different_labels() -> None:
    configs = [
        Outer(),
        Outer(seeds=1),
        Outer(model=Inner()),
        Outer(model=Inner(width=1)),
        Outer(fitting=Inner(width=1)),
        Outer(extra=Inner()),  # None by default: present with its defaults is a difference, too
        Outer(extra=Inner(width=1)),
    ]
    labels = [run_label("detection", config) for config in configs]
    assert len(set(labels)) == len(configs), labels


def test_differences_name_nested_fields_with_dots() -> None:
    config = Outer(seeds=2, model=Inner(width=1), extra=Inner(width=3))
    assert differences(config) == [("seeds", 2), ("model.width", 1), ("extra", "on"), ("extra.width", 3)]


def test_plain_is_what_json_reads_back() -> None:
    assert plain(Outer()) == json.loads(json.dumps(dataclasses.asdict(Outer())))
    assert plain(Inner())["betas"] == [0.9, 0.999]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_refused_by_name(value: float) -> None:
    check_finite(Outer())
    with pytest.raises(ValueError, match=r"fitting\.betas .*got -?(nan|inf)"):
        check_finite(Outer(fitting=Inner(betas=(0.9, value))))
