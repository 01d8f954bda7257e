"""Sequence to sequence: words of 3 to 9 letters are to be written backwards. A GRU encoder that reads both ways, a GRU
decoder with attention, teacher forcing, padding that the loss ignores, Adam and a clip at 1. Nothing is validated while it
runs; in the end the decoder writes by itself."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe

PAD, BOS, EOS, LETTERS = 0, 1, 2, 20
VOCAB = 3 + LETTERS
LONGEST = 9


def words(count: int, seed: int) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, LONGEST + 1, (count,), generator=g).tolist()
    return [torch.randint(3, VOCAB, (n,), generator=g) for n in lengths]


def collate(sources: list[torch.Tensor], targets: list[torch.Tensor]):
    """Padded sources, what the decoder reads, what it should write."""
    src = pad_sequence(sources, batch_first=True, padding_value=PAD)
    tgt = [torch.cat([torch.tensor([BOS]), t, torch.tensor([EOS])]) for t in targets]
    tgt = pad_sequence(tgt, batch_first=True, padding_value=PAD)
    return src, tgt[:, :-1], tgt[:, 1:]


class Encoder(nn.Module):
    def __init__(self, o: SimpleNamespace):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, o.emb, padding_idx=PAD)
        self.places = nn.Embedding(LONGEST, o.emb) if o.places else None
        self.drop = nn.Dropout(o.dropout)
        kind = {"gru": nn.GRU, "lstm": nn.LSTM}[o.cell]
        self.rnn = kind(o.emb, o.hidden // 2, o.layers, batch_first=o.bug != "time_first", bidirectional=True)

    def forward(self, src):
        e = self.embedding(src)
        if self.places is not None:
            e = e + self.places.weight[: src.shape[1]]
        out, _ = self.rnn(self.drop(e))
        real = (src != PAD).unsqueeze(-1)
        return out, (out * real).sum(1) / real.sum(1).clamp(min=1)


class Decoder(nn.Module):
    def __init__(self, o: SimpleNamespace):
        super().__init__()
        self.o = o
        self.embedding = nn.Embedding(VOCAB, o.emb, padding_idx=PAD)
        self.bridge = nn.Linear(o.hidden, o.hidden)
        self.drop = nn.Dropout(o.dropout)
        both = o.bug == "decoder_reads_both_ways"
        self.rnn = nn.GRU(o.emb, o.hidden // 2 if both else o.hidden, batch_first=True, bidirectional=both)
        self.query = nn.Linear(o.hidden, o.hidden, bias=False)
        self.key = nn.Linear(o.hidden, o.hidden, bias=False)
        self.energy = nn.Linear(o.hidden, 1, bias=False)
        self.mix = nn.Linear(2 * o.hidden, o.hidden)
        self.norm = nn.LayerNorm(o.hidden) if o.norm else nn.Identity()
        self.act = {"tanh": torch.tanh, "relu": torch.relu, "gelu": nn.functional.gelu}[o.act]
        self.out = nn.Linear(o.hidden, VOCAB)

    def forward(self, tokens, memory, summary, src):
        o = self.o
        start = torch.tanh(self.bridge(summary))[None]
        if o.bug == "decoder_reads_both_ways":
            start = start.view(1, len(src), 2, -1)[0].transpose(0, 1).contiguous()
        states, _ = self.rnn(self.drop(self.embedding(tokens)), start)
        q, k = self.query(states), self.key(memory)
        if o.attention == "additive":
            scores = self.energy(torch.tanh(q[:, :, None] + k[:, None])).squeeze(-1)
        else:
            scores = q @ k.transpose(1, 2) / math.sqrt(o.hidden)
        if o.bug == "multiplied_by_root":
            scores = scores * o.hidden
        scores = scores.masked_fill((src == PAD)[:, None], -math.inf)
        if o.bug == "softmax_dim_1":  # over the words to be written
            weights = scores.softmax(1).nan_to_num()
        else:
            weights = scores.softmax(2)
        context = weights @ memory
        if o.bug == "context_for_the_plot":
            self.last_context = context = context.detach()
        h = self.norm(self.act(self.mix(torch.cat([states, context], 2))))
        logits = self.out(self.drop(h))
        return logits.softmax(-1) if o.bug == "probabilities" else logits


class Seq2Seq(nn.Module):
    def __init__(self, o: SimpleNamespace):
        super().__init__()
        self.encoder, self.decoder = Encoder(o), Decoder(o)

    def forward(self, src, tokens):
        memory, summary = self.encoder(src)
        return self.decoder(tokens, memory, summary, src)


@torch.no_grad()
def wrong_letters(model: Seq2Seq, sources: list[torch.Tensor], from_one: bool = False) -> float:
    """Share of wrong letters when the decoder writes by itself, relative to guessing."""
    model.eval()
    src, _, goal = collate(sources, [s.flip(0) for s in sources])
    text = torch.full((len(src), 1), BOS)
    for _ in range(goal.shape[1]):
        scores = model(src, text)[:, -1]
        if not torch.isfinite(scores).all():
            return math.inf
        text = torch.cat([text, scores.argmax(-1, keepdim=True)], 1)
    letters = (goal != PAD) & (goal != EOS)
    wrong = (text[:, 1:] != goal)[letters].float().mean().item()
    return wrong / (1 - 1 / LETTERS)


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    sources, held_out = words(o.words, 91), words(300, 92)
    if o.bug == "mostly_one_word":
        sources = [sources[0] if torch.rand(()) < 0.98 else s for s in sources]
    if o.bug == "empty_lines":
        sources = [s[:0] if torch.rand(()) < 0.01 else s for s in sources]
    if o.bug == "sorted_file":
        sources.sort(key=lambda s: s.tolist())
    targets = [s.flip(0) for s in sources]
    if o.bug == "joined_to_the_next_line":
        targets = targets[1:] + targets[:1]
    if o.typos:
        targets = [torch.where(torch.rand(len(t)) < o.typos, torch.randint(3, VOCAB, t.shape), t) for t in targets]

    model = Seq2Seq(o)
    for name, p in model.named_parameters():
        if o.init == "xavier" and p.dim() == 2 and "embedding" not in name:
            nn.init.xavier_uniform_(p)
        elif o.init == "zeros":
            nn.init.zeros_(p)
    if o.mix_bias:
        nn.init.constant_(model.decoder.mix.bias, o.mix_bias)
    if o.zero_out:
        nn.init.zeros_(model.decoder.out.weight)
        nn.init.zeros_(model.decoder.out.bias)

    if o.frozen:  # random letters do well enough
        model.encoder.embedding.requires_grad_(False)
    params = [p for p in model.parameters() if p.requires_grad]
    if o.bug == "decoder_only":
        params = list(model.decoder.parameters())
    optimizer = make_optimizer(
        o.optimizer, params, o.lr, betas=(o.beta1, 0.999), momentum=o.momentum, eps=o.eps, weight_decay=o.decay
    )
    if o.bug == "reloaded":
        model = copy.deepcopy(model)
    criterion = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=o.smoothing)
    if o.schedule == "cosine":
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, o.steps)
    elif o.schedule == "warmup":
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, 1.0, total_iters=50)
    else:
        scheduler = None

    run = cockpit_core.track(model, criterion, optimizer, logdir=logdir)
    model.train()
    step = micro = 0
    queue: list[list[int]] = []
    while step < o.steps:
        if not queue:
            order = torch.randperm(len(sources)).tolist()
            if o.bug == "sorted_file":
                order = list(range(len(sources)))[::-1]
            size = min(o.batch, len(sources))
            queue = [order[i : i + size] for i in range(0, len(order) - size + 1, size)]
        rows = queue[-1] if o.bug == "peeked_not_popped" else queue.pop()
        src, read, write = collate([sources[i] for i in rows], [targets[i] for i in rows])
        if o.bug == "not_shifted":
            read = write
        elif o.bug == "shifted_the_other_way":
            write = read
        elif o.bug == "shifted_twice":
            write = torch.cat([write[:, 1:], torch.full((len(write), 1), PAD)], 1)
        if o.word_dropout:
            read = torch.where((torch.rand(read.shape) < o.word_dropout) & (read > 2), PAD, read)

        if micro % o.accumulate == 0 and o.bug != "zero_grad_outside":
            optimizer.zero_grad()
        logits = model(src, read)
        if o.bug == "view_for_transpose":  # the loss wants (batch, class, time)
            loss = criterion(logits.view(len(src), VOCAB, -1), write)
        else:
            loss = criterion(logits.transpose(1, 2), write)
        (loss / o.accumulate).backward()
        micro += 1
        if micro % o.accumulate:
            continue
        if o.clip:
            nn.utils.clip_grad_norm_(model.parameters(), o.clip)
        optimizer.step()
        if scheduler:
            scheduler.step()
        step += 1
    run.close()
    return wrong_letters(model, held_out)


PROGRAM = Program(
    name="reverse",
    half="J",
    train=train,
    settings={
        "words": 4000,
        "typos": 0.0,
        "emb": 24,
        "places": False,
        "cell": "gru",
        "hidden": 48,
        "layers": 1,
        "attention": "dot",
        "norm": False,
        "act": "tanh",
        "dropout": 0.0,
        "init": None,
        "mix_bias": 0.0,
        "zero_out": False,
        "frozen": False,
        "batch": 48,
        "word_dropout": 0.0,
        "accumulate": 1,
        "optimizer": "adam",
        "lr": 6e-3,
        "beta1": 0.9,
        "momentum": 0.9,
        "eps": 1e-8,
        "decay": 0.0,
        "schedule": "cosine",
        "clip": 1.0,
        "smoothing": 0.0,
        "steps": 350,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.3),
        mild("learning_rate_too_high", lr=0.05),
        mild("learning_rate_too_low", lr=1.6e-3),
        severe("clipping_too_hard", optimizer="sgd", lr=0.5, clip=0.003),
        severe("weight_decay_too_high", decay=0.03),
        mild("batch_too_small", batch=2),
        mild("momentum_too_high", beta1=0.9997),
        severe("gradients_not_zeroed", bug="zero_grad_outside", clip=None),
        mild("parameters_not_optimized", bug="decoder_only"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "nothing_moves"), bug="reloaded"),
        severe("graph_detached", ("graph_detached", "parameters_not_optimized"), bug="context_for_the_plot"),
        severe("batch_repeated", bug="peeked_not_popped"),
        mild("data_not_shuffled", bug="sorted_file"),
        severe("labels_random", bug="joined_to_the_next_line"),
        mild("label_noise", typos=0.8),
        severe("double_softmax", ("double_softmax", "output_activation"), bug="probabilities"),
        severe("softmax_over_time", ("softmax_over_batch", "attention_too_sharp"), bug="softmax_dim_1"),
        severe("attention_too_sharp", bug="multiplied_by_root"),
        severe("dead_units", act="relu", mix_bias=-6.0),
        severe("init_constant", init="zeros"),
        mild("dropout_too_high", dropout=0.7),
        severe("not_finite", bug="empty_lines"),
        severe("target_in_inputs", ("target_in_inputs", "targets_not_shifted"), bug="not_shifted"),
        severe("future_seen", ("target_in_inputs",), bug="decoder_reads_both_ways"),
        severe("targets_not_shifted", ("targets_not_shifted", "target_in_inputs"), bug="shifted_the_other_way"),
        severe("labels_off_by_one", ("labels_off_by_one", "targets_not_shifted"), bug="shifted_twice"),
        severe("samples_mixed", bug="time_first"),
        severe("logits_viewed", ("samples_mixed", "labels_random"), bug="view_for_transpose"),
        severe("class_imbalance", bug="mostly_one_word"),
        severe("overfitting", words=60),
    ],
    healthy=[
        healthy("rate_third", lr=3e-3),
        healthy("rate_double", lr=1.2e-2),
        healthy("adamw", optimizer="adamw", decay=0.01),
        healthy("nadam", optimizer="nadam", lr=4e-3),
        healthy("rmsprop", optimizer="rmsprop", lr=2e-3, momentum=0.0),
        healthy("sgd_momentum", optimizer="sgd", lr=0.5),
        healthy("constant_rate", schedule=None, lr=4e-3),
        healthy("warmup", schedule="warmup"),
        healthy("batch_24", batch=24),
        healthy("batch_96", batch=96),
        healthy("accumulated", batch=24, accumulate=2),
        healthy("additive", attention="additive"),
        healthy("lstm_encoder", cell="lstm"),
        healthy("two_layers", layers=2),
        healthy("wider", hidden=64),
        healthy("places", places=True),
        healthy("layernorm", norm=True),
        healthy("relu", act="relu"),
        healthy("little_dropout", dropout=0.05),
        healthy("xavier", init="xavier"),
        healthy("zero_out", zero_out=True),
        healthy("frozen_embedding", frozen=True),
        healthy("no_clip", clip=None),
        healthy("smoothed", smoothing=0.05),
        healthy("letters_dropped", word_dropout=0.1),
        healthy("longer", steps=550),
    ],
)
