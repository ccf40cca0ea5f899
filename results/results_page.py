"""Write docs/results.md from result files: which claims of the paper hold, and which do not.

The pages beside it have the long tables (results-learning.md, results-detection.md), how verdicts are decided and how
often the rules are wrong (results-rules.md), and what has not been run (results-missing.md).
"""

import shlex
from collections import Counter
from pathlib import Path

import numpy as np
from results_tables import anchor, clean, relative, section, table
from verdict_rates import COVERAGE, RATES, SEVERAL

from butfor.analysis.arms import (
    ReadArm,
    ReadStudy,
    comparisons_by_claim,
    decide_studies,
    read_study,
    study_names,
)
from butfor.analysis.claims import ENOUGH, MARGIN, RATIO, SIZE, Claim, Verdict, claim_p_value, finding_of
from butfor.analysis.rows import COMPARED, duration, seconds_of
from butfor.analysis.table_claims import RULES
from butfor.reporting.page import write_page
from butfor.runs.printing import count_words

__all__ = ["anchor", "write_results_page"]

SHORT = 3000  # episodes, for those who have less time
KINDS = {  # of claims
    "reaches": "reaches a level",
    "grows": "does something more and more",
    "faster": "is faster than another",
    "better": "is better than another",
    "on par": "is on par with another, or better",
    "similar": "is similar to another",
    "detects": "detects as well as in the paper",
    "alone": "has the only detector that is reliable",
    "times": "has a number that is a multiple of another",
    "follows": "has scores that correlate with something over training",
    "uneven": "has scores that vary more than the label",
}
PICTURES = {  # by study: files of the results, and what they show
    "combined": ("training/pick-and-place-combined.svg", "FetchPickAndPlace: the three uses, alone and together"),
    "exploration": ("training/pick-and-place-exploration.svg", "FetchPickAndPlace: one way to explore at a time"),
    "replay-pick-and-place": ("training/pick-and-place-replay.svg", "FetchPickAndPlace: what is replayed"),
    "replay-push": ("training/push.svg", "FetchPush: what is replayed"),
    "bonus-sweep": ("training/pick-and-place-bonus-sweep.svg", "FetchPickAndPlace: the weight of the bonus"),
    "active-sweep": ("training/pick-and-place-active-sweep.svg", "FetchPickAndPlace: the share of active exploration"),
    "disagreement-variants": (
        "training/pick-and-place-disagreement-weights.svg",
        "FetchPickAndPlace: the weight of the disagreement bonus",
    ),
}
TRIED = {  # by study with a claim that is not reproduced: what was tried, and what was not
    "exploration": "Five weights of CAI's bonus (the paper's 0.2 is the best at 3,000 episodes) and four shares of "
    "active exploration (100 % is the best) were tried; an earlier run of each agrees. Alone, neither is ahead of the "
    "best variant of VIME or of disagreement at the episodes that all have (1,750 and 2,000). These two variants were "
    "not run for longer, VIME on the full state and disagreement on object and agent not at all.",
    "vime-variants": "Three runs of VIME on agent and object agree with each other. VIME on the object was run once, "
    "to 1,750 episodes. Our VIME differs from the authors' release in four points, see deviation 29.",
    "random-training-data": "On 1DSlide random training data are worse, too (average precision 0.88 instead of 0.99). "
    "More random episodes, or more epochs on them, were not tried.",
    **dict.fromkeys(
        ("record", "record-push", "record-fetch-slide"),
        "The settings that were compared are listed in docs/record.md, The search.",
    ),
}
INTRODUCTION = """# What reproduces and what does not

Written from the files in `{results}` by `results_page.write_results_page`; change those, not this page.

A verdict follows from a [rule]({stem}-rules.md), a test over seeds with a known rate of errors. *Undecided*: the runs
so far show neither that the claim holds nor that it fails. *Partly*: a part of the claim is shown, such as "faster"
without the claimed factor, or one comparison of several.

Effects: *probability* that a seed of the first arm has the larger area under its success curve; difference of that
*area*, which is the mean success over training; how many *times fewer* episodes a seed needs; in detection, the
difference to the paper's numbers, the *lead* over the nearest other detector, or a ratio of two numbers.

The numbers behind each row: [learning]({stem}-learning.md), [detection]({stem}-detection.md). Not run yet:
[missing runs]({stem}-missing.md).
"""
WORDS = """| on this page | means |
|---|---|
| [a, b] | 95 % interval over seeds |
| a to b | range over seeds, where there are fewer than {enough} (episodes to a level: {enough} or fewer) |
| success | mean over seeds at the last evaluation ± standard deviation; IQM: interquartile mean |
| episodes to a level | those of the median seed |
| times fewer | ratio of these episodes at {compared:.0%}, median over pairs of seeds; >: a lower bound |
| better than | probability that a seed has a larger area under its curve |
| p | two-sided p-value of the finding, of this comparison alone; the smallest of all where nothing is decided |
"""


