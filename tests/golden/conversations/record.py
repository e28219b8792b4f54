"""Inputs of the other recorders. None of them was recorded, so there is nothing to record anew."""

from __future__ import annotations

from recording import Recorder

RECORDER = Recorder(
    libraries={},
    parts={},
    given={
        "dummy_conversation.json": "data/dummy_conversation.json of FastChat (Apache-2.0)",
        "sharegpt_single_turn.json": "999 conversations of one turn in ShareGPT's form",
        "sharegpt_multi_turn.json": "800 conversations of several turns in ShareGPT's form",
        "edge_cases.json": "63 conversations written by hand, at least one for each branch of preprocess()",
        "tokenizer_edge_texts.json": "271 hard texts, by hand and of characters of each Unicode category",
        "wiki_demo.txt": "articles of Wikipedia, one a line",
    },
)
