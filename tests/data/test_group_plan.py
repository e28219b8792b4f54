"""Loss weights and padding-free micro-batches of one optimizer step."""

import numpy as np
import pytest

from fastsft import _C

LENGTHS = np.array([5, 9, 3, 7, 20, 4, 6, 2])
TARGETS = np.array([2, 4, 0, 3, 10, 1, 5, 0])
GROUP = [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


def plans(group=GROUP, budget=12, **options):
    return [
        _C.plan_group(LENGTHS, TARGETS, group, rank, micro_batch_tokens=budget, **options)
        for rank in range(len(group))
    ]


def weight_of_each_row(plan):
    return {
        int(row): float(weight)
        for rows, weights in zip(plan.micro_batches, plan.weights, strict=True)
        for row, weight in zip(rows, weights, strict=True)
    }


def moved(group=GROUP, **options):
    """Weight of every conversation, over all ranks."""
    weights = {}
    for plan in plans(group, **options):
        weights |= weight_of_each_row(plan)
    return weights


def test_conversations_move_between_ranks_and_keep_the_budget():
    first, second = plans()
    # 20 tokens do not fit into 12: alone. 11 and 11 go to the other rank, 9 to the one with 20.
    assert [sorted(rows.tolist()) for rows in first.micro_batches] == [[4], [1]]
    assert [sorted(rows.tolist()) for rows in second.micro_batches] == [[3, 5], [0, 6]]
    assert first.num_targets == second.num_targets == 25
    assert first.num_conversations == 8 and first.num_tokens == LENGTHS.sum()


@pytest.mark.parametrize("budget", [1, 8, 12, 21, 10_000])
def test_every_learned_row_once(budget):
    both = plans(budget=budget)
    rows = [row for plan in both for batch in plan.micro_batches for row in batch.tolist()]
    assert sorted(rows) == np.flatnonzero(TARGETS).tolist()
    for batch in (batch for plan in both for batch in plan.micro_batches):
        assert len(batch) <= 1 or LENGTHS[batch].sum() <= budget
    assert len({len(plan.micro_batches) for plan in both}) == 1


def test_token_mean_over_all_ranks():
    for plan in plans():
        assert set(weight_of_each_row(plan).values()) == {1 / 25}


def test_token_mean_of_each_rank():
    weights = moved(average_tokens_across_devices=False)
    assert weights == {row: 1 / (9 * 2) if row < 4 else 1 / (16 * 2) for row in (0, 1, 3, 4, 5, 6)}


def test_labels_before_the_shift():
    """Rows 0, 2 and 4 learn their first token; row 2 teaches nothing else and is counted all the same."""
    labels = {"loss_norm": "global_labels", "label_counts": TARGETS + np.array([1, 0, 1, 0, 1, 0, 0, 0])}
    assert set(moved(**labels).values()) == {1 / 28}
    weights = moved(**labels, average_tokens_across_devices=False)
    assert weights == {row: 1 / (11 * 2) if row < 4 else 1 / (17 * 2) for row in (0, 1, 3, 4, 5, 6)}
    assert moved(**{**labels, "loss_norm": "global_tokens"}) == moved()
    assert all(plan.num_targets == 25 for plan in plans(**labels))


def test_mean_of_micro_batch_means():
    weights = moved(loss_norm="micro_batch")
    assert weights == {0: 1 / 24, 1: 1 / 24, 3: 1 / 12, 4: 1 / 44, 5: 1 / 44, 6: 1 / 20}


def test_a_row_that_wraps_around_counts_twice():
    plan = plans([[[0, 1, 0]]])[0]
    assert sorted(row for rows in plan.micro_batches for row in rows.tolist()) == [0, 0, 1]
    assert plan.num_targets == 8 and plan.num_conversations == 3


def test_nothing_to_learn_is_one_empty_micro_batch():
    for plan in plans([[[2]], [[7]]]):
        assert [rows.tolist() for rows in plan.micro_batches] == [[]]
        assert plan.num_targets == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss_norm": "tokens"}, "known: global_tokens, global_labels, micro_batch"),
        ({"label_counts": TARGETS[:3]}, "a label count for each of 8 target counts, got 8 and 3"),
        ({"budget": 0}, "micro_batch_tokens of at least 1"),
        ({"group": [[[8]]]}, "row 8 is not in a data set of 8 rows"),
    ],
)
def test_bad_requests(options, message):
    with pytest.raises(ValueError, match=message):
        plans(**options)
