"""The networks that know loop nests: one judges a schedule, one chooses the next action at a cursor.

Both read an observation in the same way: every loop is a token that knows its place from the outside and from the
inside, and attends to the others (Vaswani et al., arXiv 1706.03762), since what a loop is worth depends on the loops of
the same dimension and on what lies within it.
"""
import torch
from torch import nn

from znn.tuner.estimate import ESTIMATES
from znn.tuner.moves import ACTIONS
from znn.tuner.observation import CIRCUMSTANCES, FEATURES, parts
from znn.tuner.problem import MAX_LOOPS

WIDTH, HEADS, LAYERS = 48, 4, 1
CURSOR = FEATURES.index("cursor")


class Reader(nn.Module):
    """Observations (n, observation.SIZE) to features (n, 4 * width): the loop at the cursor, sum and largest, and what
    is counted."""

    def __init__(self, width=WIDTH, heads=HEADS, layers=LAYERS):
        super().__init__()
        self.size = 4 * width
        self.counts = nn.Sequential(nn.Linear(len(ESTIMATES), width), nn.ReLU(), nn.Linear(width, width))
        self.token = nn.Linear(len(FEATURES) + len(CIRCUMSTANCES), width)
        self.outside, self.inside = (nn.Parameter(0.1 * torch.randn(MAX_LOOPS, width)) for _ in range(2))
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.attend = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)

    def forward(self, observation):
        loops, there, circumstances, counts = parts(observation)
        there = there > 0.5
        count = there.sum(1)
        place = torch.arange(MAX_LOOPS, device=loops.device)
        inside = (count[:, None] - 1 - place).clamp(min=0)
        tokens = self.token(torch.cat([loops, circumstances[:, None].expand(-1, MAX_LOOPS, -1)], -1))
        tokens = self.attend(tokens + self.outside + self.inside[inside], src_key_padding_mask=~there)
        tokens = tokens * there[..., None]
        at = (tokens * loops[..., CURSOR:CURSOR + 1]).sum(1)
        total = tokens.sum(1) / MAX_LOOPS ** 0.5  # what loops repeat multiplies: logs add up
        largest = tokens.masked_fill(~there[..., None], -torch.inf).amax(1)
        return torch.cat([at, total, largest, self.counts(counts)], 1)


class Judge(nn.Module):
    """Observations (n, SIZE) to how good the schedule is, (n,): the logarithm of a share of the peak, up to what is the
    same for all schedules of a problem."""

    def __init__(self, **reader):
        super().__init__()
        self.reader = Reader(**reader)
        self.see = nn.Sequential(nn.Linear(self.reader.size, WIDTH), nn.ReLU())
        self.head = nn.Linear(WIDTH, 1)

    def features(self, observation):
        """What it judges by, (n, WIDTH)."""
        return self.see(self.reader(observation))

    def judged(self, features):
        """Of what `features` gave, (n,)."""
        return self.head(features).squeeze(1)

    def forward(self, observation):
        return self.judged(self.features(observation))


class Judges(nn.Module):
    """The mean of several judges, (n,): what one of them happens to overrate, the others do not."""

    def __init__(self, count, **reader):
        super().__init__()
        self.members = nn.ModuleList(Judge(**reader) for _ in range(count))

    def seen(self, observation):
        """Judgements, (n,), and what the judges judge by, (n, members * WIDTH)."""
        features = [judge.features(observation) for judge in self.members]
        judgements = torch.stack([judge.judged(f) for judge, f in zip(self.members, features)])
        return judgements.mean(0), torch.cat(features, 1)

    def forward(self, observation):
        return self.seen(observation)[0]


class Actor(nn.Module):
    """Observations (n, SIZE) to the logits of `moves.ACTIONS`, (n, len(ACTIONS)), and the gain to come, (n,)."""

    def __init__(self, **reader):
        super().__init__()
        self.reader = Reader(**reader)
        self.choose = nn.Sequential(nn.Linear(self.reader.size, WIDTH), nn.Tanh(), nn.Linear(WIDTH, len(ACTIONS)))
        self.hope = nn.Sequential(nn.Linear(self.reader.size, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))

    def forward(self, observation):
        features = self.reader(observation)
        return self.choose(features), self.hope(features).squeeze(1)
