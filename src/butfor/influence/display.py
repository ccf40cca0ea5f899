"""How results look when they are printed or shown in a notebook, and the progress of a fit."""

import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from butfor.runs.printing import html_table, text_table

if TYPE_CHECKING:
    from butfor.influence.diagnosis import Diagnosis
    from butfor.influence.influence import Influence

GOOD, FAIR, BAD = "#007a4d", "#7a5c00", "#b3362b"


def influence_rows(influence: "Influence") -> list[list[str]]:
    """What a fitted model is about, as rows of a table."""
    pairs = getattr(influence.model, "pairs", None)
    kind = f"model of pairs, {steps}" if (steps := _graph_words(influence)) else "Gaussian network"
    if pairs is not None:
        touching = sorted({column for found in pairs.values() for pair in found for column in pair.partner})
        kind = f"model of touches, by columns {_listed(touching)}"
    outcomes = getattr(influence.model, "counts", None)
    if outcomes is not None:
        kind = f"model of {', '.join(map(str, outcomes))} outcomes"
    if influence.prior is not None:
        kind += " on top of a prior"
    if influence.predicted_steps > 1:
        kind += f", {influence.predicted_steps} steps at once"
    law = influence.law
    actions = f"{law.count} discrete" if law.count else f"{law.size} continuous"
    rows = [[name, f"columns {_listed(columns)}"] for name, columns in influence.entities.items()]
    rows += [["model", kind], ["observation", f"{influence.model.obs_size} columns"], ["action", actions]]
    rows.append(["members", str(influence.model.replicas)])
    known = [calibration.describe() for calibration in influence.calibration.values()]
    return [*rows, ["decisions", known[0] if known else "not calibrated"]]


def _graph_words(influence: "Influence") -> str:
    """What a model of pairs knows of the action, or nothing for another model."""
    driven = getattr(influence.model, "driven", None)
    if driven is None:
        return ""
    words = f"the action drives {', '.join(driven) or 'none of them'}"
    return words + (f", horizon {influence.horizon}" if influence.horizon > 1 else "")


def diagnosis_rows(found: "Diagnosis") -> list[list[str]]:
    """The numbers of a diagnosis that matter most: measured, and what would be right."""
    one, two = (min(share[place] for share in found.within) for place in (0, 1))
    promised, gain, error = (found.gain_by_score[key][-1] for key in ("promise", "gain", "error"))
    return [
        ["", "measured", "expected"],
        ["held-out transitions", f"{found.transitions:,}", "at least 500"],
        ["change explained (R²)", f"{found.r_squared:.2f}", "above 0"],
        ["residuals within 1 and 2 sd", f"{one:.0%}, {two:.0%}", "68%, 95%"],
        ["effect of the action (nats)", f"{found.gain:.2f} ± {found.gain_error:.2f}", f"{found.promise:.2f}"],
        ["  where CAI is highest", f"{gain:.2f} ± {error:.2f}", f"{promised:.2f}"],
        ["kinds of actions tried", f"{min(found.coverage):.0%}", "at least 80%"],
    ]  # fmt: skip


def verdict(found: "Diagnosis", name: str = "") -> str:
    """Whether the scores can be trusted, in a few words."""
    about = f"{name}: " if name else ""
    if found.size_trusted:
        return f"{about}no problem found"
    count = sum(not finding.fine for finding in found.findings)
    advice = "trust the order of the scores, not their size" if found.trusted else "do not trust the scores"
    return f"{about}{count} problem{'s' if count > 1 else ''} found: {advice}"


def problems(found: "Diagnosis") -> list[str]:
    """The sentences of the checks that failed."""
    return [finding.words[:1].upper() + finding.words[1:] for finding in found.findings if not finding.fine]


def diagnosis_text(found: "Diagnosis", name: str = "") -> str:
    """A verdict, a small table, and what is wrong."""
    lines = [verdict(found, name), text_table(diagnosis_rows(found))]
    marked = [*(f"  ! {sentence}" for sentence in problems(found)), *map(_wrapped_note, found.notes)]
    return "\n".join([*lines, *marked])


def _wrapped_note(note: str) -> str:
    return textwrap.fill(f"Note: {note}", 80, initial_indent="  ", subsequent_indent="    ")


def diagnosis_html(found: "Diagnosis", name: str = "") -> str:
    """The same for a notebook."""
    colour = GOOD if found.size_trusted else FAIR if found.trusted else BAD
    return html_table(diagnosis_rows(found), verdict(found, name), colour, [*problems(found), *found.notes])


def decision_rows(decided: Mapping[str, Any]) -> list[list[str]]:
    """How many states are called influenced, by entity."""
    rows = [["", "influenced", "states", "share"]]
    for name, flags in decided.items():
        count, total = int(np.asarray(flags).sum()), len(flags)
        rows.append([name, f"{count:,}", f"{total:,}", f"{count / total:.1%}" if total else "–"])
    return rows


@contextmanager
def fit_progress(wanted: Callable[[Any], None] | bool) -> Iterator[Callable[[Any], None] | None]:
    """Give what to call after each part of a fit: the user's function, a bar for a terminal or a notebook, or None.

    A bar disappears at the end.
    """
    if not isinstance(wanted, bool):
        yield wanted
        return
    python = sys.modules.get("IPython")  # loaded wherever a notebook runs
    shell = python.get_ipython() if python is not None else None
    if wanted and getattr(shell, "kernel", None) is not None:
        shown = sys.modules["IPython.display"]
        handle = shown.display(shown.HTML(""), display_id=True)

        def show_bar(state: Any) -> None:
            bar = f'<progress value="{state.epoch}" max="{state.epochs}"></progress>'
            handle.update(shown.HTML(f"Fitting {bar} {state.epoch:,} of {state.epochs:,}"))

        yield show_bar
        handle.update(shown.HTML(""))
    elif wanted and sys.stderr is not None and sys.stderr.isatty():
        try:
            yield _show_line
        finally:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    else:
        yield None


def _show_line(state: Any) -> None:
    filled = round(24 * state.epoch / max(state.epochs, 1))
    bar = "█" * filled + "░" * (24 - filled)
    print(f"\rFitting {bar} {state.epoch:,}/{state.epochs:,}", end="", file=sys.stderr, flush=True)


def _listed(columns: Sequence[int]) -> str:
    """Such as "3 to 5", or "2, 7"."""
    numbers = list(columns)
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))
