"""The Transformer of the tutorials in plain PyTorch: what lockstep's is compared with, and what loads its files.

Names are the tutorials'. The norm is torch's layer_norm, as in lockstep.
"""

import math

import torch
from torch import nn

PAD, SOS, EOS = 1, 2, 3


class LayerNormalization(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x):
        return nn.functional.layer_norm(x, x.shape[-1:], self.alpha, self.bias, 1e-6)


class FeedForwardBlock(nn.Module):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.linear_1 = nn.Linear(d_model, d_ff)
        self.linear_2 = nn.Linear(d_ff, d_model)

    def forward(self, x):
        return self.linear_2(torch.relu(self.linear_1(x)))


class InputEmbeddings(nn.Module):
    def __init__(self, d_model, vocab_size):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)

    def forward(self, x):
        return self.embedding(x) * math.sqrt(self.embedding.embedding_dim)


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, seq_len):
        super().__init__()
        pe = torch.zeros(seq_len, d_model)
        position = torch.arange(0, seq_len, dtype=torch.float).unsqueeze(1)
        rate = torch.exp(torch.arange(0, d_model, 2).float() * (-math.log(10000.0) / d_model))
        pe[:, 0::2] = torch.sin(position * rate)
        pe[:, 1::2] = torch.cos(position * rate)
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, x):
        return x + self.pe[:, :x.shape[1]]


class ResidualConnection(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = LayerNormalization(features)

    def forward(self, x, part):
        return x + part(self.norm(x))


class MultiHeadAttentionBlock(nn.Module):
    def __init__(self, d_model, h):
        super().__init__()
        self.h = h
        self.w_q = nn.Linear(d_model, d_model, bias=False)
        self.w_k = nn.Linear(d_model, d_model, bias=False)
        self.w_v = nn.Linear(d_model, d_model, bias=False)
        self.w_o = nn.Linear(d_model, d_model, bias=False)

    def forward(self, q, k, v, mask):
        def heads(x):
            return x.view(x.shape[0], x.shape[1], self.h, -1).transpose(1, 2)

        query, key, value = heads(self.w_q(q)), heads(self.w_k(k)), heads(self.w_v(v))
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        scores = scores.masked_fill(mask == 0, -1e9).softmax(dim=-1)
        x = (scores @ value).transpose(1, 2).contiguous()
        return self.w_o(x.view(x.shape[0], x.shape[1], -1))


class EncoderBlock(nn.Module):
    def __init__(self, d_model, h, d_ff):
        super().__init__()
        self.self_attention_block = MultiHeadAttentionBlock(d_model, h)
        self.feed_forward_block = FeedForwardBlock(d_model, d_ff)
        self.residual_connections = nn.ModuleList(ResidualConnection(d_model) for _ in range(2))

    def forward(self, x, mask):
        x = self.residual_connections[0](x, lambda x: self.self_attention_block(x, x, x, mask))
        return self.residual_connections[1](x, self.feed_forward_block)


class DecoderBlock(nn.Module):
    def __init__(self, d_model, h, d_ff):
        super().__init__()
        self.self_attention_block = MultiHeadAttentionBlock(d_model, h)
        self.cross_attention_block = MultiHeadAttentionBlock(d_model, h)
        self.feed_forward_block = FeedForwardBlock(d_model, d_ff)
        self.residual_connections = nn.ModuleList(ResidualConnection(d_model) for _ in range(3))

    def forward(self, x, memory, memory_mask, mask):
        x = self.residual_connections[0](x, lambda x: self.self_attention_block(x, x, x, mask))
        x = self.residual_connections[1](
            x, lambda x: self.cross_attention_block(x, memory, memory, memory_mask))
        return self.residual_connections[2](x, self.feed_forward_block)


class Stack(nn.Module):
    """Encoder or decoder."""

    def __init__(self, layers, d_model):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = LayerNormalization(d_model)

    def forward(self, x, *rest):
        for layer in self.layers:
            x = layer(x, *rest)
        return self.norm(x)


class ProjectionLayer(nn.Module):
    def __init__(self, d_model, vocab_size):
        super().__init__()
        self.proj = nn.Linear(d_model, vocab_size)

    def forward(self, x):
        return self.proj(x)


class Transformer(nn.Module):
    def __init__(self, src_vocab_size, tgt_vocab_size, src_seq_len, tgt_seq_len, d_model, N, h, d_ff):
        super().__init__()
        self.encoder = Stack((EncoderBlock(d_model, h, d_ff) for _ in range(N)), d_model)
        self.decoder = Stack((DecoderBlock(d_model, h, d_ff) for _ in range(N)), d_model)
        self.src_embed = InputEmbeddings(d_model, src_vocab_size)
        self.tgt_embed = InputEmbeddings(d_model, tgt_vocab_size)
        self.src_pos = PositionalEncoding(d_model, src_seq_len)
        self.tgt_pos = PositionalEncoding(d_model, tgt_seq_len)
        self.projection_layer = ProjectionLayer(d_model, tgt_vocab_size)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)

    def forward(self, source, target):
        source_mask = (source != PAD)[:, None, None, :]
        causal = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).tril()
        target_mask = (target != PAD)[:, None, None, :] & causal
        memory = self.encoder(self.src_pos(self.src_embed(source)), source_mask)
        decoded = self.decoder(self.tgt_pos(self.tgt_embed(target)), memory, source_mask, target_mask)
        return self.projection_layer(decoded)

    def loss(self, source, target, labels):
        logits = self(source, target)
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=PAD,
                                           label_smoothing=0.1)


def beam_search(model, source, beam, max_tokens, length_penalty):
    """One source [S] without padding. Returns tokens, log probability and whether it has ended."""
    growing, ended, unfinished = [([], 0.0)], [], []
    for length in range(1, max_tokens + 1):
        candidates = []
        targets = torch.tensor([[SOS, *tokens] for tokens, _ in growing])
        all_follow = model(source.expand(len(growing), -1), targets)[:, -1].log_softmax(-1)
        for (tokens, score), follows in zip(growing, all_follow):
            candidates += [(score + value, tokens, token) for token, value in enumerate(follows.tolist())
                           if token != PAD]
        candidates.sort(key=lambda candidate: -candidate[0])
        growing = []
        for rank, (score, tokens, token) in enumerate(candidates):
            if len(growing) == beam:
                break
            if token != EOS:
                growing.append(([*tokens, token], score))
            elif rank < beam:
                ended.append((tokens, score, True))
        if len(ended) >= beam:
            growing = []
            break
    unfinished = [(tokens, score, False) for tokens, score in growing]

    def rank(found):
        return found[1] / ((5 + len(found[0]) + found[2]) / 6) ** length_penalty

    return max(ended or unfinished, key=rank)
