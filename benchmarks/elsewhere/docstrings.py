"""Characters of docstrings in the standard library: embedding, LSTM, Adam, clipping by norm, random windows, valid_loss logged."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe

MODULES = (
    "argparse ast calendar collections configparser csv datetime decimal difflib email.message enum fractions heapq "
)
MODULES += (
    "inspect json logging mailbox optparse pathlib pickle random shutil socket statistics string subprocess tarfile "
)
MODULES += "tempfile textwrap threading typing unittest.case uuid zipfile"


def corpus() -> tuple[torch.Tensor, int]:
    texts = []
    for name in MODULES.split():
        source = Path(importlib.util.find_spec(name).origin)
        if source.suffix != ".py":
            continue
        nodes = ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        texts += [ast.get_docstring(n) or "" for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    text = "\n".join(t for t in texts if len(t) > 30).lower()[:160_000]
    letters = sorted(c for c in set(text) if text.count(c) > 20)
    index = {c: n + 1 for n, c in enumerate(letters)}
    return torch.tensor([index.get(c, 0) for c in text]), len(letters) + 1


class CharLSTM(nn.Module):
    def __init__(self, vocab: int, o: SimpleNamespace) -> None:
        super().__init__()
        self.o = o
        cell = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[o.cell]
        self.embedding = nn.Embedding(vocab, o.hidden if o.tied or o.bug == "tied_by_value" else o.embed)
        self.rnn = cell(self.embedding.embedding_dim, o.hidden, num_layers=o.layers, batch_first=True)
        self.dropout = nn.Dropout(o.dropout)
        self.norm = nn.LayerNorm(o.hidden) if o.norm else nn.Identity()
        self.fc = nn.Linear(o.hidden, vocab)
        with torch.no_grad():
            for name, p in self.named_parameters():
                if o.bug == "constant" and p.dim() > 1:
                    p.fill_(0.05)
                if o.bug == "uniform_wide" and p.dim() > 1:
                    p.uniform_(-2.0, 2.0)
                if "weight" in name and p.dim() > 1:
                    p.mul_(o.gain)
                if o.forget and o.cell == "lstm" and "bias_ih" in name:
                    p[o.hidden : 2 * o.hidden] = o.forget
            if o.zero_head:
                self.fc.weight.zero_()
        if o.tied:
            self.fc.weight = self.embedding.weight
        if o.bug == "tied_by_value":
            self.fc.weight.data = self.embedding.weight.data.clone()
            self.fc.weight.requires_grad_(False)
        if o.freeze:
            self.embedding.requires_grad_(False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = self.embedding(ids) * self.o.embed_scale
        if self.o.bug == "step_by_step":  # the state is cut after every letter, as it should be after every window
            state, parts = None, []
            for t in range(ids.shape[1]):
                out, state = self.rnn(h[:, t : t + 1], state)
                state = tuple(s.detach() for s in state)
                parts.append(out.detach())
            h = torch.cat(parts, 1)
        else:
            h, _ = self.rnn(h)
        scores = self.fc(self.norm(self.dropout(h)))
        if self.o.bug == "relu_scores":
            scores = F.relu(scores)
        if self.o.bug == "sigmoid_scores":
            scores = torch.sigmoid(scores)
        if self.o.bug == "softmax":
            scores = scores.softmax(-1)
        if self.o.bug == "softmax_first":
            scores = scores.log_softmax(0)
        return scores


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    ids, vocab = corpus()
    pieces = ids[: len(ids) // 1000 * 1000].view(-1, 1000)
    held = pieces[::12].reshape(-1)[: 64 * 81].view(-1, 81)
    text = pieces[torch.arange(len(pieces)) % 12 != 0].reshape(-1)[: o.letters]
    answers = text.clone()
    if o.noise:
        wrong = torch.rand(len(text)) < o.noise
        answers[wrong] = torch.randint(0, vocab, (int(wrong.sum()),))
    if o.bug == "reversed_answers":
        answers = answers.flip(0)
    if o.bug == "index_of_one_less":
        answers = (answers + 1) % vocab

    model = CharLSTM(vocab, o)
    params = [p for p in model.parameters() if p.requires_grad]
    if o.bug == "rnn_left_out":
        params = [*model.embedding.parameters(), *model.fc.parameters()]
    optimizer = make_optimizer(o.optimizer, params, o.lr, weight_decay=o.wd, eps=o.eps, momentum=o.momentum)
    if o.bug == "reset":
        model.rnn = CharLSTM(vocab, o).rnn
        model.embedding = nn.Embedding(vocab, o.embed)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, o.step_size, gamma=o.gamma)
    run = cockpit_core.track(model, optimizer=optimizer, logdir=logdir)

    window, shift = o.window, 0 if o.bug == "same_letter" else 1
    position = 0
    for step in range(1, o.steps + 1):
        starts = torch.randint(0, len(text) - window - 1, (o.batch,))
        if o.bug == "starts_once":
            starts = torch.arange(o.batch) * 37
        if o.bug == "in_a_row":  # the text read once from front to back, neighbours in one batch
            starts = (position + torch.arange(o.batch) * 5) % (len(text) - window - 1)
            position += o.batch * 5
        at = starts[:, None] + torch.arange(window)
        logits = model(text[at])
        wanted = answers[at + shift]
        if o.bug == "summed":
            loss = F.cross_entropy(logits.reshape(-1, vocab), wanted.reshape(-1), reduction="sum")
        elif o.bug == "picked":  # the probability of the right letter, to be made small by mistake
            loss = logits.log_softmax(-1).gather(-1, wanted[..., None]).mean()
        elif o.bug == "log_of_softmax":
            loss = -torch.log((logits * 40).softmax(-1)).gather(-1, wanted[..., None]).mean()
        else:
            loss = F.cross_entropy(logits.reshape(-1, vocab), wanted.reshape(-1))
        if o.bug != "zeroed_never":
            optimizer.zero_grad()
        loss.backward()
        if o.clip:
            nn.utils.clip_grad_norm_(model.parameters(), o.clip)
        optimizer.step()
        scheduler.step()
        if step % 75 == 0:
            model.eval()
            with torch.no_grad():
                scores = model(held[:, :80])
                run.log(valid_loss=F.cross_entropy(scores.flatten(0, 1), held[:, shift : 80 + shift].flatten()).item())
            model.train()
    run.close()

    model.eval()
    with torch.no_grad():
        scores = model(held[:, :-1])
        if o.bug == "softmax":
            scores = scores.clamp(min=1e-9).log()
        nll = F.cross_entropy(scores.flatten(0, 1), held[:, 1:].flatten()).item()
    share = torch.bincount(text, minlength=vocab).float() / len(text)
    return nll / -(share * share.clamp(min=1e-9).log()).sum().item()


PROGRAM = Program(
    name="docstrings",
    half="F",
    train=train,
    settings={
        "cell": "lstm",
        "embed": 32,
        "hidden": 96,
        "layers": 1,
        "dropout": 0.0,
        "norm": False,
        "tied": False,
        "gain": 1.0,
        "forget": 0.0,
        "embed_scale": 1.0,
        "zero_head": False,
        "freeze": False,
        "letters": 150_000,
        "noise": 0.0,
        "window": 48,
        "batch": 24,
        "optimizer": "adam",
        "lr": 1e-2,
        "momentum": 0.9,
        "wd": 0.0,
        "eps": 1e-8,
        "step_size": 200,
        "gamma": 0.5,
        "clip": 1.0,
        "steps": 450,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.4),
        mild("learning_rate_too_high", lr=0.08, gamma=1.0),
        severe("learning_rate_too_low", lr=3e-5),
        mild("learning_rate_too_low", lr=3e-4),
        severe("schedule_too_fast", step_size=10),
        mild("schedule_too_fast", step_size=25),
        severe("clipping_too_hard", optimizer="sgd", lr=1.0, clip=1e-3),
        mild("clipping_too_hard", optimizer="sgd", lr=1.0, clip=0.03),
        severe("weight_decay_too_high", wd=0.1),
        mild("batch_too_small", ("batch_too_small", "learning_rate_too_high"), batch=1, lr=0.01, gamma=1.0),
        severe("gradients_not_zeroed", bug="zeroed_never", clip=None),
        severe("parameters_not_optimized", bug="rnn_left_out"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "parameters_not_optimized"), bug="reset"),
        severe("graph_detached", bug="step_by_step"),
        severe("batch_repeated", bug="starts_once"),
        mild("data_not_shuffled", ("data_not_shuffled", "batch_repeated"), bug="in_a_row"),
        severe("inputs_not_scaled", ("inputs_not_scaled", "init_too_large"), embed_scale=255.0),
        severe("labels_random", bug="reversed_answers"),
        mild("label_noise", noise=0.4),
        severe("loss_sign", bug="picked"),
        mild(
            "loss_summed", ("loss_summed", "learning_rate_too_high"), bug="summed", optimizer="sgd", lr=0.2, clip=None
        ),
        severe("double_softmax", ("double_softmax", "output_activation"), bug="softmax"),
        severe("softmax_over_batch", bug="softmax_first"),
        severe("output_activation", bug="sigmoid_scores"),
        mild("output_relu", ("output_activation", "dead_units"), bug="relu_scores"),
        severe("init_constant", bug="constant"),
        severe("init_too_large", bug="uniform_wide"),
        severe("init_too_small", ("init_too_small", "vanishing_gradients"), gain=0.02, optimizer="sgd", lr=1.0),
        severe("vanishing_gradients", ("vanishing_gradients", "init_too_small"), layers=5, gain=0.3, cell="rnn"),
        severe("dropout_too_high", dropout=0.97),
        mild("dropout_too_high", dropout=0.85),
        severe("targets_not_shifted", ("targets_not_shifted", "target_in_inputs"), bug="same_letter"),
        severe("labels_off_by_one", bug="index_of_one_less"),
        severe("not_finite", bug="log_of_softmax", lr=0.05, clip=None),
        mild("weights_not_tied", ("weights_not_tied", "parameters_not_optimized"), bug="tied_by_value"),
        mild("adam_eps_too_large", ("adam_eps_too_large", "learning_rate_too_low"), eps=0.1),
        mild("overfitting", letters=3000, gamma=1.0),
    ],
    healthy=[
        healthy("gru", cell="gru"),
        healthy("two_layers", layers=2, hidden=80),
        healthy("adamw", optimizer="adamw", wd=0.01),
        healthy("rmsprop", optimizer="rmsprop", lr=4e-3, momentum=0.0),
        healthy("sgd_high_rate", optimizer="sgd", lr=1.5, clip=1.0, steps=700, step_size=600),
        healthy("forget_bias_1", forget=1.0),
        healthy("dropout_20", dropout=0.2),
        healthy("layernorm", norm=True),
        healthy("tied", tied=True, gain=0.3),
        healthy("zero_head", zero_head=True),
        healthy("frozen_embedding", freeze=True),
        healthy("batch_64", batch=64, window=32, lr=1.2e-2, steps=300),
        healthy("batch_8", batch=8, lr=6e-3, steps=700, step_size=300),
        healthy("clip_5", clip=5.0),
        healthy("constant_rate", gamma=1.0, lr=7e-3),
        healthy("fast_rate", lr=0.02),
        healthy("a_few_wrong_letters", noise=0.03),
    ],
)
