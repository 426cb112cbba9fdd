"""Reinforcement learning of the actor, with the optional extra ``tune``.

Proximal policy optimisation with masked actions (Huang and Ontanon, arXiv 2006.14171) or deep Q-learning (Mnih et al.,
Nature 2015), which is told of illegal actions by their having no effect.  Both read observations with the actor's own
reader, and what they learned is an `Actor` afterwards; the values of actions are its logits for Q-learning.
"""
import gymnasium
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from znn.tuner.agent.network import WIDTH, Actor, Reader

GAMMA = 0.95
PPO = {"n_steps": 1024, "batch_size": 256, "n_epochs": 6, "gamma": GAMMA, "gae_lambda": 0.9, "ent_coef": 0.01,
       "learning_rate": 5e-4, "max_grad_norm": 0.5}
Q_LEARNING = {"learning_rate": 3e-4, "buffer_size": 100_000, "learning_starts": 2_000, "batch_size": 128,
              "gamma": GAMMA, "train_freq": 4, "target_update_interval": 1_000, "exploration_fraction": 0.3,
              "exploration_final_eps": 0.05}
REWARD = 10.0  # a gain of a tenth of the peak is a reward of 1


class Found(gymnasium.Wrapper):
    """Rewards what is better than all that the episode came by before: a walk is as good as the best on its way, since
    all of it is proposed, and may cross what is bad."""

    def reset(self, **options):
        observation, info = self.env.reset(**options)
        self._best = info["share"]
        return observation, info

    def step(self, action):
        observation, _, *ended, info = self.env.step(action)
        gain = max(0.0, info["share"] - self._best)
        self._best += gain
        return observation, REWARD * gain, *ended, info

    def action_masks(self):
        """As of the environment."""
        return self.env.action_masks()


class Curve(BaseCallback):
    """Mean gain in share of the peak of the last episodes' best, while learning; `points` are (steps, gain)."""

    def __init__(self, every=1_000):
        super().__init__()
        self.every, self.points = every, []

    def _on_step(self):
        if self.num_timesteps % self.every == 0 and self.model.ep_info_buffer:
            gain = sum(e["r"] for e in self.model.ep_info_buffer) / len(self.model.ep_info_buffer) / REWARD
            self.points.append((self.num_timesteps, gain))
            print(f"{self.num_timesteps} steps: mean gain {gain:+.4f} of the peak", flush=True)
        return True


class Extractor(BaseFeaturesExtractor):
    """The actor's reader, as Stable-Baselines3 asks for it."""

    def __init__(self, space):
        reader = Reader()
        super().__init__(space, reader.size)
        self.reader = reader

    def forward(self, observations):
        return self.reader(observations)


POLICY = {"features_extractor_class": Extractor, "activation_fn": torch.nn.Tanh}


def ppo(environments, steps, seed=0, reader=None, callback=None):
    """An `Actor` learned by masked PPO.

    Parameters
    ----------
    environments : list of callable
        Each makes an environment; with several, each has a process of its own.
    steps : int
        Actions, of all environments together.
    seed : int
    reader : state dict, optional
        Of a `Reader`, to begin with: a judge's.
    callback : stable_baselines3 callback, optional
    """
    widths = {"pi": [WIDTH], "vf": [WIDTH]}
    model = MaskablePPO("MlpPolicy", _vector(environments), policy_kwargs=POLICY | {"net_arch": widths}, seed=seed,
                        device="cpu", **PPO)
    _begin(model.policy.features_extractor, reader)
    model.learn(steps, callback=callback)
    return actor_of_ppo(model)


def actor_of_ppo(model):
    """What a masked PPO has learned so far."""
    policy = model.policy
    return _actor(policy.features_extractor, (policy.mlp_extractor.policy_net[0], policy.action_net),
                  (policy.mlp_extractor.value_net[0], policy.value_net))


def dqn(environments, steps, seed=0, reader=None, callback=None):
    """An `Actor` learned by deep Q-learning; parameters as for `ppo`."""
    model = DQN("MlpPolicy", _vector(environments), policy_kwargs=POLICY | {"net_arch": [WIDTH]}, seed=seed,
                device="cpu", **Q_LEARNING)
    for network in (model.q_net, model.q_net_target):
        _begin(network.features_extractor, reader)
    model.learn(steps, callback=callback)
    return actor_of_dqn(model)


def actor_of_dqn(model):
    """What deep Q-learning has learned so far."""
    net = model.q_net
    return _actor(net.features_extractor, (net.q_net[0], net.q_net[2]))


def _vector(environments):
    scaled = [lambda make=make: Monitor(Found(make())) for make in environments]
    return DummyVecEnv(scaled) if len(scaled) == 1 else SubprocVecEnv(scaled, start_method="fork")


def _begin(extractor, reader):
    if reader is not None:
        extractor.reader.load_state_dict(reader)


def _actor(extractor, choose, hope=None):
    """An `Actor` from parts of a learner: (hidden layer, last layer) of its heads."""
    actor = Actor()
    actor.reader.load_state_dict(extractor.reader.state_dict())
    for head, layers in ((actor.choose, choose), (actor.hope, hope)):
        if layers:
            head[0].load_state_dict(layers[0].state_dict())
            head[2].load_state_dict(layers[1].state_dict())
    return actor.eval()