def write_results_page(results: Path, page: Path) -> Path:
    """Write PAGE, a short table of all claims of RESULTS/studies, and the pages beside it; return its path."""
    results, page = Path(results), Path(page)
    studies, size = decide_studies([read_study(results, name) for name in study_names(results)])
    shown = [study for study in studies if any(arm.state in ("finished", "unfinished") for arm in study.arms)]
    parts = [INTRODUCTION.format(results=relative(results, page.parent), stem=page.stem)]
    parts += [*short_table(studies, page.stem, size), *pictures(shown, results, page.parent), *not_reproduced(studies)]
    words = WORDS.format(enough=ENOUGH, compared=COMPARED)
    for name, title in (("learning", "Results of learning"), ("detection", "Results of detection")):
        sections = [with_picture(study, results, page.parent) for study in shown if part_of(study) == name]
        text = "\n".join([f"# {title}\n", f"The numbers behind the [verdicts]({page.name}).\n", words, *sections])
        write_page(page.with_name(f"{page.stem}-{name}.md"), text)
    write_page(page.with_name(f"{page.stem}-missing.md"), missing(studies))
    write_page(page.with_name(f"{page.stem}-rules.md"), rules_page(page.name))
    return write_page(page, "\n".join(parts))


def part_of(study: ReadStudy) -> str:
    """Return which page has the numbers of a study."""
    return "detection" if all(arm.kind == "detection" for arm in study.arms) else "learning"


def short_table(studies: list[ReadStudy], stem: str, size: float) -> list[str]:
    """Return a row for each claim of the paper, and how many of the decisions may be false."""
    rows, waiting = [], 0
    for study in studies:
        link = f"[{clean(study.title)}]({stem}-{part_of(study)}.md#{anchor(study.title)})"
        for words, found in comparisons_by_claim(study).items():
            if any(verdict.measured for _, verdict in found):
                together = finding_of([verdict for _, verdict in found])
                rows.append((link, clean(words), f"**{together}**", "<br>".join(effects(found))))
            else:
                waiting += 1
    if not rows:
        return []
    claims = [[one for _, one in found] for study in studies for found in comparisons_by_claim(study).values()]
    tested = [found for found in claims if claim_p_value(found) is not None]
    decided = sum(finding_of(found) != "undecided" for found in tested)
    return [
        "## In short\n",
        table(("study", "the paper's claim", "here", "effect and 95 % interval"), rows),
        f"{count_words(len(tested), 'claim')} of the table could be tested, and {decided} of them are decided. They "
        f"are decided together, so that at most {100 * SIZE:g} % of the decisions, {SIZE * decided:.1f} of {decided}, "
        f"are expected to be false (Benjamini and Hochberg). A decision needs p ≤ {size:.3f}; of a claim "
        f"of several comparisons, the first needs this divided by their number (Holm).\n",
        f"{count_words(waiting, 'further claim')} cannot be judged without runs that have not been made.\n"
        if waiting
        else "",
    ]


def effects(found: list[tuple[Claim, Verdict]]) -> list[str]:
    """Return the effect of each comparison of a claim; with its verdict where they differ."""
    unlike = len({verdict.verdict for _, verdict in found}) > 1
    lines = []
    for claim, verdict in found:
        effect = verdict.found.effect if verdict.found else ""
        effect = effect or verdict.words.removeprefix(f"{claim.arm}: ")
        arms = f"{claim.arm} against {claim.than}" if claim.than and not claim.than_variants else claim.arm
        lines.append(f"{clean(arms)}{f', *{verdict.verdict}*' if unlike else ''}: {clean(effect.rstrip('.'))}")
    return lines


def picture(study: ReadStudy, results: Path, folder: Path) -> list[str]:
    """Return the curves of a study as a picture, if they are drawn."""
    file, words = PICTURES.get(study.name, ("", ""))
    return [f"![{words}]({relative(results / file, folder)})"] if file and (results / file).is_file() else []


