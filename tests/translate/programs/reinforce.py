import argparse
import json
from itertools import count

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.distributions import Categorical

parser = argparse.ArgumentParser(description="PyTorch REINFORCE example")
parser.add_argument("--gamma", type=float, default=0.9)
parser.add_argument("--seed", type=int, default=543)
parser.add_argument("--episodes", type=int, default=40)
args = parser.parse_args()

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


class Corridor:
    """Walk right to the goal; a reward for each step in the right direction."""

    def reset(self, seed=None):
        self.place = 0
        return self.observation(), {}

    def observation(self):
        return np.array([self.place / 8, 1 - self.place / 8], dtype=np.float32)

    def step(self, action):
        self.place = max(0, self.place + (1 if action == 1 else -1))
        self.steps_left = getattr(self, "steps_left", 8) - 1
        done = self.place == 8 or self.steps_left <= 0
        if done:
            self.steps_left = 8
        return self.observation(), 1.0 if action == 1 else -1.0, done, False, {}


env = Corridor()
env.reset(seed=args.seed)
torch.manual_seed(args.seed)
if device.type == "cuda":
    torch.cuda.manual_seed(args.seed)


class Policy(nn.Module):
    def __init__(self):
        super(Policy, self).__init__()
        self.affine1 = nn.Linear(2, 16)
        self.affine2 = nn.Linear(16, 2)
        self.saved_log_probs = []
        self.rewards = []

    def forward(self, x):
        x = F.relu(self.affine1(x))
        return F.softmax(self.affine2(x), dim=1)


policy = Policy().to(device)
optimizer = optim.Adam(policy.parameters(), lr=3e-2)
eps = np.finfo(np.float32).eps.item()


def select_action(state):
    state = torch.from_numpy(state).float().unsqueeze(0).to(device)
    probs = policy(state)
    m = Categorical(probs)
    action = m.sample()
    policy.saved_log_probs.append(m.log_prob(action))
    return action.item()


def finish_episode():
    R = 0
    returns = []
    for r in policy.rewards[::-1]:
        R = r + args.gamma * R
        returns.insert(0, R)
    returns = torch.tensor(returns, device=device)
    policy_loss = []
    for log_prob, R in zip(policy.saved_log_probs, returns):
        policy_loss.append(-log_prob * R)
    optimizer.zero_grad()
    policy_loss = torch.cat(policy_loss).sum()
    policy_loss.backward()
    optimizer.step()
    del policy.rewards[:]
    del policy.saved_log_probs[:]


rewards = []
for i_episode in count(1):
    state, _ = env.reset()
    ep_reward = 0
    for t in range(1, 10000):
        action = select_action(state)
        state, reward, done, _, _ = env.step(action)
        policy.rewards.append(reward)
        ep_reward += reward
        if done:
            break
    rewards.append(ep_reward)
    finish_episode()
    if i_episode % 10 == 0:
        print(f"Episode {i_episode}\tLast reward: {ep_reward:.2f}\tAverage: {np.mean(rewards[-10:]):.2f}")
    if i_episode >= args.episodes:
        break
print(json.dumps({"losses": [-r for r in rewards], "gpu": device.type == "cuda"}))
