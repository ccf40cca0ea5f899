"""The graph of a state with k entities against k times one CAI, the influence of the action on one entity.

python -m benchmarks.graph
"""

from typing import Any

from benchmarks._timing import describe, medians
from butfor.benchmarks.edges import make_problem, play_task
from butfor.influence import ContactConfig, GraphConfig, Influence
from butfor.models.dynamics import ModelConfig
from butfor.models.fitting import FitConfig

TRANSITIONS, STATES = 5_000, 300


def main() -> None:
    print(describe("cpu"))
    print("milliseconds per 1,000 states, and the cost of the graph in units of k times one CAI")
    print(
        f"{'task':<10}{'k':>3}{'graph':>8}{'pairs':>8}{'ratio':>7}{'touches':>9}{'ratio':>7}{'Gaussian':>10}{'ratio':>7}"
    )
    for task in ("pucks", "push-two", "stack-two"):
        compare(task)


def compare(task: str) -> None:
    """Time the graph, and CAI by the same model, which is that of all entities, and of one entity by the model of
    touches and by the paper's Gaussian network.

    What a fitted model costs does not depend on how long it was fitted, but on which entities are near each other.
    """
    data = play_task(task, TRANSITIONS, 0)
    problem = make_problem(task, data, data, 0)
    last = list(problem.entities)[-1]
    agent = next(iter(problem.entities.values()))[: problem.position_size]

    def fit(entities: dict[str, list[int]], model: Any, **options: Any) -> Influence:
        return Influence.fit(
            problem.obs, problem.action, problem.next_obs, entities, action_space=problem.action_space, model=model,
            fitting=FitConfig(max_epochs=1), progress=False, **options,
        )  # fmt: skip

    pairs = fit(problem.entities, GraphConfig(position_size=problem.position_size, updates=100, motion_updates=300))
    one = {last: problem.entities[last]}
    touches = fit(one, ContactConfig(updates=100, motion_updates=300), agent=agent)
    gaussian = fit(one, ModelConfig())
    obs = problem.obs[:STATES]
    rivals = {
        "graph": lambda: pairs.graph(obs),
        "pairs": lambda: pairs.score(obs),
        "touches": lambda: touches.score(obs),
        "gaussian": lambda: gaussian.score(obs),
    }
    seconds = medians(rivals, "cpu")
    count = len(problem.entities)
    print(f"{task:<10}{count:>3}{1e6 * seconds['graph'] / STATES:>8.0f}", end="")
    for name, width in (("pairs", 8), ("touches", 9), ("gaussian", 10)):
        ratio = seconds["graph"] / (count * seconds[name])
        print(f"{1e6 * seconds[name] / STATES:>{width}.0f}{ratio:>7.2f}", end="", flush=True)
    print(flush=True)


if __name__ == "__main__":
    main()
