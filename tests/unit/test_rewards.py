"""Rewards: pure scores, right for every shape in which models write an answer."""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from verl_core.config.schema import RewardConfig
from verl_core.data.procedural import make_rows
from verl_core.errors import DataError, InputError, PluginError
from verl_core.plugins import load
from verl_core.rewards import exact_match, gsm8k, reasoning_gym
from verl_core.rewards.exact_match import ExactMatchConfig
from verl_core.rewards.gsm8k import Gsm8kConfig
from verl_core.rewards.reasoning_gym import RUNS_RESPONSES, ReasoningGymConfig
from verl_core.rewards.swap import build_after, fit, swapped
from verl_core.state.history import Swap
from verl_core.types import BuildContext, Prompt, RewardSource

CONTEXT = BuildContext()
GSM8K = Path(__file__).parents[2].parent / "shared" / "data" / "gsm8k"


def prompt(answer: str, extra: Mapping[str, str] | None = None) -> Prompt:
    return Prompt(0, "q", answer, (1,), extra or {})


# --- exact_match -----------------------------------------------------------------------------


def test_exact_match_scores_one_for_the_answer_and_zero_for_all_else() -> None:
    reward = exact_match.build(ExactMatchConfig(), CONTEXT)
    responses = ["abc", " abc\n", "abcd", "", "ABC"]
    assert reward.score([prompt("abc")] * 5, responses) == [1.0, 1.0, 0.0, 0.0, 0.0]


def test_exact_match_can_be_stricter_and_looser() -> None:
    strict = exact_match.build(ExactMatchConfig(strip=False), CONTEXT)
    loose = exact_match.build(ExactMatchConfig(ignore_case=True), CONTEXT)
    assert strict.score([prompt("abc")], ["abc "]) == [0.0]
    assert loose.score([prompt("abc")], ["ABC "]) == [1.0]


# --- gsm8k -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "response"),
    [
        ("18", "#### 18"),
        ("#### 18", "so it is\n#### 18."),
        ("1080", "#### 1,080"),
        ("#### 1,080", "#### $1080.00"),
        ("-5", "#### -5"),
        ("0.5", "####.5"),
        ("3 + 4 = 7\n#### 7", "#### 3 no, #### 7"),
    ],
)
def test_gsm8k_finds_the_marked_number(answer: str, response: str) -> None:
    assert gsm8k.build(Gsm8kConfig(), CONTEXT).score([prompt(answer)], [response]) == [1.0]


@pytest.mark.parametrize("response", ["", "18", "the answer is 18", "#### 180", "#### -18", "####", "#### 1 8"])
def test_gsm8k_scores_zero_without_the_marked_number(response: str) -> None:
    assert gsm8k.build(Gsm8kConfig(), CONTEXT).score([prompt("18")], [response]) == [0.0]


@pytest.mark.parametrize(
    ("response", "score"),
    [
        ("it costs $18.", 1.0),
        ("12 + 6 = 18", 1.0),
        ("20-18", 1.0),
        ("18 or 19", 0.0),
        ("#### 19, not 18", 0.0),
        ("none", 0.0),
    ],
)
def test_gsm8k_flexible_takes_the_last_number_when_none_is_marked(response: str, score: float) -> None:
    assert gsm8k.build(Gsm8kConfig(flexible=True), CONTEXT).score([prompt("18")], [response]) == [score]


def test_gsm8k_pays_for_the_format_only_when_asked_to() -> None:
    reward = gsm8k.build(Gsm8kConfig(flexible=True, format_reward=0.1), CONTEXT)
    assert reward.score([prompt("18")] * 4, ["#### 3", "3", "#### 18", "####"]) == [0.1, 0.0, 1.0, 0.0]


def test_gsm8k_refuses_an_answer_column_without_numbers() -> None:
    with pytest.raises(DataError, match="no number"):
        gsm8k.build(Gsm8kConfig(), CONTEXT).score([prompt("many")], ["#### 3"])


@pytest.mark.skipif(not GSM8K.exists(), reason="GSM8K is not at hand")
@pytest.mark.parametrize("split", ["train", "test"])
def test_gsm8k_gives_every_worked_solution_full_marks(split: str) -> None:
    answers = [json.loads(line)["answer"] for line in (GSM8K / f"{split}.jsonl").open()]
    reward = gsm8k.build(Gsm8kConfig(), CONTEXT)
    prompts = [prompt(answer) for answer in answers]
    assert set(reward.score(prompts, answers)) == {1.0}
    assert set(reward.score(prompts, [answer.split("####")[0] for answer in answers])) == {0.0}


@given(st.text(max_size=60))
def test_gsm8k_takes_any_text(response: str) -> None:
    for config in (Gsm8kConfig(), Gsm8kConfig(flexible=True)):
        assert gsm8k.build(config, CONTEXT).score([prompt("7")], [response])[0] in (0.0, 1.0)


# --- a reward that takes another's place ------------------------------------------------------


