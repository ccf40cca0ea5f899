"""Files from untrusted sources: reading any of the package's formats runs no code, and pages show contents as text.

Each attack creates a trace file when it is executed. At the end of each test an unsafe reader executes it, which shows
that the attack is real.
"""

import ast
import importlib.util
import io
import json
import os
import pickle
import re
import shutil
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from playwright.sync_api import Dialog
from results_page import write_results_page
from safetensors.torch import save_file
from support.browser import chromium
from support.detection_runs import write_full_run
from support.pages import page_data
from support.project import PACKAGE, ROOT
from support.small_detection import labelled_episodes
from support.small_training import small
from support.study_runs import write_root

from butfor import Influence, load_policy
from butfor.datasets.files import read_data, read_npz, write_minari
from butfor.detection.collect import CollectConfig, collect_file
from butfor.reporting.study_page import write_report, write_study_index, write_study_report
from butfor.rollouts.episodes import Episodes, EpisodeStream
from butfor.runs.checkpoints import latest_checkpoint
from butfor.runs.config import config_from, plain
from butfor.runs.files import load_checkpoint, load_tensors, read_json
from butfor.runs.reading import read_metrics, read_run
from butfor.training.run import resume, train
from butfor.training.settings import Config

HOSTILE = (
    "\"'><script>alert(1)</script><img src=x onerror=alert(2)></title></style></textarea><svg onload=alert(3)>"
    "</script><script>alert(4)//<!--<script>{{ 7 * 7 }}${alert(5)}\u2028&lt;b&gt;"
)
HARMLESS = "harmless"
CODE = "__import__('pathlib').Path({!r}).touch()"


class Canary:
    """Creates a file when it is unpickled, by one of the functions that attackers use."""

    def __init__(self, trace: Path, by: str = "open") -> None:
        self.trace, self.by = str(trace), by

    def __reduce__(self) -> tuple[Any, ...]:
        if self.by == "exec":
            return exec, (CODE.format(self.trace),)
        if self.by == "system":
            return os.system, (f"touch '{self.trace}'",)
        return open, (self.trace, "w")


def check_not_executed(trace: Path, unsafe_reader: Callable[[], Any]) -> None:
    """Assert that the attack was not executed so far, and that an unsafe reader executes it."""
    assert not trace.exists()
    opened = unsafe_reader()
    for value in opened if isinstance(opened, list) else [opened]:
        if hasattr(value, "close"):
            value.close()
    assert trace.exists()
    trace.unlink()


# ---------------------------------------------------------------------------------------- arrays: .npz


def episodes() -> Episodes:
    """Two episodes with labels and metadata."""
    given = labelled_episodes()
    given.metadata = {"config": {"env": "push"}}
    return given


