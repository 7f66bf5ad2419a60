"""Text of the user's as a page can show it: names of columns and environments may hold anything."""

from __future__ import annotations

import unicodedata

# marks that turn the direction of all text after them, in the page too
_TURNING = ("LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI")


def readable(text: str) -> str:
    """The same with a sign in place of each character that cannot be shown or that changes how others are shown.

    Line breaks and tabs stay; so do all letters, of whatever script and direction.

    Examples
    --------
    >>> readable("a\\x00b"), readable("\\u202eabc"), readable("half \\ud800 pair")
    ('a�b', '�abc', 'half � pair')
    """
    bad = {
        c
        for c in set(text)
        if c not in "\n\t"
        and (unicodedata.category(c) in ("Cc", "Cn", "Co", "Cs") or unicodedata.bidirectional(c) in _TURNING)
    }
    return "".join("�" if c in bad else c for c in text) if bad else text