@given(st.floats(0.01, 100), st.floats(-100, 100), st.lists(st.integers(-50, 50), min_size=2, max_size=9, unique=True))
def test_outputs_on_another_scale_are_brought_back(scale: float, shift: float, old: list[int]) -> None:
    new = [(value - shift) / scale for value in old]
    assert fit(new, [*map(float, old)]) == pytest.approx((scale, shift), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    ("new", "old"),
    [([1, 2, 3], [3, 2, 1]), ([1, 1, 1], [1, 2, 3]), ([1, 2, 3], [1, 1, 1]), ([1, math.nan], [1, 2]), ([1], [2])],
)
def test_outputs_that_do_not_go_with_the_old_ones_are_refused(new: list[float], old: list[float]) -> None:
    with pytest.raises(InputError, match="no positive scale fits") as raised:
        fit(new, old)
    assert "--no-warm-start" in raised.value.remedy


def test_a_reward_after_a_swap_is_the_new_one_on_its_scale_and_before_it_the_old_one() -> None:
    registry, first = load([], defaults=False).registry, RewardConfig("exact_match", {"strip": False})
    source = (RewardSource("exact_match"), RewardSource("gsm8k"))
    swaps = [Swap(*source, 4, scale=0.5, shift=0.25, samples=9, attempt=1)]
    responses = ["#### 7", "7"]
    for taken, wanted in ((swaps, [0.75, 0.25]), ([], [0.0, 1.0])):
        assert build_after(registry, first, taken, CONTEXT).score([prompt("7")] * 2, responses) == wanted


def test_options_stay_where_the_reward_keeps_its_name() -> None:
    first = RewardConfig("model", {"path": "/a", "dtype": "bfloat16"})
    assert swapped(first, "model", "/b").options == {"path": "/b", "dtype": "bfloat16"}
    assert swapped(first, "exact_match", "").options == {}


# --- reasoning_gym ---------------------------------------------------------------------------


def made(name: str, **options: object) -> Prompt:
    (row,), _ = make_rows(f"reasoning_gym:{name}", options, 1, 5)
    values = {key: str(value) for key, value in row.values.items()}
    return prompt(values["answer"], {key: values[key] for key in ("task", "task_options", "entry")})


@pytest.mark.parametrize("name", ["chain_sum", "arc_1d", "rearc", "knights_knaves", "word_ladder"])
def test_reasoning_gym_gives_its_own_answer_full_marks(name: str) -> None:
    """``rearc`` compares tuples: they must come back from the prompt as tuples."""
    reward, one = reasoning_gym.build(ReasoningGymConfig(), CONTEXT), made(name)
    assert reward.score([one, one], [f" {one.answer}\n", one.answer]) == [1.0, 1.0]
    assert reward.score([one], ["certainly wrong"])[0] < 0.1


def test_reasoning_gym_scores_with_the_options_that_made_the_task() -> None:
    """The tolerance of this scorer is one unit of the last decimal place that the options name."""
    fine, coarse = (
        made("decimal_arithmetic"),
        made("decimal_arithmetic", min_num_decimal_places=1, max_num_decimal_places=1),
    )
    reward = reasoning_gym.build(ReasoningGymConfig(), CONTEXT)
    near = [str(Decimal(one.answer) + Decimal("0.05")) for one in (fine, coarse)]
    assert reward.score([fine, coarse], near) == [0.0, 1.0]


def test_reasoning_gym_gives_nothing_for_a_response_that_its_scorer_cannot_read() -> None:
    reward = reasoning_gym.build(ReasoningGymConfig(), CONTEXT)
    assert reward.score([made("prime_factorization")], ["hello world"]) == [0.0]
    assert reward.score([made("game_of_life")], ["{}"]) == [0.0]


def test_reasoning_gym_reads_a_tag_when_told_to() -> None:
    one = made("chain_sum")
    reward = reasoning_gym.build(ReasoningGymConfig(tag="answer"), CONTEXT)
    tagged = f"<answer>1</answer> no: <answer>\n{one.answer}\n</answer>"
    assert reward.score([one, one], [tagged, one.answer]) == [1.0, 0.0]


def test_reasoning_gym_never_runs_a_response_unless_told_to(tmp_path: Path) -> None:
    one, trace = made("n_queens"), tmp_path / "ran"
    response = f"[open({str(trace)!r}, 'w')]"
    with pytest.raises(PluginError, match="run_responses"):
        reasoning_gym.build(ReasoningGymConfig(), CONTEXT).score([one], [response])
    assert not trace.exists()
    reasoning_gym.build(ReasoningGymConfig(run_responses=True), CONTEXT).score([one], [response])
    assert trace.exists()


def test_every_scorer_that_evaluates_text_is_on_the_list() -> None:
    from reasoning_gym.factory import DATASETS

    found = set()
    for name, (dataset, _) in DATASETS.items():
        source = inspect.getsource(dataset.score_answer)
        if re.search(r"(?<![\w.])(eval|exec)\(|(sp|sympy)\.parse_expr\(|(?<![\w.])parse_expr\(|sympify\(", source):
            found.add(name)
    assert found == RUNS_RESPONSES


def test_reasoning_gym_refuses_prompts_of_another_origin() -> None:
    with pytest.raises(DataError, match=r"data\.task"):
        reasoning_gym.build(ReasoningGymConfig(), CONTEXT).score([prompt("3")], ["3"])