def poisoned(path: Path, name: str, trace: Path) -> Path:
    """Replace an array of an .npz file by an array of objects."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {key: file[key] for key in file.files if key != name}
    np.savez(path, allow_pickle=True, **arrays, **{name: np.array([Canary(trace)], dtype=object)})
    return path


READERS: dict[str, Callable[[Path], Any]] = {
    "Episodes.load": Episodes.load,
    "read_npz": read_npz,
    "collect_file, resumed": lambda path: collect_file(CollectConfig("slide", episodes=3), path),
    "EpisodeStream, resumed": lambda path: EpisodeStream(path, 1),
}


@pytest.mark.parametrize("name", ["observation", "metadata", "label_exact", "schema_version", "further"])
@pytest.mark.parametrize("reader", READERS)
def test_objects_in_an_episode_file_are_not_executed(reader: str, name: str, tmp_path: Path) -> None:
    path, trace = tmp_path / "episodes.npz", tmp_path / "trace"
    episodes().save(path)
    copy = shutil.copy(poisoned(path, name, trace), tmp_path / "copy.npz")
    ignored = name == "further" and reader in ("Episodes.load", "read_npz")  # arrays that are not known are not read
    with nullcontext() if ignored else pytest.raises((ValueError, OSError), match=r"episodes\.npz"):
        READERS[reader](path)
    check_not_executed(trace, lambda: list(np.load(copy, allow_pickle=True)[name]))


@pytest.mark.parametrize("reader", READERS)
def test_a_pickle_under_the_name_of_an_episode_file_is_not_executed(reader: str, tmp_path: Path) -> None:
    path, trace = tmp_path / "episodes.npz", tmp_path / "trace"
    path.write_bytes(pickle.dumps(Canary(trace)))
    with pytest.raises((ValueError, OSError), match=r"episodes\.npz"):
        READERS[reader](path)
    check_not_executed(trace, lambda: np.load(path, allow_pickle=True))


def test_members_of_an_archive_are_written_nowhere(tmp_path: Path) -> None:
    """A member's name with `..` is the name of an array, not a path."""
    path, outside = tmp_path / "here" / "episodes.npz", tmp_path / "outside.npy"
    path.parent.mkdir()
    episodes().save(path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../outside.npy", b"no array")
    for reader in READERS.values():
        with suppress(ValueError, OSError):
            reader(path)
    assert not outside.exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["here"]


@pytest.fixture(scope="module")
def full_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A detection folder with every part."""
    return write_full_run(tmp_path_factory.mktemp("security") / "run")


ARRAYS = {"scores.npz": "cai", "data/test.npz": "observation", "scores-random.npz": "cai", "pictures/map.npz": "cai"}


@pytest.mark.parametrize("name", ARRAYS)
def test_objects_in_a_detection_folder_are_not_executed(name: str, full_run: Path, tmp_path: Path) -> None:
    run, trace = Path(shutil.copytree(full_run, tmp_path / "run")), tmp_path / "trace"
    path = poisoned(run / name, ARRAYS[name], trace)
    with pytest.raises(ValueError, match=re.escape(path.name)):
        write_report(run)
    check_not_executed(trace, lambda: list(np.load(path, allow_pickle=True)[ARRAYS[name]]))


def test_objects_in_a_heat_map_are_not_executed(tmp_path: Path) -> None:
    root, trace = write_root(tmp_path / "root"), tmp_path / "trace"
    path = root / "fast" / "heatmap.npz"
    np.savez(path, allow_pickle=True, episodes=np.arange(3), score=np.array([Canary(trace)], dtype=object))
    assert "heatmap.npz" in write_study_report(root, "try").read_text(encoding="utf-8")
    check_not_executed(trace, lambda: list(np.load(path, allow_pickle=True)["score"]))


# ---------------------------------------------------------------------------------------- weights: .safetensors


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small training run."""
    folder = tmp_path_factory.mktemp("security") / "trained"
    return train(small(use=("priority",)), folder)


LOADERS: dict[str, Callable[[Path], Any]] = {
    "Influence.load": Influence.load,
    "load_policy": load_policy,
    "load_tensors": load_tensors,
}


@pytest.mark.parametrize("how", ["pickle", "torch", "old torch"])
@pytest.mark.parametrize("loader", LOADERS)
def test_pickles_instead_of_weights_are_not_executed(loader: str, how: str, tmp_path: Path) -> None:
    path, trace = tmp_path / "model.safetensors", tmp_path / "trace"
    write_pickle(path, {"weight": Canary(trace)}, how)
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        LOADERS[loader](path)
    check_not_executed(trace, lambda: unpickle(path, how)["weight"])


def write_pickle(path: Path, value: Any, how: str) -> None:
    if how == "pickle":
        path.write_bytes(pickle.dumps(value, protocol=2))
    else:
        torch.save(value, path, _use_new_zipfile_serialization=how == "torch")


def unpickle(path: Path, how: str) -> Any:
    """Read a file the unsafe way."""
    content = path.read_bytes()
    return pickle.loads(content) if how == "pickle" else torch.load(io.BytesIO(content), weights_only=False)


def hostile_leaves(value: Any, text: str) -> Iterator[Any]:
    """The value with each of its parts replaced by this text, one at a time."""
    yield text
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        for changed in hostile_leaves(value[key], text):
            copy = value.copy()
            copy[key] = changed
            yield copy


@pytest.mark.parametrize(("file", "loader"), [("influence", "Influence.load"), ("model", "load_policy")])
def test_code_in_a_header_is_text(file: str, loader: str, trained: Path, tmp_path: Path) -> None:
    """Python in any value of a header is refused, or kept as text."""
    tensors, header = load_tensors(trained / f"{file}.safetensors")
    path, trace, tried = tmp_path / "model.safetensors", tmp_path / "trace", 0
    for changed in hostile_leaves(header, CODE.format(str(trace))):
        save_file(tensors, path, {"butfor": json.dumps(changed)})
        with suppress(ValueError, TypeError, KeyError, IndexError, AttributeError):
            LOADERS[loader](path)
        assert not trace.exists(), changed
        tried += 1
    assert tried > 20
    check_not_executed(trace, lambda: eval(CODE.format(str(trace))))


# ---------------------------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("by", ["open", "exec", "system"])
@pytest.mark.parametrize("how", ["pickle", "torch", "old torch"])
def test_code_in_a_checkpoint_is_not_executed(how: str, by: str, trained: Path, tmp_path: Path) -> None:
    """Also under a valid name with a correct digest, in a run that is resumed."""
    from butfor.runs.digests import digest_of_file

    run, trace = Path(shutil.copytree(trained, tmp_path / "run")), tmp_path / "trace"
    for path in (run / "checkpoint").iterdir():
        path.unlink()
    place = run / "checkpoint" / "unnamed"
    write_pickle(place, {"weight": Canary(trace, by)}, how)
    path = place.rename(place.with_name(f"00000009-0009-{digest_of_file(place)}.pt"))
    with pytest.raises(ValueError, match=re.escape(path.name)):
        load_checkpoint(path)
    with pytest.raises(ValueError, match=re.escape(path.name)):
        latest_checkpoint(run)
    with pytest.raises(ValueError, match=re.escape(path.name)):
        resume(run, episodes=20)
    check_not_executed(trace, lambda: unpickle(path, how)["weight"])


# ---------------------------------------------------------------------------------------- JSON


def test_code_in_a_config_is_text(tmp_path: Path) -> None:
    trace, known = tmp_path / "trace", plain(small(use=("priority", "bonus")))
    code = CODE.format(str(trace))
    for changed in hostile_leaves(known, code):
        with suppress(ValueError):  # most are refused
            assert config_from(Config, changed).env in (code, "slide")
    assert not trace.exists()


def test_a_module_that_a_run_names_is_not_imported_by_reading_it(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module of an environment `module:Name-v0` is imported to play in it, not to read a run."""
    trace = tmp_path / "trace"
    (tmp_path / "canary_env.py").write_text(CODE.format(str(trace)))
    monkeypatch.syspath_prepend(str(tmp_path))
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    record = read_json(run / "config.json")
    record["config"]["env"] = "canary_env:Canary-v0"
    (run / "config.json").write_text(json.dumps(record))
    tensors, header = load_tensors(run / "model.safetensors")
    save_file(tensors, run / "model.safetensors", {"butfor": json.dumps(header | {"env": "canary_env:Canary-v0"})})

    assert config_from(Config, read_run(run)["config"]).env == "canary_env:Canary-v0"
    assert load_policy(run).env == "canary_env:Canary-v0"
    assert read_metrics(run)
    Influence.load(run / "influence.safetensors")
    write_report(run)
    assert "canary_env" not in sys.modules
    check_not_executed(trace, lambda: __import__("canary_env"))
    monkeypatch.delitem(sys.modules, "canary_env")


# ---------------------------------------------------------------------------------------- Minari data sets


@pytest.fixture
def data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A local Minari data set, mine/cube-v0."""
    minari = pytest.importorskip("minari")
    from gymnasium.spaces import Box
    from minari.data_collector.episode_buffer import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    ends = {"terminations": np.zeros(5, bool), "truncations": np.arange(5) == 4, "rewards": np.zeros(5)}
    buffers = [EpisodeBuffer(observations=np.ones((6, 2)), actions=np.ones((5, 1)), **ends) for _ in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it asks for an author and the like
        spaces = {"observation_space": Box(-9, 9, (2,)), "action_space": Box(-1, 1, (1,))}
        minari.create_dataset_from_buffers("mine/cube-v0", buffers, **spaces)
    return tmp_path / "sets" / "mine" / "cube-v0" / "data"


@pytest.mark.parametrize("new", ["../outside-v0", "mine/../../outside-v0", "/outside-v0", "mine/./cube-v1", "~/out-v0"])
def test_a_data_set_is_not_written_outside_its_folder(new: str, data_set: Path, tmp_path: Path) -> None:
    recording = read_data("mine/cube-v0")
    scores = {"cube": np.zeros(12, np.float32)}
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=re.escape(repr(new))):
        write_minari("mine/cube-v0", new, recording, scores)
    with pytest.raises(ValueError, match=r"'\.\./cube'"):
        write_minari("mine/cube-v0", "mine/new-v0", recording, scores | {"../cube": scores["cube"]})
    assert sorted(tmp_path.rglob("*")) == before


def test_code_in_the_metadata_of_a_data_set_is_text(data_set: Path, tmp_path: Path) -> None:
    """The environment named in it is not made either."""
    trace, about = tmp_path / "trace", json.loads((data_set / "metadata.json").read_text())
    code = CODE.format(str(trace))
    about |= {"env_spec": json.dumps({"id": "x:Canary-v0", "entry_point": f"x:{code}"}), "dataset_id": code}
    for key in ("author", "code_permalink", "observation_space", "action_space", "requirements", "data_format"):
        (data_set / "metadata.json").write_text(json.dumps(about | {key: code}))
        with suppress(ValueError, ImportError):
            read_data("mine/cube-v0")
    assert not trace.exists()


# ---------------------------------------------------------------------------------------- the library's own calls

UNSAFE_MODULES = {"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "yaml", "jsonpickle"}
SAFE = {"np.load": ("allow_pickle", False), "numpy.load": ("allow_pickle", False), "torch.load": ("weights_only", True)}


def unsafe_calls(source: str) -> list[str]:
    """Calls that may execute the content of a file, and imports of modules that do."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found += [f"line {node.lineno}: import {name}" for name in names if name.split(".")[0] in UNSAFE_MODULES]
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            given = {key.arg: getattr(key.value, "value", None) for key in node.keywords}
            keyword, wanted = SAFE.get(called, ("", None))
            if called in ("eval", "exec", "__import__") or (keyword and given.get(keyword) is not wanted):
                found.append(f"line {node.lineno}: {called}")
    return found


def test_the_library_calls_nothing_that_executes_files() -> None:
    paths = [*PACKAGE.rglob("*.py"), *(ROOT / "results").glob("*.py"), *(ROOT / "examples").glob("*.py")]
    wrong = {str(path.relative_to(ROOT)): unsafe_calls(path.read_text(encoding="utf-8")) for path in paths}
    assert {path: calls for path, calls in wrong.items() if calls} == {}


def test_unsafe_calls_are_found() -> None:
    source = "import pickle\nnp.load(f)\nnp.load(f, allow_pickle=True)\ntorch.load(f, weights_only=False)\neval(x)\n"
    assert len(unsafe_calls(source)) == 5
    assert unsafe_calls("model.eval()\nnp.load(f, allow_pickle=False)\ntorch.load(f, weights_only=True)") == []


# ---------------------------------------------------------------------------------------- pages

# Values with a fixed set of choices: unknown ones are refused, not shown.
STRUCTURE = {"kind", "folder", "set", "sampling_law", "frames", "image", "file", "arm", "than", "measure"}


def spoil(value: Any, text: str, key: str = "") -> Any:
    """JSON with this text appended to every string."""
    if isinstance(value, dict):
        return {name: spoil(inner, text, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [spoil(inner, text, key) for inner in value]
    return f"{value}{text}" if isinstance(value, str) and key not in STRUCTURE else value


def spoil_detection(run: Path, text: str) -> Path:
    """Put the text into every free string of a detection folder: names of detectors, entities, arrays, settings."""
    for name in ("config.json", "versions.json", "studies.json"):
        held = spoil(read_json(run / name), text)
        if name == "config.json":
            held["config"][f"setting {text}"] = text
        (run / name).write_text(json.dumps(held))
    summary = read_json(run / "summary.json")
    labels = [table["label"] for table in (summary, *summary["others"])]
    detectors = {row["name"]: row["name"] + text for row in summary["detectors"] if row["name"] != "cai"}
    summary = spoil(summary, text)
    for label, table in zip(labels, (summary, *summary["others"]), strict=True):
        table["label"] = label
    for table in (summary, *summary["others"]):
        for row in table["detectors"]:
            row["name"] = "cai" if row["name"] == f"cai{text}" else row["name"]
    (run / "summary.json").write_text(json.dumps(summary))
    rows = read_metrics(run)
    for row in rows:
        row["detector"] = detectors.get(row["detector"], row["detector"])
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("scores.npz", "scores-random.npz"):
        with np.load(run / name, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
        with zipfile.ZipFile(run / name, "w") as archive:
            for key, array in arrays.items():
                with archive.open(f"{detectors.get(key, key)}.npy", "w") as file:
                    np.lib.format.write_array(file, array, allow_pickle=False)
    with np.load(run / "data" / "test.npz", allow_pickle=False) as file:
        arrays = {key: file[key] for key in file.files}
    metadata = {"env": text, f"key {text}": {"inner": [text]}}
    np.savez(run / "data" / "test.npz", **arrays | {"metadata": np.array(json.dumps(metadata))})
    diagnosis = read_json(run / "diagnosis.json")
    (run / "diagnosis.json").write_text(json.dumps({f"{k}{text}": spoil(v, text) for k, v in diagnosis.items()}))
    index = read_json(run / "pictures" / "index.json")
    (run / "pictures" / "index.json").write_text(json.dumps(spoil(index, text)))
    return run


def scores_page(folder: Path, text: str) -> Path:
    """The page of a scored data set with the text in the names of file, parts and entities."""
    from butfor.datasets.score import Options, score_file
    from butfor.models.dynamics import ModelConfig

    random, name = np.random.default_rng(0), re.sub("[/=]", "", text)[:90]  # longer names are refused
    path, parts = folder / f"{name[:60]}.npz", {"observation/" + name: random.normal(size=(40, 31, 2))}
    np.savez(path, allow_pickle=False, **parts, action=random.uniform(-1, 1, (40, 30, 1)), length=np.full(40, 30))
    options = Options(epochs=1, actions=2, network=ModelConfig(layers=1, width=4))
    score_file(path, folder / "scores.npz", [f"{name}=0:2"], options)
    return folder / "scores.html"


def write_pages(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Write one page of each kind, with this text in every free string of its files."""
    root = write_root(folder / "root", text)
    training = read_json(root / "fast" / "config.json")
    training["config"] |= {"env": f"env {text}", "use": [text], f"key {text}": text}
    (root / "fast" / "config.json").write_text(json.dumps(training))
    (root / "fast" / "versions.json").write_text(json.dumps({f"package {text}": text, "command": text, "device": text}))
    for name in ("metrics.jsonl", "config.json"):
        (root / "broken" / name).write_text(text)
    pages = {
        "study": write_study_report(root, "try"),
        "index": write_study_index(root),
        "training": write_report(root / "fast"),
        "detection": write_report(spoil_detection(write_full_run(folder / "detection", hostile=text), text)),
        "scores": scores_page(folder, text),
    }
    if importlib.util.find_spec("imageio"):
        from butfor.reporting import file_pages

        given = labelled_episodes()
        given.metadata = {
            "config": {"env": text, "policy": text, "seed": text, "episodes": text},
            "versions": {"commit": text, "mujoco": text},
        }
        path = folder / f"labels {re.sub('/', '', text)[:80]}.npz"
        given.save(path)
        monkeypatch.setattr(file_pages, "draw_states", lambda _, states: [np.zeros((4, 4, 3), np.uint8)] * len(states))
        pages["agreement"] = file_pages.write_agreement(Episodes.load(path), path)
    return pages


class Skeleton(HTMLParser):
    """The tags of a page with the names of their attributes, and the values that load, link or style."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.active: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        self.active += [value or "" for name, value in attrs if name in ("src", "href", "style", "id", "class")]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Path], dict[str, Path]]]:
    """Every kind of page twice: from harmless files, and from hostile ones."""
    folder = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("harmless", "hostile"):
            (folder / name).mkdir()
        yield write_pages(folder / "harmless", HARMLESS, patch), write_pages(folder / "hostile", HOSTILE, patch)


KINDS = ("study", "index", "training", "detection", "scores", "agreement")


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_text_changes_no_tag(kind: str, pages: tuple[dict[str, Path], dict[str, Path]]) -> None:
    """Tags, their attributes, and what they load or link to are the same on both pages."""
    if kind not in pages[0]:
        pytest.skip("the page needs the extra fetch")
    harmless, hostile = (paths[kind].read_text(encoding="utf-8") for paths in pages)
    expected, found = Skeleton(harmless), Skeleton(hostile)
    assert found.tags == expected.tags
    assert found.active == expected.active
    assert "<script>alert" not in hostile
    assert "alert(1)" in hostile  # it is there, as text
    assert re.search(r"default-src 'none'", hostile)


@pytest.mark.parametrize("kind", ["study", "training", "detection", "scores"])
def test_hostile_text_stays_inside_the_data_of_a_page(
    kind: str, pages: tuple[dict[str, Path], dict[str, Path]]
) -> None:
    """The JSON in a page is not cut short, and figures contain no markup."""
    data = page_data(pages[1][kind].read_text(encoding="utf-8"))
    assert set(data) == set(page_data(pages[0][kind].read_text(encoding="utf-8")))
    figures = [*data["figures"].values()]
    figures += [one["figure"] for one in [*data.get("films", []), *data.get("timeline", {}).get("episodes", [])]]
    for trace in [trace for figure in figures for trace in figure["data"]]:
        trace.pop("legendgroup", None)  # it is compared with, never drawn
    assert figures
    assert re.findall(r"<(?:script|img|svg|a)\b", json.dumps(figures)) == []


@pytest.mark.long
def test_hostile_text_does_nothing_in_a_browser(pages: tuple[dict[str, Path], dict[str, Path]]) -> None:
    wrong: list[str] = []
    fetched: set[str] = set()

    def refuse(dialog: Dialog) -> None:
        wrong.append(dialog.message)
        dialog.dismiss()

    with chromium() as browser:
        for kind, path in pages[1].items():
            view = browser.new_page()
            view.on("dialog", refuse)
            view.on("pageerror", lambda error: wrong.append(str(error)))
            view.on("request", lambda request: fetched.add(request.url))
            view.goto(path.as_uri())
            if kind not in ("index", "agreement"):
                view.wait_for_selector(".plot .main-svg")
            fetched.discard(view.url)
            view.close()
    assert wrong == []
    assert [url for url in fetched if not url.startswith("data:")] == []


def test_hostile_text_in_the_page_of_results_stays_text(tmp_path: Path) -> None:
    root = write_root(
        tmp_path / "root", f"{HOSTILE} [link](javascript:alert(6)) ![image](http://example.org/x)\n# Title"
    )
    write_results_page(root, tmp_path / "results.md")
    page = "\n".join(path.read_text(encoding="utf-8") for path in sorted(tmp_path.glob("results*.md")))
    page = re.sub(r"```sh\n[^`]*\n```", "", page)  # a block of code is shown as it is
    assert "alert(1)" in page
    assert not re.search(r"<(script|img|svg)", page)
    assert "](javascript" not in page
    assert "](http://example" not in page
    assert "\n# Title" not in page


def test_hostile_text_in_figures_for_papers_stays_text(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from xml.etree import ElementTree

    from matplotlib.figure import Figure

    from butfor.reporting.matplotlib_renderer import save_figures

    def draw() -> dict[str, Figure]:
        figure = Figure()
        figure.subplots().plot([0, 1], label=HOSTILE.replace("\u2028", ""))
        figure.axes[0].set_title(HOSTILE.replace("\u2028", ""))
        figure.axes[0].legend()
        return {"one": figure}

    svg = next(path for path in save_figures(tmp_path, draw) if path.suffix == ".svg")
    tags = {element.tag.rpartition("}")[2] for element in ElementTree.parse(svg).iter()}
    assert not tags & {"script", "img", "image", "a", "foreignObject"}
    assert "alert(1)" in svg.read_text(encoding="utf-8")


def test_a_link_in_a_data_set_is_not_followed(data_set: Path, tmp_path: Path) -> None:
    """Scores are not written to another file that an episode links to."""
    import h5py

    victim = Path(shutil.copy(data_set / "main_data.hdf5", tmp_path / "victim.hdf5"))
    before = victim.read_bytes()
    with h5py.File(data_set / "main_data.hdf5", "a") as file:
        del file["episode_0"]
        file["episode_0"] = h5py.ExternalLink(str(victim), "/episode_0")
    with pytest.raises(ValueError, match="link"):
        write_minari("mine/cube-v0", "mine/new-v0", read_data("mine/cube-v0"), {"cube": np.zeros(12, np.float32)})
    assert victim.read_bytes() == before
