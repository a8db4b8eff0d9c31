# -*- coding: utf-8 -*-
import itertools
import json

import numpy as np
import torch
import torch.nn as nn
from torch.autograd import Variable

cuda = True if torch.cuda.is_available() else False
Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor
LongTensor = torch.cuda.LongTensor if cuda else torch.LongTensor
dtype = torch.cuda.FloatTensor
np.random.seed(0)
torch.manual_seed(0)
if cuda:
    torch.cuda.manual_seed_all(0)
    torch.cuda.set_device(0)

encoder = nn.Sequential(nn.Linear(12, 16), nn.LeakyReLU(0.2, inplace=True), nn.Linear(16, 4))
discriminator = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2, inplace=True), nn.Linear(16, 1), nn.Sigmoid())
decoder = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2, inplace=True), nn.Linear(16, 12))
adversarial_loss = torch.nn.BCELoss()
pixelwise_loss = torch.nn.L1Loss()

if cuda:
    encoder.cuda()
    decoder.cuda()
    discriminator.cuda()
    adversarial_loss.cuda()
    pixelwise_loss.cuda()

optimizer_G = torch.optim.Adam(itertools.chain(encoder.parameters(), decoder.parameters()), lr=0.01, betas=(0.5, 0.999))
optimizer_D = torch.optim.Adam(discriminator.parameters(), lr=0.01, betas=(0.5, 0.999))

losses = []
imgs_all = torch.from_numpy(np.random.normal(0, 1, (32, 12)))
for epoch in range(8):
    for imgs in imgs_all.split(16):
        valid = Variable(Tensor(imgs.shape[0], 1).fill_(1.0), requires_grad=False)
        fake = Variable(Tensor(imgs.shape[0], 1).fill_(0.0), requires_grad=False)
        real_imgs = Variable(imgs.type(Tensor))
        optimizer_G.zero_grad()
        encoded_imgs = encoder(real_imgs)
        decoded_imgs = decoder(encoded_imgs)
        g_loss = 0.01 * adversarial_loss(discriminator(encoded_imgs), valid) + 0.99 * pixelwise_loss(
            decoded_imgs, real_imgs
        )
        g_loss.backward()
        optimizer_G.step()
        optimizer_D.zero_grad()
        z = Variable(Tensor(np.random.normal(0, 1, (imgs.shape[0], 4))))
        real_loss = adversarial_loss(discriminator(z), valid)
        fake_loss = adversarial_loss(discriminator(encoded_imgs.detach()), fake)
        d_loss = 0.5 * (real_loss + fake_loss)
        d_loss.backward()
        optimizer_D.step()
        losses.append(g_loss.data.cpu().numpy().item())

assert encoded_imgs.is_cuda and next(encoder.parameters()).is_cuda
assert encoded_imgs.data.type() == "torch.cuda.FloatTensor", encoded_imgs.data.type()
assert isinstance(encoded_imgs.data, torch.cuda.FloatTensor)
assert not isinstance(imgs, torch.cuda.FloatTensor)
gen_labels = Variable(LongTensor(np.random.randint(0, 10, 5)))
assert gen_labels.type() == "torch.cuda.LongTensor"
assert torch.zeros(2).type(dtype).is_cuda and torch.zeros(2).type("torch.cuda.DoubleTensor" if False else dtype).is_cuda
w = torch.randn(3, 2).type(dtype)
mask = torch.cuda.ByteTensor([1, 0, 1])
print(w[mask.bool()].size(), torch.cuda.HalfTensor(2, 2).zero_().type(), torch.cuda.IntTensor([1, 2, 3]).sum().item())
y = w.new(2, 2).zero_() + w.new_ones(2, 2) + torch.ones_like(w[:2]) + w.new_tensor([1.0, 2.0])
y = y.cuda(0).cuda(device=0).cuda("cuda:0", non_blocking=True).to(0)
assert y.get_device() == w.get_device() == torch.cuda.current_device() == 0
print(json.dumps({"losses": losses, "y": y.tolist(), "gpu": cuda}))
