"""`butfor collect`: play episodes into a file, with labels."""

import re
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import tyro

from butfor.cli.console import live_progress, print_next
from butfor.cli.options import Env, File, ImportModule, Seed
from butfor.runs.modules import module_imports
from butfor.runs.reading import find_run


def collect(
    env: Env,
    /,
    policy: str = "random",
    episodes: int = 1000,
    labels: str = "",
    seed: int = 0,
    agent_seed: Seed = None,
    out: File = None,
    minari: Annotated[str | None, tyro.conf.arg(metavar="ID", help_behavior_hint="(default: none)")] = None,
    import_module: ImportModule = False,
) -> None:
    """Play episodes into a file, with labels of the states in which the action has influence.

    The file is saved every 500 episodes. The same command resumes an interrupted collection.

    Args:
        env: slide, push, pick-and-place, fetch-slide, rot-table, pucks, push-two, stack-two, or the id of any
            goal-conditioned Gymnasium environment (random actions, no labels)
        policy: random (uniform actions), expert (scripted), noisy-expert (scripted, with noise and a fifth of random
            actions), or a training run (folder, the beginning of its name in runs/, or latest)
        episodes: number of episodes
        labels: any of exact, heuristic, contact, separated by commas; with --minari, exact if the environment has it
        seed: seed of the initial states and of the policy
        agent_seed: which seed of a training run acts
        out: episode file (default: data/ENV-POLICY.npz)
        minari: id of a new local Minari data set, such as mine/push-v0, to which the episodes are written, too, with
            the labels in infos
    """
    from butfor.detection.collect import POLICIES, CollectConfig, collect_file
    from butfor.envs import facts_of, short_name

    if policy not in POLICIES:
        with suppress(FileNotFoundError):  # CollectConfig reports an unknown policy
            policy = str(find_run(policy))
    if minari is not None:
        from butfor.datasets.export import check_minari_id, export_minari

        check_minari_id(minari)
    facts = facts_of(env)
    implied = minari is not None and not labels and facts is not None and "exact" in facts.labels
    wanted = ("exact",) if implied else tuple(filter(None, re.split("[ ,]+", labels)))
    config = CollectConfig(env, policy, episodes, wanted, seed, agent_seed)
    path = out or Path("data") / f"{short_name(env).replace('/', '-')}-{Path(policy).name}.npz"
    typed = policy in POLICIES  # else the environment is the one that a run names
    with live_progress() as progress, module_imports(typed or import_module):
        data = collect_file(config, path, lambda done: progress("episodes", done, episodes, policy))
    shares = ", ".join(f"{name} {value[data.valid].mean():.1%}" for name, value in data.labels().items())
    print(f"{len(data)} episodes, {int(data.length.sum()):,} states" + (f": {shares}" if shares else ""))
    print(f"Episodes: {path}")
    if minari is not None:
        with module_imports(typed or import_module):
            print(f"Minari data set: {export_minari(data, minari, env, Path(policy).name)}")
    score = f"butfor score {path} --out scores.npz --entities NAME=COLUMNS"
    print_next(f"butfor labels {path}" if len(data.labels()) > 1 else score)
