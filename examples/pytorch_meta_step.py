"""The loop of pytorch_plain.py with a loss that is learned on the checked samples: five lines.

python examples/pytorch_meta_step.py

They stand in place of the criterion, and of the four lines from the loss to the optimiser's step. What was learned is
written to gce.safetensors, which pytorch_adjusted_loss.py takes.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

import narl  # +

torch.manual_seed(0)
digits = load_digits()
order = torch.randperm(len(digits.target))
images, truth = torch.tensor(digits.images / 16, dtype=torch.float32)[order], torch.tensor(digits.target)[order]
train_x, checked_x, test_x = images[:1200], images[1200:1300], images[1300:]
train_y, checked_y, test_y = truth[:1200], truth[1200:1300], truth[1300:]
train_y = torch.where(torch.rand(1200) < 0.4, (train_y + 1) % 10, train_y)  # which ones, nobody knows

model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=30)
adjust = narl.Adjuster("gce", class_counts=torch.bincount(train_y))  # +
meta = narl.MetaStep(model, optimizer, adjust, every=1, adjuster_optimizer=optim.Adam(adjust.parameters(), 1e-2))  # +

for _ in range(30):
    for x, y in DataLoader(TensorDataset(train_x, train_y), batch_size=50, shuffle=True):
        x = x.roll(torch.randint(-1, 2, (2,)).tolist(), dims=(1, 2))  # a pixel to the side, up or down
        meta.step(x, y, clean=(checked_x, checked_y))  # +
    schedule.step()
adjust.save("gce.safetensors")  # +

with torch.no_grad():
    right = (model(test_x).argmax(dim=1) == test_y).float().mean()
print(f"test accuracy {right:.1%}")
