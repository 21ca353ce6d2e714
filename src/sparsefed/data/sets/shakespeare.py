"""Shakespeare's lines by speaker, for next-character prediction: 80 characters per sequence, as in LEAF.

`shakespeare` is 7097 speeches of 299 speakers, the "tiny Shakespeare" of Karpathy's char-rnn split into speeches, one
JSON line each, in the order of the plays. `shakespeare_leaf` is the output of LEAF's scripts for the collected works
(Caldas et al. 2018), one user per role.
"""

from __future__ import annotations

from sparsefed.data.formats import jsonl as comments
from sparsefed.data.formats import leaf_text
from sparsefed.data.formats.tokens import characters, held_out
from sparsefed.data.record import DataFile
from sparsefed.data.sets.text_sets import text_set

VOCABULARY, LENGTH = 256, 80  # more than there are different characters
FILE = DataFile(
    "tinyshakespeare_speakers.jsonl", 1_356_536, "4d593f436ab7c92272e1b67a4a89d0cce13d792a1eb58366d4feb6e75f4ecddd"
)

DATASET = text_set(
    "shakespeare",
    lambda content: held_out(comments.parse(content(FILE.name), characters, FILE.name)),
    VOCABULARY,
    LENGTH,
    description="Shakespeare's speeches by speaker, next character, 299 users",
    files=(FILE,),
    by_hand="It is published nowhere in this form: use shakespeare_leaf, which LEAF's scripts make, or ask for it",
)
LEAF = text_set(
    "shakespeare_leaf",
    lambda content: leaf_text.read(content, leaf_text.windows),
    VOCABULARY,
    LENGTH,
    description="Shakespeare's lines by role as LEAF's scripts write them, next character",
    folders=("shakespeare_leaf", "leaf/data/shakespeare/data"),
    files=leaf_text.FILES,
    loose=False,
    by_hand=(
        "Make it with LEAF's scripts (github.com/TalwalkarLab/leaf, in data/shakespeare) and put its folders train "
        "and test into a folder named shakespeare_leaf"
    ),
)
