"""The smallest complete use: a convolutional network on scikit-learn's digits, tracked every 10th step."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import cockpit_core

images, labels = load_digits(return_X_y=True)
images = torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
labels = torch.tensor(labels)

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10),
)  # fmt: skip
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

run = cockpit_core.track(model, loss_fn, optimizer, config="business", schedule=10)

for _ in range(300):
    batch = torch.randint(0, 1500, (64,))
    optimizer.zero_grad()
    loss = loss_fn(model(images[batch]), labels[batch])
    loss.backward()
    optimizer.step()
    if run.should_stop:
        break

with torch.no_grad():
    accuracy = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean()
run.log(valid_accuracy=accuracy)
run.close()
print(f"accuracy {accuracy:.3f}; look at it: tensorboard --logdir runs")
