"""Words and vague names that the project replaces never become more frequent."""

from __future__ import annotations

from collections import Counter

from tests.house.names import find_shared_module_names, find_vague_functions
from tests.house.words import ROOT, TERMS, count_words, find_words, read_table


def test_words_that_terms_replace_only_become_fewer() -> None:
    """After a decrease, `python -m tests.house.words` writes the new numbers."""
    places = list(find_words(ROOT))
    found, most = count_words(places), read_table()
    grown = {key for key, number in found.items() if number > most[key]}
    shown = [
        f"{place.path.relative_to(ROOT)}:{place.line}: {place.word}: {TERMS[place.word]}"
        for place in places
        if (place.word, place.kind) in grown
    ]
    assert not grown, "\n".join(shown)
    most = Counter({key: number for key, number in most.items() if key[1] in ("name", "prose")})
    assert +(most - found) == {}, "fewer than in words.csv: run python -m tests.house.words"


def test_functions_of_vague_words_only_become_fewer() -> None:
    found, most = list(find_vague_functions(ROOT)), read_table()["(functions)", "vague"]
    assert len(found) == most, "\n".join(found)


def test_modules_that_share_a_name_only_become_fewer() -> None:
    found, most = find_shared_module_names(ROOT), read_table()["(modules)", "shared"]
    assert len(found) == most, found
