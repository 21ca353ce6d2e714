"""Reddit comments by author, for next-word prediction: 10 words per sequence, a vocabulary of 10 000.

`reddit` is 20 227 comments of 3203 authors from Pushshift's monthly dumps (Baumgartner et al. 2020) of December 2005 to
March 2006: one JSON line a comment, sorted by author and month, authors as numbers, addresses replaced by <url>,
<email> and <phone>. `reddit_leaf` is the output of LEAF's scripts for December 2017 (Caldas et al. 2018).
"""

from __future__ import annotations

from sparsefed.data.formats import jsonl as comments
from sparsefed.data.formats import leaf_text
from sparsefed.data.formats.tokens import held_out, words
from sparsefed.data.record import DataFile
from sparsefed.data.sets.text_sets import text_set

VOCABULARY, LENGTH = 10_000, 10
FILE = DataFile(
    "reddit_pushshift_2005-12_2006-03.jsonl",
    6_133_075,
    "5453d0806f8cbe56f51eef9947bf503659b03e9bb622c8e6b3b38e8e75b2baa0",
)

DATASET = text_set(
    "reddit",
    lambda content: held_out(comments.parse(content(FILE.name), words, FILE.name)),
    VOCABULARY,
    LENGTH,
    description="Reddit comments by author, 2005-12 to 2006-03, next word, 3203 users",
    files=(FILE,),
    by_hand="It is published nowhere in this form: ask who has it, or use reddit_leaf, which LEAF's scripts make",
)
LEAF = text_set(
    "reddit_leaf",
    lambda content: leaf_text.read(content, leaf_text.comments),
    VOCABULARY,
    LENGTH,
    description="Reddit comments by author as LEAF's scripts write them, next word",
    folders=("reddit_leaf", "leaf/data/reddit/data"),
    files=leaf_text.FILES,
    loose=False,
    by_hand=(
        "Make it with LEAF's scripts (github.com/TalwalkarLab/leaf, in data/reddit) and put its folders train and "
        "test into a folder named reddit_leaf"
    ),
)
