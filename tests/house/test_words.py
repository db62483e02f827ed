"""No word comes back that the project has replaced by a term of the field."""

from __future__ import annotations

from tests.house.words import ROOT, TERMS, count_words, find_words, read_table


def test_words_that_terms_replace_only_become_fewer() -> None:
    """Where numbers fall, `python -m tests.house.words` writes them down."""
    places = list(find_words(ROOT))
    found, most = count_words(places), read_table()
    grown = {key for key, number in found.items() if number > most[key]}
    shown = [
        f"{place.path.relative_to(ROOT)}:{place.line}: {place.word}: {TERMS[place.word]}"
        for place in places
        if (place.word, place.kind) in grown
    ]
    assert not grown, "\n".join(shown)
    assert +(most - found) == {}, "fewer than in words.csv: run python -m tests.house.words"