def with_picture(study: ReadStudy, results: Path, folder: Path) -> str:
    """Return the section of a study with its curves below the heading."""
    heading, _, rest = section(study, folder).partition("\n")
    return "\n".join([heading, *(f"\n{line}" for line in picture(study, results, folder)), rest])


def pictures(studies: list[ReadStudy], results: Path, folder: Path) -> list[str]:
    """Return the curves of the studies as pictures."""
    lines = [line for study in studies for line in picture(study, results, folder)]
    about = "Lines are means over seeds, bands their 95 % intervals.\n"
    return ["## Curves\n", about, *lines, ""] if lines else []


def not_reproduced(studies: list[ReadStudy]) -> list[str]:
    """Return what was tried about each claim that is not reproduced."""
    lines = []
    for study in studies:
        failed = dict.fromkeys(claim.words for claim, one, _ in study.verdicts if one.verdict == "not reproduced")
        if failed:
            tried = TRIED.get(study.name, "Nothing else was tried.")
            lines.append(f"- {clean(study.title)}: {' '.join(f'*{clean(words)}*' for words in failed)} {clean(tried)}")
    return ["## What does not reproduce, and what was tried\n", *lines, ""] if lines else []


def rules_page(name: str) -> str:
    """Return the page of rules: how each kind of claim is decided, and how often that goes wrong."""
    head = ("what is true", "ten seeds: reproduced", "partly", "not reproduced", "five seeds: reproduced", "partly",
            "not reproduced")  # fmt: skip
    parts = [
        "# How verdicts are decided\n",
        f"The [verdicts]({name}) rest on tests over seeds. Nothing in them is drawn at random, so another computation "
        f"gives the same verdicts. A finding needs a two-sided p-value of {SIZE:g} or less, or less than that where "
        f"many claims are decided together, so that a false finding on one side has a probability of at most "
        f"{100 * SIZE / 2:g} %. The margins are ours: {MARGIN:g} of success in the mean over training for "
        f'"similar" and "on par", and a factor of {RATIO:g} to either side for "roughly".\n',
        "A claim of several comparisons is *reproduced* if all of them are, *partly* if one of them is in whole or in "
        "part, and *not reproduced* if none is and one fails. It is decided if one comparison is, by Holm's procedure, "
        "which divides the p-value that the first of k comparisons needs by k.\n",
        "Tests of detection are over the seeds of the model. All seeds share the agents and episodes of a run, so they "
        "do not show how the numbers would vary with other agents.\n",
        "The tables show how often each verdict was given in 1,000 simulated experiments, in percent; the rest is "
        "undecided. Simulated seeds learn at times that differ by a factor of about 1.3, and one in ten never learns. "
        "Two groups of ten seeds of which one varies ten times as much as the other are called different too often, in "
        "up to 5 % on either side.\n",
    ]
    for kind, words in KINDS.items():
        rule = rule_of_kind(kind)
        rows = [(one.words, *(f"{share}" for share in (*one.ten, *one.five))) for one in RATES if one.kind == kind]
        parts += [f"## A claim that an arm {words}\n", f"{clean(rule)}\n", *([table(head, rows)] if rows else [])]
    rows = [(one.words, *(f"{share}" for share in (*one.ten, *one.five))) for one in SEVERAL]
    about = "Comparisons of the kind *better*, with other seeds in each:\n"
    parts += ["## A claim of several comparisons\n", about, table(head, rows)]
    rows = [(name, *(f"{share}" for shares in both for share in shares)) for name, both in COVERAGE.items()]
    head = ("the success of a seed is", "mean: 5 seeds", "10", "20", "interquartile mean: 5 seeds", "10", "20")
    parts += [
        "## How often intervals cover the truth\n",
        "Intervals of means follow Student's t on the scale of log odds. In percent of 4,000 simulated samples, they "
        "cover the truth so often where 95 is meant:\n",
        table(head, rows),
        "Where a few seeds fail and the sample has none of them, no interval over so few seeds is right. Intervals of "
        "a median, a difference, a ratio of episodes and a probability are exact or conservative (95 to 98 %); with "
        "five seeds that of a median is their range (94 %).\n",
    ]
    return "\n".join(parts)


def rule_of_kind(kind: str) -> str:
    """Return how claims of a kind are decided, in words."""
    return " ".join((RULES[kind].__doc__ or "").split())


