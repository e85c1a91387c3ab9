"""The models that Python and C++ train side by side; models.h holds the same ones.

Submodules are registered in the same order and under the same names there, so that weights can be
exchanged by name and gradients meet in the same buckets. Each model comes with a function that makes
one batch from a generator and returns the loss, with the same calls in the same order.
"""

import torch
import torch.nn.functional as F
from torch import nn


class Mlp(nn.Module):
    def __init__(self, sizes=(20, 64, 64, 10)):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        return self.layers[-1](x)


def mlp_loss(model, data, step, rank):
    x = torch.rand((8, 20), generator=data)
    target = torch.randint(10, (8,), generator=data)
    return F.cross_entropy(model(x), target)


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2)
        self.norm2 = nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.relu(self.norm2(self.conv2(x)))
        return self.head(x.mean((2, 3)))


def convnet_loss(model, data, step, rank):
    x = torch.rand((8, 3, 12, 12), generator=data)
    target = torch.randint(10, (8,), generator=data)
    return F.cross_entropy(model(x), target)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width)
        self.attn = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.fc = nn.Linear(width, 4 * width)
        self.fc_proj = nn.Linear(4 * width, width)

    def attention(self, x):
        batch, length, width = x.shape
        parts = self.attn(x).split(width, 2)
        q, k, v = (part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
                   for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.fc_proj(F.gelu(self.fc(self.ln_2(x))))


class TiedHead(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def forward(self, x):
        return F.linear(x, self.weight)


class Gpt(nn.Module):
    def __init__(self, vocabulary=65, length=16, width=64, layers=2, heads=4):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.head = TiedHead(self.wte.weight)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.size(1)))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))


def gpt_loss(model, data, step, rank):
    tokens = torch.randint(65, (4, 17), generator=data)
    logits = model(tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(20, 32)
        self.left = nn.Linear(32, 32)
        self.right = nn.Linear(32, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, x, choice):
        x = F.relu(self.stem(x))
        if choice == 0:
            x = self.left(x)
        elif choice == 1:
            x = self.right(x)
        return self.head(F.relu(x))


def unused_loss(model, data, step, rank):
    # In even steps both ranks take the same way, in odd ones different ways; way 2 uses neither
    # branch.
    choice = (step + rank * (step % 2)) % 3
    x = torch.rand((8, 20), generator=data)
    target = torch.randint(10, (8,), generator=data)
    return F.cross_entropy(model(x, choice), target)


class SparseBag(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(100, 16, sparse=True)
        self.head = nn.Linear(16, 10)

    def forward(self, tokens):
        return self.head(self.embedding(tokens).mean(1))


def sparse_loss(model, data, step, rank):
    tokens = torch.randint(100, (8, 5), generator=data)
    target = torch.randint(10, (8,), generator=data)
    return F.cross_entropy(model(tokens), target)


MODELS = {
    "mlp": (Mlp, mlp_loss),
    "convnet": (ConvNet, convnet_loss),
    "gpt": (Gpt, gpt_loss),
    "unused": (Branches, unused_loss),
    "sparse": (SparseBag, sparse_loss),
}
