"""Record which run of results/training belongs to which arm of a study, and write docs/results*.md from them:

python results/name_studies.py
"""

from pathlib import Path

from results_page import write_results_page

from butfor.runs.files import read_json, write_json
from butfor.studies.paper import HER, STUDIES, make_study, write_study
from butfor.studies.record import ENVS, PAPER, record_arms

RESULTS = Path(__file__).parent
PICK = "training/pick-and-place"
VIME = {"VIME object + agent": f"{PICK}-vime", "VIME object": f"{PICK}-vime-object"}
DISAGREEMENT = {"object, 50": f"{PICK}-disagreement", "object, 10": f"{PICK}-object10",
                "object, 100": f"{PICK}-object100", "full state, 0.25": f"{PICK}-disagreement-full",
                "full state, 0.1": f"{PICK}-full0.1", "full state, 1": f"{PICK}-full1"}  # fmt: skip


FOLDERS = {
    # made for other questions, on the seeds 0 to 9; the settings are the paper's
    ("pick-and-place", PAPER): "pick-and-place-all-three",
    ("pick-and-place", HER): "pick-and-place-her",
    ("push", HER): "push-her",
    # of the seeds 100 to 109, as the other arms
    ("fetch-slide", HER): "fetch-slide-her",
}


def record_folder(env: str, label: str) -> str:
    """Return the folder of an arm of the record's studies, such as push-record-without-relay."""
    if (env, label) in FOLDERS:
        return FOLDERS[env, label]
    return f"{env}-{label.replace(' - ', ' without ').replace(' + ', ' with ').replace(' ', '-').lower()}"


RUNS: dict[str, dict[str, str]] = {
    "combined": {HER: f"{PICK}-her", "P + bonus + active": f"{PICK}-all-three", "bonus": f"{PICK}-bonus",
                 "active": f"{PICK}-active", "P": f"{PICK}-priority", "P + bonus": f"{PICK}-priority-bonus",
                 "P + active": f"{PICK}-priority-active", "bonus + active": f"{PICK}-bonus-active"},
    "bonus-sweep": {HER: f"{PICK}-her", "bonus 0.05": f"{PICK}-bonus-0.05", "bonus 0.1": f"{PICK}-bonus-0.1",
                    "bonus 0.2": f"{PICK}-bonus", "bonus 0.5": f"{PICK}-bonus-0.5", "bonus 1": f"{PICK}-bonus-1"},
    "active-sweep": {HER: f"{PICK}-her", "active 25%": f"{PICK}-active-0.25", "active 50%": f"{PICK}-active-0.5",
                     "active 75%": f"{PICK}-active-0.75", "active 100%": f"{PICK}-active"},
    "exploration": {HER: f"{PICK}-her", "CAI bonus": f"{PICK}-bonus", "CAI active": f"{PICK}-active",
                    "CAI bonus + active": f"{PICK}-bonus-active", **VIME,
                    **{f"Disagreement {label}": folder for label, folder in DISAGREEMENT.items()}},
    "replay-push": {HER: "training/push-her", "CAI-P": "training/push-cai-p", "PER": "training/push-per",
                    "EBP": "training/push-ebp"},
    "replay-pick-and-place": {HER: f"{PICK}-her", "CAI-P": f"{PICK}-priority", "PER": f"{PICK}-per",
                              "EBP": f"{PICK}-ebp"},
    "controls": {HER: f"{PICK}-her", "CAI-P": f"{PICK}-priority", "contact-P": f"{PICK}-priority-contact",
                 "moved-P": f"{PICK}-priority-moved", "nearness-P": f"{PICK}-priority-nearness",
                 "shuffled-P": f"{PICK}-priority-shuffled", "CAI bonus": f"{PICK}-bonus",
                 "nearness bonus": f"{PICK}-bonus-nearness"},
    "replay-rot-table": {HER: "training/rot-table-her", "CAI-P": "training/rot-table-cai-p",
                         "PER": "training/rot-table-per", "EBP": "training/rot-table-ebp"},
    "intrinsic": {"CAI alone": f"{PICK}-intrinsic"},
    "heatmaps": {"CAI alone": f"{PICK}-intrinsic"},  # the heat map is of its first seed
    "disagreement-variants": DISAGREEMENT,
    "vime-variants": VIME,
    "partial-rescoring": {"all": f"{PICK}-priority", "newest": f"{PICK}-newest"},
    "detection-curves": {"slide": "detection-slide", "pick-and-place": "detection-pick-and-place-noise"},
    "random-test-set": {"pick-and-place": "detection-pick-and-place-full"},
    "random-training-data": {"pick-and-place": "detection-pick-and-place-helps"},
    "trajectories": {"pick-and-place": "detection-pick-and-place-full"},
    "touch-model": {"P": f"{PICK}-priority", "P, touches": f"{PICK}-priority-touches", "bonus": f"{PICK}-bonus",
                    "bonus, touches": f"{PICK}-bonus-touches", "active": f"{PICK}-active",
                    "active, touches": f"{PICK}-active-touches"},
    "touch-model-push": {"P": "training/push-cai-p", "P, touches": "training/push-priority-touches",
                         "bonus": "training/push-bonus", "bonus, touches": "training/push-bonus-touches",
                         "active": "training/push-active", "active, touches": "training/push-active-touches"},
    "table1": {"slide": "detection-slide", "pick-and-place": "detection-pick-and-place-full"},
}  # fmt: skip
for env in ENVS:
    name = "record" if env == "pick-and-place" else f"record-{env}"
    RUNS[name] = {label: f"training/{record_folder(env, label)}" for label in record_arms(env)}


def main() -> None:
    """Write results/studies/*.json and the pages."""
    for name in STUDIES:
        path = write_study(make_study(name), RESULTS, "paper")
        record = read_json(path) | {"command": ""}  # each run has its own
        for arm in record["arms"]:
            arm["folder"] = RUNS.get(name, {}).get(arm["label"], arm["folder"])
        write_json(path, record)
    print(write_results_page(RESULTS, RESULTS.parent / "docs" / "results.md"))


if __name__ == "__main__":
    main()
