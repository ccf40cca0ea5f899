"""`butfor labels`: compare the labels of an episode file."""

from pathlib import Path
from typing import Annotated

import tyro

from butfor.cli.console import print_next


def labels(file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")], /, pictures: int = 12) -> None:
    """Compare the labels of an episode file: a table, and a page with pictures of states where they differ.

    Args:
        file: episode file with at least two labels
        pictures: states to draw for each pair of labels (not for slide)
    """
    from butfor.detection.labels import compare_labels
    from butfor.reporting.file_pages import missing_pictures, write_agreement
    from butfor.rollouts.episodes import Episodes

    episodes = Episodes.load(file)
    for row in compare_labels(episodes):
        first, second = row["first"], row["second"]
        print(
            f"{first} and {second}: agree in {row['both'] + row['neither']:.2%} of {row['states']:,} states; both "
            f"{row['both']:.2%}, only {first} {row['only_first']:.2%}, only {second} {row['only_second']:.2%}"
        )
    if pictures and (reason := missing_pictures(episodes)):
        print(f"No pictures: {reason}")
    page = write_agreement(episodes, file, pictures)
    print(f"Page: {page}")
    print_next(f"open {page} in a browser")
