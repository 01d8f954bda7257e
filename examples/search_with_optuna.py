"""Searching learning rates with optuna: trials that Cockpit finds broken, or tells to stop, are pruned.

``pip install optuna``, then ``python examples/search_with_optuna.py``. A finding of severity "broken" or "likely" ends a trial
after a few steps, whatever its loss looks like by then.
"""

import optuna
import torch

import cockpit_core
from cockpit_core import problems


def objective(trial, problem=None, epochs=3, logdir="runs/optuna"):
    problem = problem or problems.find("digits_mlp")
    data, (model, loss_fn) = problem.load(None), problem.build(seed=0)
    kind = trial.suggest_categorical("optimizer", ["SGD", "Adam"])
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=trial.suggest_float("lr", 1e-4, 10, log=True))
    generator = torch.Generator().manual_seed(0)
    with cockpit_core.track(
        model, loss_fn, optimizer, f"{logdir}/{trial.number}", config="economy", stop_on="likely"
    ) as run:
        for epoch in range(epochs):
            for inputs, targets in data.train.shuffle(problem.batch_size, generator):
                optimizer.zero_grad()
                loss_fn(model(inputs), targets).backward()
                optimizer.step()
                if run.should_stop:
                    trial.set_user_attr("findings", [finding.text for finding in run.findings])
                    raise optuna.TrialPruned
            accuracy = problem.measure(model, loss_fn, data.valid)["accuracy"]
            run.log(valid_accuracy=accuracy)
            trial.report(accuracy, epoch)
    return accuracy


if __name__ == "__main__":
    study = optuna.create_study(direction="maximize")
    study.optimize(objective, n_trials=20)
    print(f"best: {study.best_params}, valid_accuracy {study.best_value:.3f}")
    for trial in study.get_trials(states=[optuna.trial.TrialState.PRUNED]):
        print(f"pruned: {trial.params}: {trial.user_attrs['findings'][:1]}")
