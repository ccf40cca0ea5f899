"""What the paper says of each experiment, sentence by sentence; where a number is not the paper's, that is said."""

from butfor.analysis.claims import Claim

HER = "DDPG + HER"
ROBOT = "pick-and-place"
PAIRS = {"P + bonus": ("P", "bonus"), "P + active": ("P", "active"), "bonus + active": ("bonus", "active")}
ALL = "P + bonus + active"
OURS = "(the number is ours)"


def _replay() -> tuple[Claim, ...]:
    """Figure 8, on each world."""
    return (
        Claim("CAI-P reaches 60 % 1.5 to 2.5 times faster than PER (judged by the 1.5).", "faster", "CAI-P", "PER",
              factor=1.5),
        Claim("CAI-P is on par with EBP, which knows the physics, or better.", "on par", "CAI-P", "EBP"),
        Claim("CAI-P is faster than replay without priorities.", "faster", "CAI-P", HER),
    )  # fmt: skip


def _negative() -> tuple[Claim, ...]:
    """Appendix F: what was tried and dropped."""
    worse = ("P, proportional", "bonus, flat", "bonus, multiplicative", "active, ranked", "active, proportional")
    same = ("P, power 2", "P, importance weights", "P, within episodes", "P, goals by score", "bonus, annealed")
    return (
        *(Claim("The variant is worse.", "better", label.split(",")[0], label) for label in worse),
        *(Claim("The variant is no improvement.", "on par", label.split(",")[0], label) for label in same),
    )


CLAIMS: dict[str, tuple[Claim, ...]] = {
    "table1": (
        *(Claim("CAI detects influence almost without mistakes.", "detects", world) for world in ("slide", ROBOT)),
        *(Claim("No other detector does so reliably.", "alone", world) for world in ("slide", ROBOT)),
    ),
    "detection-curves": (
        Claim(f"Performance drops gracefully with noise: with 10 % two thirds are left {OURS}.", "times", ROBOT,
              factor=2 / 3, measure="noise", row="10 %, also in testing", reference="0 %, also in testing"),
    ),
    "random-test-set": (
        Claim(f"It is lower where influence is rare, and still quite good: half is left {OURS}.", "times", ROBOT,
              factor=0.5, measure="sets", row="random set", reference="test set"),
        Claim(f"CAI is robust to the number of actions: with 8 of 64, four fifths are left {OURS}.", "times", ROBOT,
              factor=0.8, measure="actions", row="8, independent, mean", reference="64, independent, mean"),
    ),
    "random-training-data": (
        Claim(f"A model of random episodes gives similar results: 95 % are left {OURS}.", "times", ROBOT, factor=0.95,
              measure="helps", row="Trained on random episodes", reference="As in the table"),
    ),
    "trajectories": (
        Claim(f"CAI is high in manipulations and low without contact: five times as high {OURS}.", "times", ROBOT,
              factor=5, measure="episodes", row="manipulation", reference="no contact"),
        Claim(f"It spikes around a brief touch: five times as high as in the other steps {OURS}.", "times", ROBOT,
              factor=5, measure="episodes", row="around a brief touch", reference="the rest of these episodes"),
        Claim(f"It misses hovering: in influenced states it is twice as high in contact as without {OURS}.", "times",
              ROBOT, factor=2, measure="episodes", row="influenced, in contact", reference="influenced, no contact"),
    ),
    "intrinsic": tuple(
        Claim(f"The agent learns to lift and hold the object within 2,000 episodes: {measure} in a tenth of the steps "
              f"{OURS}.", "reaches", "CAI alone", level=0.1, within=2_000, measure=measure)
        for measure in ("lifted", "held")
    ),
    "heatmaps": (
        Claim(f"CAI approximates the label over training well: a correlation of 0.7 {OURS}.", "follows", "CAI alone",
              level=0.7, measure="label"),
        Claim(f"It is highest once the agent lifts the object: a correlation of 0.7 {OURS}.", "follows", "CAI alone",
              level=0.7, measure="lifted"),
        Claim(f"The label spreads more evenly: CAI differs 1.1 times as much {OURS}.", "uneven", "CAI alone",
              factor=1.1),
    ),
    "bonus-sweep": (
        Claim("With the right weight, 60 % is reached four times faster than without a bonus.", "faster", "bonus 0.2",
              HER, factor=4),
        Claim("Too large a weight lets the bonus dominate the task's reward.", "better", "bonus 0.2", "bonus 1"),
    ),
    "active-sweep": (
        Claim("Active exploration is roughly twice as sample-efficient.", "faster", "active 100%", HER, factor=2),
        *(
            Claim("Any amount of active exploration improves over random exploration.", "better", label, HER)
            for label in ("active 25%", "active 50%", "active 75%", "active 100%")
        ),
    ),
    "exploration": (
        *(
            Claim("All uses of CAI for exploration are better than VIME.", "better", label, "VIME")
            for label in ("CAI bonus", "CAI active", "CAI bonus + active")
        ),
        *(
            Claim("All uses of CAI for exploration are better than disagreement on the object, a viable alternative.",
                  "better", label, "Disagreement")
            for label in ("CAI bonus", "CAI active", "CAI bonus + active")
        ),
        *(
            Claim(f"Bonus and active choice together improve over {words}.", "better", "CAI bonus + active", label)
            for words, label in (("the bonus", "CAI bonus"), ("active choice", "CAI active"))
        ),
    ),
    "replay-push": _replay(),
    "replay-pick-and-place": _replay(),
    "replay-rot-table": _replay(),
    "combined": (
        Claim("All three together reach 95 % within 3,000 episodes.", "reaches", ALL, level=0.95, within=3_000),
        *(
            Claim("Two or three need 4 to 10 times fewer episodes than none (judged by the 4).", "faster", label, HER,
                  factor=4)
            for label in (ALL, *PAIRS)
        ),
        *(Claim("On its own, priority brings the most.", "better", "P", other) for other in ("bonus", "active")),
        Claim("Bonus and active choice bring similar gains beside priority.", "on par", "P + bonus", "P + active"),
        *(
            Claim("The uses are complementary: two are better than one.", "better", pair, single)
            for pair, singles in PAIRS.items()
            for single in singles
        ),
        *(Claim("All three together are best.", "better", ALL, pair) for pair in PAIRS),
    ),
    "vime-variants": tuple(
        Claim("The variant on the positions of agent and object is the best.", "better", "VIME object + agent", label)
        for label in ("VIME object", "VIME full")
    ),
    "disagreement-variants": tuple(
        Claim("The variant on the object is the best.", "better", "object, 50", label)
        for label in ("object + agent, 50", "full state, 0.25")
    ),
    "partial-rescoring": (
        Claim("Rescoring the newest 1,000 episodes, and all every 1,000, loses little.", "on par", "newest", "all"),
    ),
    "negative-results": _negative(),
}  # fmt: skip
