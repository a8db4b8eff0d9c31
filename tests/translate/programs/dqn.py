import json
import math
import random
from collections import deque, namedtuple

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.autograd import Variable

use_cuda = torch.cuda.is_available()
FloatTensor = torch.cuda.FloatTensor if use_cuda else torch.FloatTensor
LongTensor = torch.cuda.LongTensor if use_cuda else torch.LongTensor
ByteTensor = torch.cuda.ByteTensor if use_cuda else torch.ByteTensor
Tensor = FloatTensor

device = torch.device("cuda" if use_cuda else "mps" if torch.backends.mps.is_available() else "cpu")

random.seed(0)
torch.manual_seed(0)
Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))


class ReplayMemory(object):
    def __init__(self, capacity):
        self.memory = deque([], maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, batch_size):
        return random.sample(self.memory, batch_size)

    def __len__(self):
        return len(self.memory)


class DQN(nn.Module):
    def __init__(self, n_observations, n_actions):
        super(DQN, self).__init__()
        self.layer1 = nn.Linear(n_observations, 32)
        self.layer2 = nn.Linear(32, n_actions)

    def forward(self, x):
        return self.layer2(F.relu(self.layer1(x)))


class Target:
    """A point is to be moved to the origin."""

    def reset(self):
        self.x, self.n = random.uniform(-1, 1), 0
        return [self.x, abs(self.x)]

    def step(self, action):
        self.x += 0.25 if action else -0.25
        self.n += 1
        return [self.x, abs(self.x)], -abs(self.x), abs(self.x) < 0.2, self.n >= 8


BATCH_SIZE, GAMMA, TAU, LR = 16, 0.8, 0.05, 1e-2
env = Target()
policy_net = DQN(2, 2).to(device)
target_net = DQN(2, 2).to(device)
target_net.load_state_dict(policy_net.state_dict())
optimizer = optim.AdamW(policy_net.parameters(), lr=LR, amsgrad=True)
memory = ReplayMemory(1000)
steps_done = 0
losses = []


def select_action(state):
    global steps_done
    eps_threshold = 0.05 + 0.85 * math.exp(-1.0 * steps_done / 30)
    steps_done += 1
    if random.random() > eps_threshold:
        with torch.no_grad():
            return policy_net(Variable(state)).max(1).indices.view(1, 1)
    return torch.tensor([[random.randrange(2)]], device=device, dtype=torch.long)


def optimize_model():
    if len(memory) < BATCH_SIZE:
        return
    batch = Transition(*zip(*memory.sample(BATCH_SIZE)))
    non_final_mask = torch.tensor(tuple(s is not None for s in batch.next_state), device=device, dtype=torch.bool)
    non_final_next_states = torch.cat([s for s in batch.next_state if s is not None])
    state_batch = torch.cat(batch.state)
    action_batch = torch.cat(batch.action)
    reward_batch = torch.cat(batch.reward)
    state_action_values = policy_net(state_batch).gather(1, action_batch)
    next_state_values = torch.zeros(BATCH_SIZE, device=device)
    with torch.no_grad():
        next_state_values[non_final_mask] = target_net(non_final_next_states).max(1).values
    expected_state_action_values = (next_state_values * GAMMA) + reward_batch
    loss = nn.SmoothL1Loss()(state_action_values, expected_state_action_values.unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()
    losses.append(loss.item())


num_episodes = 14 if torch.cuda.is_available() or torch.backends.mps.is_available() else 7
for i_episode in range(num_episodes):
    state = FloatTensor([env.reset()])
    while True:
        action = select_action(state)
        observation, reward, terminated, truncated = env.step(action.item())
        next_state = None if terminated else FloatTensor([observation])
        memory.push(state, action, next_state, FloatTensor([reward]))
        state = next_state
        optimize_model()
        target_net_state_dict = target_net.state_dict()
        for key, value in policy_net.state_dict().items():
            target_net_state_dict[key] = value * TAU + target_net_state_dict[key] * (1 - TAU)
        target_net.load_state_dict(target_net_state_dict)
        if terminated or truncated:
            break

done = ByteTensor([1, 0, 1])
best = LongTensor([3]).item()
print(json.dumps({"loss": losses[-1], "updates": len(losses), "gpu": use_cuda, "ones": int(done.sum()), "best": best}))
