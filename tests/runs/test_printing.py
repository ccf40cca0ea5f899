"""Small tables as text and HTML."""

from butfor.runs.printing import html_table, text_table


def test_numbers_are_aligned_right_and_values_of_names_left() -> None:
    assert text_table([["", "n"], ["a", "12"]]) == "     n\n  a  12"
    assert text_table([["", "n", "m"], ["ab", "1", "200"]]) == "      n    m\n  ab  1  200"
    assert text_table([["one", "x"], ["three", "long"]]) == "  one    x\n  three  long"


def test_everything_in_html_is_escaped() -> None:
    page = html_table([["<a>", "<b>"]], "<c>", below=["<d>"])
    assert not any(mark in page for mark in ("<a>", "<b></td>", "<c>", "<d>"))
    assert page.count("&lt;") == 4