def missing(studies: list[ReadStudy]) -> str:
    """Return the arms that have not been run, are unfinished or too short, with the command and how long it takes."""
    lines = []
    cost = episode_cost(studies)
    options = common_options(studies)
    for study in studies:
        absent, short = [arm for arm in study.arms if arm.state == "not run"], too_short(study)
        for arm in study.arms:
            if arm.words and arm not in absent:
                end = f". {price(study, [arm], cost, options, arm.curve.asked)}" if arm.curve else "."
                lines.append(f"- {clean(study.title)}: **{clean(arm.label)}** {clean(arm.words)}{end}")
        if absent:
            names, have = ", ".join(f"**{clean(arm.label)}**" for arm in absent), "has" if len(absent) == 1 else "have"
            lines.append(f"- {clean(study.title)}: {names} {have} not been run. {price(study, absent, cost, options)}")
        if short:
            names = ", ".join(f"**{clean(arm.label)}** ({last:,} of {arm.asked[1]:,})" for arm, last in short)
            longer = f"claims that are not fully decided need more of the paper's episodes: {names}"
            words = price(study, [arm for arm, _ in short], cost, options)
            lines.append(f"- {clean(study.title)}: {longer}. {words}")
    if cost and lines:
        seconds = f"{cost:.2f} s per episode of ten seeds, the median of the runs so far"
        lines.append(f"\nTimes are for one run after another at {seconds}, most of which ran beside others.")
    return "\n".join(["# Missing and unfinished runs\n", *(lines or ["Nothing is missing."]), ""])


def too_short(study: ReadStudy) -> list[tuple[ReadArm, int]]:
    """Return the measured arms of claims that are not fully decided and shorter than the paper's, with their last."""
    open_ones = ("undecided", "partly")
    undecided = [claim for claim, found, _ in study.verdicts if found.verdict in open_ones and found.measured]
    asked = {label for claim in undecided for label in (*claim.own, *claim.others)}
    lasts = [(arm, int(arm.curve.episodes[-1])) for arm in study.arms if arm.label in asked and arm.curve]
    return [(arm, last) for arm, last in lasts if last < arm.asked[1]]


def price(
    study: ReadStudy, arms: list[ReadArm], cost: float | None, options: list[str], episodes: int | None = None
) -> str:
    """Return the command that runs these arms, for so many episodes or the study's, and how long it takes."""
    counts = [episodes or arm.asked[1] for arm in arms if arm.kind == "training"]
    words = [f"{count_words(len(arms), 'run')}, about {duration(cost * sum(counts))}:"] if cost and any(counts) else []
    command = ["butfor", "study", "run", study.name.removesuffix("-small"), *(options if counts else [])]
    command += ["--episodes", str(episodes)] if episodes else []
    command += ["--arms", *(arm.label for arm in arms)] if len(arms) < len(study.arms) else []
    words += [f"`{shlex.join(command)}`"] if not set("<`") & set("".join(command)) else []
    short = sum(min(count, SHORT) for count in counts)
    if cost and short < sum(counts) and not any(arm.curve for arm in arms):
        words.append(f"({duration(cost * short)} with `--episodes {SHORT}`)")
    return " ".join(words)


def common_options(studies: list[ReadStudy]) -> list[str]:
    """Return the options of `butfor study run` with which most of the training runs were made."""
    settings = [arm.config["config"] for study in studies for arm in study.arms if arm.curve]
    envs = Counter(int(one.get("num_envs") or 1) for one in settings).most_common(1)
    overlap = Counter(
        tuple(one.get("overlap") or ()) for one in settings if one.get("use") and one.get("signal", "cai") == "cai"
    ).most_common(1)
    options = ["--num-envs", str(envs[0][0])] if envs and envs[0][0] > 1 else []
    return options + (["--overlap", *overlap[0][0]] if overlap and overlap[0][0] else [])


def episode_cost(studies: list[ReadStudy]) -> float | None:
    """Return the seconds per episode of ten seeds, evaluation and start-up included: the median of all long runs."""
    costs = {}
    for arm in (arm for study in studies for arm in study.arms):
        seconds, played = seconds_of(arm), arm.summary.get("played")
        if isinstance(seconds, int | float) and isinstance(played, int) and played >= 1000 and len(arm.seeds) == 10:
            costs[arm.folder] = seconds / played
    return float(np.median(list(costs.values()))) if costs else None
