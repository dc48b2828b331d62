"""``earliest`` and ``latest`` are the words for the ends of a queue everywhere; ``first`` and ``last`` are accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mqfast
from mqfast.client.admin.plan import target_of
from mqfast.client.consumer.queue_bounds import check_from_where
from mqfast.spark.options import BATCH, parse
from mqfast.util.offset_words import end_word

SAME = pytest.mark.parametrize(("word", "plain"), [("earliest", "earliest"), ("first", "earliest"), ("last", "latest")])


@SAME
def test_each_way_to_name_an_end_takes_both_words(word: Any, plain: str, tmp_path: Path) -> None:
    assert end_word(word) == plain
    assert check_from_where(word) == plain
    assert target_of(word, of_one_queue=False) == target_of(plain, of_one_queue=False)  # type: ignore[arg-type]
    options = [parse({"path": str(tmp_path), "startingOffsets": text}, BATCH) for text in (word, plain)]
    assert options[0].starting_offsets == options[1].starting_offsets
    mqfast.PullConsumer("g", "127.0.0.1:9", from_where=word, offset_reset=word)
    with mqfast.open(tmp_path / "s") as store:
        store.put("T", b"1")
        assert [m.body for m in store.consumer("g", "T", offset_reset=word)] == [b"1"]


def test_another_word_is_refused_with_both_that_are_meant() -> None:
    with pytest.raises(mqfast.errors.ConfigError, match="'latest', 'earliest'"):
        check_from_where("begin")
