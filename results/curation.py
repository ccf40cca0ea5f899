"""Judges `butfor curate`: behaviour cloning on the kept half of data of mixed quality.

python results/curation.py OUT.json FAILURE [SEEDS]

For each seed, a quarter of the episodes of FetchPickAndPlace each is by the scripted expert, by the expert with noise
and random actions, by an agent that hardly moves, and by an expert that fails: FAILURE is `misses` (it closes the
gripper beside the object) or `wrong-goal` (it carries the object to the goal of another episode). The same network is
cloned from the half that each rule keeps, from all, and from the expert's and noisy expert's episodes alone, and
evaluated in 50 new episodes. OUT.json is extended by the seeds that it does not have; the table is printed.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from butfor.analysis.statistics import difference, mean_interval
from butfor.datasets.curate import CurateOptions, choose_segments
from butfor.datasets.formats import Dataset, Segment, open_dataset
from butfor.datasets.score import Options, fit_recording, score_recording
from butfor.envs import make_vector_env
from butfor.envs.experts import scripted_action
from butfor.envs.facts import BUILT_IN
from butfor.models.networks import MLP, make_generators
from butfor.rollouts.episodes import Episodes, concatenate
from butfor.rollouts.play import Stream, collect, episode_seed, play
from butfor.runs.files import read_json, write_json
from butfor.runs.folder import versions

ENV = "pick-and-place"
KINDS = ("expert", "noisy", "idle", "failing")
EPISODES_A_KIND = 50
KEEP = 0.5
UPDATES = 2500
BATCH = 256
WIDTH = 256
TESTED = 50  # episodes
BESIDE = 0.1  # metres, in x and y
RULES: dict[str, CurateOptions | None] = {
    "influence": CurateOptions(KEEP),
    "influence, frames": CurateOptions(KEEP, "frames"),
    "motion": CurateOptions(KEEP, rank="motion"),
    "action": CurateOptions(KEEP, rank="action"),
    "random": CurateOptions(KEEP, rank="random"),
    "all": None,
    "expert and noisy": None,
}


def main(out: Path, failure: str, seeds: int) -> None:
    """Judge the seeds that are missing, and print the table."""
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = read_json(out)["rows"] if out.exists() else []
    for seed in range(seeds):
        if seed not in [row["seed"] for row in rows]:
            rows.append(judge(seed, failure))
            write_json(
                out,
                {"schema": 1, "settings": settings() | {"failure": failure}, "versions": versions("cpu"), "rows": rows},
            )
            print(f"seed {seed}: {rows[-1]['success']}", file=sys.stderr, flush=True)
    success = {rule: np.array([row["success"][rule] for row in rows]) for rule in RULES}
    shares = {rule: np.mean([[row["kept"][rule][kind] for kind in KINDS] for row in rows], 0) for rule in RULES}
    print(f"| kept | success | 95 % | above random | {' | '.join(KINDS)} |\n|---|---|---|---|{'---|' * len(KINDS)}")
    for rule in RULES:
        low, high = mean_interval(success[rule])
        more = difference(success[rule], success["random"])
        cells = " | ".join(f"{share:.0%}" for share in shares[rule])
        print(
            f"| {rule} | {success[rule].mean():.3f} | {low:.3f} to {high:.3f} | {more.value:+.3f} "
            f"({more.low:+.3f} to {more.high:+.3f}) | {cells} |"
        )


def settings() -> dict[str, Any]:
    """What all seeds share."""
    return {
        "env": ENV, "episodes_a_kind": EPISODES_A_KIND, "keep": KEEP, "updates": UPDATES, "batch": BATCH,
        "width": WIDTH, "tested": TESTED,
    }  # fmt: skip


def judge(seed: int, failure: str) -> dict[str, Any]:
    """Success and kept shares of each rule."""
    began = time.monotonic()
    episodes = mixed_episodes(seed, failure)
    with tempfile.TemporaryDirectory() as folder:
        episodes.save(Path(folder) / "mixed.npz")
        chosen = choose(open_dataset(Path(folder) / "mixed.npz"), seed)
    kept: dict[str, dict[str, float]] = {}
    for rule, segments in chosen.items():
        rows = np.zeros(len(KINDS))
        for place, first, last in segments:
            rows[place // EPISODES_A_KIND] += last - first
        kept[rule] = dict(zip(KINDS, (rows / (EPISODES_A_KIND * episodes.action.shape[1])).tolist(), strict=True))
    network = clone(episodes, list(chosen.values()), seed)
    success = {rule: evaluate(network, place, seed) for place, rule in enumerate(chosen)}
    return {"seed": seed, "success": success, "kept": kept, "seconds": round(time.monotonic() - began)}


def mixed_episodes(seed: int, failure: str) -> Episodes:
    """Episodes of each kind in turn."""
    if failure not in ("misses", "wrong-goal"):
        raise ValueError(f"FAILURE is {failure!r}; expected misses or wrong-goal.")
    env = make_vector_env(ENV, EPISODES_A_KIND)
    expert = BUILT_IN[ENV].expert

    def act(obs: Any, generator: np.random.Generator, kind: str) -> Any:
        if kind == "idle":
            action = generator.normal(0, 0.05, (len(obs["observation"]), 4)).astype(np.float32)
            return action, np.zeros(len(action), bool)
        noise, share = (0.5, 0.3) if kind == "noisy" else (0.0, 0.0)
        seen = dict(obs)
        if kind == "failing" and failure == "wrong-goal":
            seen["desired_goal"] = np.roll(obs["desired_goal"], 1, 0)
        elif kind == "failing":
            seen["observation"] = obs["observation"].copy()
            seen["observation"][:, 6:8] += BESIDE  # the way from the gripper to the object
        return scripted_action(expert, seen, generator, noise, share)

    parts = []
    for place, kind in enumerate(KINDS):

        def policy(obs: Any, generator: np.random.Generator, kind: str = kind) -> Any:
            return act(obs, generator, kind)

        parts.append(collect(env, policy, EPISODES_A_KIND, seed, first=place * EPISODES_A_KIND))
    env.close()
    return concatenate(parts)


def choose(dataset: Dataset, seed: int) -> dict[str, list[Segment]]:
    """What each rule keeps."""
    recording = dataset.recording()
    entities = {"object": list(BUILT_IN[ENV].object_position)}
    influence, _, _ = fit_recording(recording, entities, Options(seed=seed))
    scores = score_recording(influence, recording)
    found = {}
    for rule, options in RULES.items():
        if options is not None:
            found[rule] = choose_segments(dataset, recording, scores, entities, options, seed)
        else:
            whole = dataset.whole()
            found[rule] = whole if rule == "all" else whole[: 2 * EPISODES_A_KIND]
    return found


def see(obs: Any, goal: Any) -> torch.Tensor:
    """What the network sees: the observation, the goal, and the way of the object to it."""
    way = goal - obs[..., list(BUILT_IN[ENV].object_position)]
    return torch.as_tensor(np.concatenate([obs, goal, way], -1), dtype=torch.float32)


def clone(episodes: Episodes, chosen: list[list[Segment]], seed: int) -> MLP:
    """Fit one network for each choice of rows [R], by absolute error of the actions."""
    obs = see(episodes.observation, episodes.desired_goal)[:, :-1]  # [E, T, D]
    action = torch.as_tensor(episodes.action)
    mean, spread = obs.mean((0, 1)), obs.std((0, 1)) + 1e-3
    obs = (obs - mean) / spread
    steps = obs.shape[1]
    rows = [torch.tensor([steps * place + row for place, a, b in part for row in range(a, b)]) for part in chosen]
    network = MLP([obs.shape[2], WIDTH, WIDTH, 4], make_generators([seed] * len(chosen)))
    network.register_buffer("mean", mean)
    network.register_buffer("spread", spread)
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(seed)
    flat, targets = obs.flatten(0, 1), action.flatten(0, 1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, UPDATES)
    for _ in range(UPDATES):
        drawn = torch.stack([part[torch.randint(len(part), (BATCH,), generator=generator)] for part in rows])
        loss = (network(flat[drawn]) - targets[drawn]).abs().mean((1, 2)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return network.eval()


@torch.no_grad()
def evaluate(network: Any, replica: int, seed: int) -> float:
    """The success of one of the networks in new episodes."""
    env = make_vector_env(ENV, TESTED)
    replicas = len(network.layers[0].weight)

    def act(group: int, time: int, obs: Any) -> Any:
        rows = (see(obs["observation"], obs["desired_goal"]) - network.mean) / network.spread
        action = network(rows.expand(replicas, -1, -1))[replica].clamp(-1, 1).numpy()
        return action, np.zeros(len(action), bool)

    seeds = [episode_seed(seed, Stream.EVALUATE_RUN, number) for number in range(TESTED)]
    success = play([env], act, seeds).success
    env.close()
    return float(success.mean())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 10)
