"""The pages of data files: scores (`butfor score`), what is kept (`butfor curate`), labels (`butfor labels`)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from butfor.detection.labels import compare_labels, find_disagreements
from butfor.envs import facts_of, make_vector_env
from butfor.envs.facts import named
from butfor.reporting import charts
from butfor.reporting.charts import Array, Axis, Row
from butfor.reporting.page import data_address, render_page, write_page
from butfor.reporting.player import embed
from butfor.reporting.plotly_renderer import draw, plain
from butfor.rollouts.episodes import Episodes
from butfor.rollouts.play import Stream, episode_seed, play_again
from butfor.scenes import Scene

if TYPE_CHECKING:
    from butfor.influence.views import Fan

MOST_STRIPS = 12  # edges that are drawn over time
SHOWN = 3  # episodes with the most and with the least influence
THRESHOLDS = 80  # that the reader may choose
QUANTILE_NAMES = {"0.05": "5 %", "0.25": "25 %", "0.5": "median", "0.75": "75 %", "0.95": "95 %"}
PICTURES = 12
PIXELS = 720  # size of the rendering
AROUND_GRIPPER = (slice(240, 600), slice(200, 560))  # the part of it that is shown


# Scores of a data set


def render_scores(
    summary: Mapping[str, Any],
    scores: Mapping[str, Array],
    length: Array,
    fans: "Mapping[str, Sequence[Fan]] | None" = None,
    scene: Scene | None = None,
    edges: Mapping[tuple[str, str], Array] | None = None,
) -> str:
    """The page as text.

    Args:
        summary: what `butfor score` writes.
        scores: CAI [S] of every state, by entity.
        length: of every episode [E].
        fans: by entity, outcomes of other actions in the state with the least and in that with the most influence.
        scene: episodes for the player; None: the page has none.
        edges: influence [S] of every state by source and target, if it was computed.
    """
    edges = edges or {}
    figures: dict[str, Any] = {}
    rows = []
    for place, (name, score) in enumerate(scores.items()):
        figures[f"spread-{place}"] = draw(charts.spread_chart(score, summary["threshold"]))
        shown = {}
        for kind, chosen in choose_episodes(score, length).items():
            figures[f"{kind}-{place}"] = draw_episodes(score, length, chosen, summary["threshold"])
            shown[kind] = [f"episode {number}" for number in chosen]
        entity: Row = summary["entities"][name]
        quantiles = [(QUANTILE_NAMES.get(key, key), value) for key, value in entity["quantiles"].items()]
        drawn = draw_fans((fans or {}).get(name, ()), f"fan-{place}", figures)
        rows.append({"name": name, "place": place, "shown": shown, "fans": drawn} | entity | {"quantiles": quantiles})
    diagnosis = []
    for place, (name, found) in enumerate(summary["diagnosis"].items()):
        levels, realised = (np.asarray(found["reliability"][key]) for key in ("levels", "realised"))
        gain = [np.asarray(found["gain_by_score"][key]) for key in ("score", "gain", "error")]
        figures[f"reliability-{place}"] = draw(charts.reliability_chart([("", levels, realised)]))
        figures[f"gain-{place}"] = draw(charts.gain_chart(*gain))
        diagnosis.append(found | {"name": name, "reliability": f"reliability-{place}", "gain": f"gain-{place}"})
    strips = draw_edges(edges, length, figures)
    source = Path(summary["source"])
    about = ("source", "out", "model", "saved_model", "seconds", "butfor")
    return render_page(
        "scores.html.j2",
        {"figures": figures, "explorer": explore_thresholds([*scores.values(), *edges.values()], summary["threshold"])},
        summary=summary,
        title=source.name if source.is_absolute() or source.suffix else str(source),
        player=None if scene is None else embed(scene),
        rows=rows,
        edges=edge_rows(summary["edges"], len(rows)),
        strips=strips,
        within="in the next step" if summary["horizon"] == 1 else f"in the next {summary['horizon']} steps",
        ahead="one step" if summary["predicted_steps"] == 1 else f"{summary['predicted_steps']} steps",
        diagnosis=diagnosis,
        about={key: summary[key] for key in about if summary.get(key) is not None},
        parts={path or "the observation": size for path, size in summary["parts"].items()},
    )


def explore_thresholds(scores: Sequence[Array], threshold: float) -> dict[str, Any]:
    """Thresholds that the reader may choose, the place of the given one, and the share of states above of each."""
    top = max(float(np.quantile(score, 0.999)) for score in scores)
    values = np.union1d(np.linspace(0, max(top, 2 * threshold), THRESHOLDS), [threshold])
    shares = [[float((score > value).mean()) for value in values] for score in scores]
    return {"threshold": plain(values), "chosen": int(np.searchsorted(values, threshold)), "shares": plain(shares)}


def edge_rows(edges: Mapping[str, Row], shares: int) -> list[Row]:
    """The edges of a summary, the highest mean first; `place` is where the page finds the shares above thresholds."""
    rows = [edge | {"name": name, "place": shares + place} for place, (name, edge) in enumerate(edges.items())]
    return sorted(rows, key=lambda row: -row["mean"])


def draw_edges(edges: Mapping[tuple[str, str], Array], length: Array, figures: dict[str, Any]) -> list[Row]:
    """Draw strips over time for the edges: in the episode with the most influence between entities and a typical one.

    Of many edges, those with the highest scores in all states are drawn.
    """
    if not edges:
        return []
    first = np.cumsum(length + 1) - length - 1
    order = np.argsort(-np.add.reduceat(np.sum(list(edges.values()), 0), first) / (length + 1), kind="stable")
    highest = sorted(edges, key=lambda edge: -float(edges[edge].max()))[:MOST_STRIPS]
    names = [edge for edge in edges if edge in highest]
    top = max(float(edges[edge].max()) for edge in names)
    chosen = {"Most influence between entities": order[0], "A typical episode": order[len(order) // 2]}
    found: list[Row] = []
    for title, number in list(chosen.items())[: len(order)]:
        own = slice(first[number], first[number] + length[number] + 1)
        chart = charts.edges_chart({" → ".join(edge): edges[edge][own] for edge in names}, top)
        figures[f"edges-{len(found)}"] = draw(chart)
        found.append({"plot": f"edges-{len(found)}", "title": title, "episode": int(number), "rows": len(names)})
    return found


def draw_fans(fans: "Sequence[Fan]", name: str, figures: dict[str, Any]) -> list[Row]:
    """Draw where an entity goes under other actions, on the same scale in each state."""
    found = []
    for number, fan in enumerate(fans):
        ends = np.max([np.abs(one.outcomes - one.now).max(0) for one in fans if one.columns == fan.columns], 0)
        axes = [f"column {column}" for column in fan.columns]
        hover = [f"action {np.round(action, 2).tolist()}" for action in fan.actions]
        chart = charts.outcomes_chart(fan.now, fan.outcomes, fan.deviation, 1.1 * ends, axes, hover)
        figures[f"{name}-{number}"] = draw(chart)
        found.append({"plot": f"{name}-{number}", "score": fan.score, "actions": len(fan.actions)})
    return found


def choose_episodes(score: Array, length: Array) -> dict[str, list[int]]:
    """The episodes with the highest and with the lowest mean score, none in both: {"most": [...], "least": [...]}."""
    first = np.cumsum(length + 1) - length - 1
    order = np.argsort(-np.add.reduceat(score, first) / (length + 1), kind="stable").tolist()
    most = order[: max(1, min(SHOWN, len(order) // 2))]
    least = [number for number in order[::-1][:SHOWN] if number not in most]
    return {"most": most} | ({"least": least} if least else {})


def draw_episodes(score: Array, length: Array, chosen: list[int], threshold: float) -> dict[str, Any]:
    """The scores of some episodes over their steps."""
    first = np.cumsum(length + 1) - length - 1
    lines = {f"episode {number}": score[first[number] : first[number] + length[number] + 1] for number in chosen}
    return draw(charts.scores_chart(lines, threshold, 1.05 * max(float(score.max()), threshold)))


# What is kept of a data set


def render_curation(summary: Mapping[str, Any]) -> str:
    """The page as text, from the summary of `butfor.datasets.curate.curate_file`."""
    episodes: list[Row] = summary["episodes"]
    value = np.array([one["value"] for one in episodes])
    rows = np.array([one["rows"] for one in episodes])
    kept = rows * np.array([one["kept"] for one in episodes])
    edges = np.linspace(0, max(float(value.max()), 1e-9), 41)
    middle = (edges[1:] + edges[:-1]) / 2
    series = []
    for place, (name, weight) in enumerate((("kept rows", kept), ("dropped rows", rows - kept))):
        count = np.histogram(value, edges, weights=weight)[0]
        hover = "value %{x:.3f}<br>%{y:.0f} rows<extra></extra>"
        series.append(charts.Series(middle, count, name, width=2, hover=hover, **charts.line_look(place)))
    order = np.argsort(value, kind="stable")
    whole = {"dropped": order[::-1][kept[order[::-1]] == 0], "kept": order[kept[order] == rows[order]]}
    figures: dict[str, Any] = {"values": draw(charts.Chart(series, Axis("value (nats)"), Axis("rows")))}
    shown: dict[str, list[str]] = {}
    for kind, numbers in whole.items():
        if len(numbers):
            lines = {f"episode {number}": np.asarray(episodes[number]["scores"]) for number in numbers[:SHOWN]}
            figures[kind] = draw(charts.scores_chart(lines, summary["threshold"]))
            shown[kind] = list(lines)
    return render_page(
        "curation.html.j2", {"figures": figures}, summary=summary, shown=shown, kept_whole=int((kept == rows).sum())
    )


# Agreement of labels


def missing_pictures(episodes: Episodes) -> str:
    """Why the states of these episodes cannot be drawn, as a sentence; empty if they can."""
    env_name = episodes.metadata.get("config", {}).get("env", "an environment that the file does not name")
    facts = facts_of(env_name)
    if facts is not None and facts.drawing == "robot":
        return ""
    return f"States of {env_name} are not drawn, only those of {', '.join(named(drawing='robot'))}."


def draw_states(episodes: Episodes, states: list[tuple[int, int]]) -> list[NDArray[np.uint8]]:
    """Render states (episode, time) by replaying their episodes."""
    config = episodes.metadata["config"]
    if episodes.reset_seed is None:  # files of earlier versions have none
        seeds = [episode_seed(config["seed"], Stream.TRAINING, number) for number in range(len(episodes))]
        episodes = replace(episodes, reset_seed=np.array(seeds))
    env: Any = make_vector_env(config["env"], len(states), render_mode="rgb_array", width=PIXELS, height=PIXELS)
    frames: dict[int, NDArray[np.uint8]] = {}

    def look(now: int) -> None:
        here = [place for place, (_, time) in enumerate(states) if time == now]
        frames.update(zip(here, env.render(here), strict=True) if here else {})

    play_again(env, episodes, [episode for episode, _ in states], look)
    env.close()
    return [frames[place][AROUND_GRIPPER] for place in range(len(states))]


def write_agreement(episodes: Episodes, file: Path | str, count: int = PICTURES) -> Path:
    """Write a page beside an episode file, with at most `count` pictures for each label besides the exact one."""
    if count < 0:
        raise ValueError(f"pictures must be at least 0; got {count}.")
    rows = compare_labels(episodes)
    lack = missing_pictures(episodes)
    others = [row["second"] for row in rows if row["first"] == "exact" and not lack]
    differing = [(other, *state) for other in others for state in find_disagreements(episodes, "exact", other, count)]
    frames = draw_states(episodes, [(episode, time) for _, episode, time in differing]) if differing else []
    facts: Any = facts_of(episodes.metadata["config"]["env"]) if differing else None
    shown = [
        {
            "image": _png(frame),
            "episode": episode,
            "time": time,
            "other": other,
            "exact": bool(episodes.label["exact"][episode, time]),
            "distance": float(facts.distance(episodes.observation[episode, time])),
        }
        for (other, episode, time), frame in zip(differing, frames, strict=True)
    ]
    values = {"rows": rows, "shown": shown, "lack": lack, "metadata": episodes.metadata, "name": Path(file).name}
    return write_page(Path(file).with_suffix(".html"), render_page("agreement.html.j2", {"figures": {}}, **values))


def _png(frame: NDArray[np.uint8]) -> str:
    """The data: address of a picture."""
    try:
        from imageio.v3 import imwrite
    except ImportError as error:
        raise ImportError("Pictures need imageio; install it with: pip install 'butfor[fetch]'.") from error
    return data_address("image/png", imwrite("<bytes>", frame, extension=".png"))
