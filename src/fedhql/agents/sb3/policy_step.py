"""Draw a policy towards action values, by a step whose KL divergence is limited."""

import torch
from stable_baselines3.common.policies import ActorCriticPolicy

from fedhql.agents.sb3.regression import take_step
from fedhql.agents.sb3.settings import RolloutSettings


def drawn_towards(
    log_policy_BA: torch.Tensor, q_BA: torch.Tensor, temperature: float
) -> torch.Tensor:
    """Return the policy that is proportional to π(a|s) · exp(A(s, a) / temperature): (B, A).

    A(s, a) = Q(s, a) - Σ π(a'|s) Q(s, a') is divided by its mean size over the batch, so that the
    temperature does not depend on the scale of rewards.
    """
    advantages_BA = q_BA - (log_policy_BA.exp() * q_BA).sum(dim=1, keepdim=True)
    unit = advantages_BA.abs().mean().clamp(min=torch.finfo(q_BA.dtype).tiny)
    return torch.softmax(log_policy_BA + advantages_BA / (temperature * unit), dim=1)


def mean_kl(log_p_BA: torch.Tensor, log_q_BA: torch.Tensor) -> float:
    """Return the mean of KL(p || q) over a batch of log-probabilities."""
    return float((log_p_BA.exp() * (log_p_BA - log_q_BA)).sum(dim=1).mean())


class PolicyStep:
    """Moves the policy network of an actor-critic; the critic stays as it is."""

    def __init__(self, policy: ActorCriticPolicy, settings: RolloutSettings) -> None:
        self._policy, self._settings = policy, settings
        networks = (policy.mlp_extractor.policy_net, policy.action_net)
        self._parameters = [each for network in networks for each in network.parameters()]
        self.optimiser = torch.optim.Adam(
            self._parameters, lr=settings.policy_improvement_learning_rate
        )
        self.kl = 0.0  # KL(π before || π after) of the last step

    def draw(self, states_t: torch.Tensor, q_BA: torch.Tensor) -> None:
        """Draw the policy at the states towards the values.

        Gradient steps reduce KL(wanted || π). One that brings KL(π before || π) above the limit is
        undone and ends the step.
        """
        settings = self._settings
        self.kl = 0.0
        if settings.policy_improvement_kl_limit == 0:
            return  # rounding can hide the KL of a step, if the policy is almost certain
        with torch.no_grad():
            before_BA = self._log_probabilities(states_t)
            wanted_BA = drawn_towards(before_BA, q_BA, settings.policy_improvement_temperature)
        for _ in range(settings.policy_improvement_steps):
            kept = [each.detach().clone() for each in self._parameters]
            loss = -(wanted_BA * self._log_probabilities(states_t)).sum(dim=1).mean()
            take_step(self.optimiser, loss, settings.max_grad_norm)
            with torch.no_grad():
                kl = mean_kl(before_BA, self._log_probabilities(states_t))
                if not kl <= settings.policy_improvement_kl_limit:  # also for NaN
                    for parameter, value in zip(self._parameters, kept, strict=True):
                        parameter.copy_(value)
                    return
            self.kl = kl

    def _log_probabilities(self, states_t: torch.Tensor) -> torch.Tensor:
        """Return log π(a|s) of every action: (B, A)."""
        categorical = self._policy.get_distribution(states_t).distribution
        assert isinstance(categorical, torch.distributions.Categorical)
        return categorical.logits
