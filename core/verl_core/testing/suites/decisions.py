"""What every recovery policy, reward and algorithm must be: pure, total, and bounded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from ...protocols import Algorithm, RecoveryPolicy, Reward
from ...types import Action, BatchKey, Decision, Fault, FaultHistory, FaultKind, Prompt, Severity

_COUNTS = ("same_scope", "rebuilds_of_scope", "in_window")
ROLES = ("rollout", "train", "storage")
TRIES = 200


def history(**changes: object) -> FaultHistory:
    """Nothing happened yet, under the usual limits."""
    calm = FaultHistory(
        same_scope=0, rebuilds_of_scope=0, in_window=0, retry_times=3, retries_per_window=12, severity="light"
    )
    return replace(calm, **changes)  # type: ignore[arg-type]


def faults() -> list[Fault]:
    return [
        Fault(kind, role, "step 7" if role == "train" else "batch epoch_0/batch_3", "evidence", 7, (BatchKey(0, 3),))
        for kind in get_args(FaultKind)
        for role in ROLES
    ]


class RecoveryPolicySuite:
    """Needs the fixture ``policy``."""

    @pytest.fixture
    def policy(self) -> RecoveryPolicy:
        raise NotImplementedError("give a fixture `policy`")

    @pytest.mark.parametrize("severity", get_args(Severity))
    def test_every_fault_gets_a_known_action_with_a_reason_or_is_left_to_the_next_policy(
        self, policy: RecoveryPolicy, severity: str
    ) -> None:
        for fault in faults():
            decision = policy.decide(fault, history(severity=severity))
            if decision is not None:
                assert isinstance(decision, Decision)
                assert decision.action in get_args(Action)
                assert decision.reason.strip()

    def test_the_same_question_gets_the_same_answer(self, policy: RecoveryPolicy) -> None:
        asked = [(f, history(same_scope=n)) for f in faults() for n in range(4)]
        first = [policy.decide(fault, facts) for fault, facts in asked]
        again = [policy.decide(fault, facts) for fault, facts in reversed(asked)]
        assert first == again[::-1], "it depends on what it was asked before"

    def test_evidence_is_for_people_and_decides_nothing(self, policy: RecoveryPolicy) -> None:
        for fault in faults():
            other = policy.decide(replace(fault, evidence="something else"), history())
            assert getattr(policy.decide(fault, history()), "action", None) == getattr(other, "action", None)

    def test_nothing_is_tried_again_for_ever(self, policy: RecoveryPolicy) -> None:
        for fault in faults():
            decision = policy.decide(fault, history(**dict.fromkeys(_COUNTS, TRIES)))
            assert decision is None or decision.action not in ("retry", "reschedule", "rebuild"), fault

    def test_a_budget_of_none_is_respected(self, policy: RecoveryPolicy) -> None:
        for fault in faults():
            decision = policy.decide(fault, history(retry_times=0, retries_per_window=0))
            assert decision is None or decision.action not in ("retry", "reschedule", "rebuild"), fault


class RewardSuite:
    """Needs the fixtures ``reward``, and ``cases``: (prompt, response, score) that must come out."""

    @pytest.fixture
    def reward(self) -> Reward:
        raise NotImplementedError("give a fixture `reward`")

    @pytest.fixture
    def cases(self) -> Sequence[tuple[Prompt, str, float]]:
        raise NotImplementedError("give a fixture `cases`: (prompt, response, score)")

    def test_the_scores_are_right(self, reward: Reward, cases: Sequence[tuple[Prompt, str, float]]) -> None:
        prompts, responses, scores = zip(*cases, strict=True)
        assert reward.score(prompts, responses) == pytest.approx(scores)

    def test_a_score_depends_on_its_own_sample_alone(
        self, reward: Reward, cases: Sequence[tuple[Prompt, str, float]]
    ) -> None:
        """A batch that is made again after a kill, in another company, must get the same scores."""
        prompts, responses, _ = zip(*cases, strict=True)
        together = reward.score(prompts, responses)
        assert reward.score(prompts, responses) == together
        assert reward.score(prompts[::-1], responses[::-1]) == together[::-1]
        assert [reward.score([p], [r])[0] for p, r in zip(prompts, responses, strict=True)] == together

    def test_any_text_gets_a_finite_number(self, reward: Reward, cases: Sequence[tuple[Prompt, str, float]]) -> None:
        texts = ["", " ", "\n", "答案是 42", "x" * 5000, "\x00", "1/0", "nan", "#### ", "(" * 500]
        scores = reward.score([cases[0][0]] * len(texts), texts)
        assert len(scores) == len(texts)
        assert [(t[:20], s) for t, s in zip(texts, scores, strict=True) if not math.isfinite(s)] == []
        assert all(isinstance(score, float) for score in scores)

    def test_no_samples_get_no_scores(self, reward: Reward) -> None:
        assert list(reward.score([], [])) == []


class AlgorithmSuite:
    """Needs the fixture ``algorithm``. Imports torch."""

    @pytest.fixture
    def algorithm(self) -> Algorithm:
        raise NotImplementedError("give a fixture `algorithm`")

    def test_advantages_are_finite_and_one_a_sample(self, algorithm: Algorithm) -> None:
        for rewards in ([0.0, 1.0, 0.5, 0.25], [1.0] * 4, [0.0] * 4, [1e6, -1e6, 0.0, 1e-12]):
            found = algorithm.advantages(np.array(rewards), np.array([0, 0, 1, 1]))
            assert found.shape == (4,)
            assert np.isfinite(found).all()

    def test_advantages_follow_their_samples_in_any_order_and_change_nothing(self, algorithm: Algorithm) -> None:
        rng = np.random.default_rng(0)
        rewards, groups = rng.random(24), np.repeat(np.arange(6), 4)
        kept = rewards.copy(), groups.copy()
        found, order = algorithm.advantages(rewards, groups), rng.permutation(24)
        np.testing.assert_allclose(algorithm.advantages(rewards[order], groups[order]), found[order], rtol=1e-12)
        np.testing.assert_array_equal(algorithm.advantages(rewards, groups), found)
        np.testing.assert_array_equal(rewards, kept[0])
        np.testing.assert_array_equal(groups, kept[1])

    def test_the_loss_is_per_token_finite_and_has_a_gradient(self, algorithm: Algorithm) -> None:
        import torch

        torch.manual_seed(0)
        old = -torch.rand(4, 6)
        logp = (old + 0.05 * torch.randn(4, 6)).requires_grad_()
        advantages, mask = torch.tensor([1.0, -1.0, 0.5, 0.0]), torch.ones(4, 6)
        losses, more = algorithm.loss(logp, old, advantages, mask)
        assert losses.shape == (4, 6)
        assert torch.isfinite(losses).all()
        assert {name: value.shape for name, value in more.items() if value.shape != losses.shape} == {}
        (grad,) = torch.autograd.grad(losses.mean(), logp)
        assert torch.isfinite(grad).all()
        assert grad.abs().sum() > 0
        again, _ = algorithm.loss(logp.detach(), old, advantages, mask)
        assert torch.equal(again, losses.detach())

    def test_better_samples_become_more_likely(self, algorithm: Algorithm) -> None:
        import torch

        old = torch.full((2, 3), -1.0)
        logp = old.clone().requires_grad_()
        losses, _ = algorithm.loss(logp, old, torch.tensor([1.0, -1.0]), torch.ones(2, 3))
        (grad,) = torch.autograd.grad(losses.mean(), logp)
        assert (grad[0] < 0).all(), "descent raises the log-probability of what was good"
        assert (grad[1] > 0).all()
