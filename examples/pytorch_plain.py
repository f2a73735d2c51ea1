"""A training loop as everybody writes it: digits, 40 % of them with the label of the next digit.

python examples/pytorch_plain.py

pytorch_meta_step.py and pytorch_adjusted_loss.py are the same loop with narl in it.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

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
criterion = nn.CrossEntropyLoss()

for _ in range(30):
    for x, y in DataLoader(TensorDataset(train_x, train_y), batch_size=50, shuffle=True):
        x = x.roll(torch.randint(-1, 2, (2,)).tolist(), dims=(1, 2))  # a pixel to the side, up or down
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    schedule.step()

with torch.no_grad():
    right = (model(test_x).argmax(dim=1) == test_y).float().mean()
print(f"test accuracy {right:.1%}")
