"""torch_train.py: a small model trained by DistributedDataParallel and by FSDP2. Prints one `loss` line per
step and kind; torch.sh runs it with both libraries and compares the lines, which differ only by the
rounding of sums. Run by torch.sh."""
import torch
import torch.distributed as dist
from torch import nn
from torch_common import DEVICE, GLOO, RANK, SIZE, Skip, check_library, finish, run, say, start

WIDTH, STEPS = 512, 12


def model_make():
    torch.manual_seed(7)
    layers = []
    for _ in range(4):
        layers.append(nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH),
                                    nn.LayerNorm(WIDTH)))
    return nn.Sequential(*layers).to(DEVICE)


def batch_make(step):
    """Each rank's part of a batch that depends only on the step."""
    generator = torch.Generator().manual_seed(1000 * step + RANK)
    data = torch.randn(64, WIDTH, generator=generator)
    return data.to(DEVICE), torch.tanh(data.roll(1, 1)).to(DEVICE)


def train(kind, model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=not GLOO)
    losses = []
    for step in range(STEPS):
        data, wanted = batch_make(step)
        loss = nn.functional.mse_loss(model(data).float(), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone().double()
        dist.all_reduce(mean)
        losses.append(mean.item() / SIZE)
    for step in range(STEPS):
        say('loss %s %d %.9f' % (kind, step, losses[step]))
    assert losses[-1] < 0.95 * losses[0], 'the loss does not fall: %s' % losses


def data_parallel(**options):
    if SIZE < 2 and GLOO:
        raise Skip('one rank')
    wrapped = nn.parallel.DistributedDataParallel(model_make(), device_ids=None if GLOO else [DEVICE.index],
                                                  **options)
    train('ddp' + ''.join('-' + name for name in options), wrapped)


def no_sync():
    """Gradients of three batches, accumulated before they are reduced."""
    wrapped = nn.parallel.DistributedDataParallel(model_make(), device_ids=None if GLOO else [DEVICE.index])
    for step in range(3):
        data, wanted = batch_make(step)
        if step < 2:
            with wrapped.no_sync():
                nn.functional.mse_loss(wrapped(data), wanted).backward()
        else:
            nn.functional.mse_loss(wrapped(data), wanted).backward()
    gradient = next(wrapped.parameters()).grad
    mine = [torch.zeros_like(gradient) for _ in range(SIZE)]
    dist.all_gather(mine, gradient)
    assert all(torch.equal(mine[0], each) for each in mine)


def fully_sharded(**options):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    mesh = init_device_mesh(DEVICE.type, (SIZE,))
    if options:
        options = {'mp_policy': MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
    model = model_make()
    for layer in model:
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    train('fsdp' + ('-bf16' if options else ''), model)


def zero_redundancy():
    from torch.distributed.optim import ZeroRedundancyOptimizer
    model = nn.parallel.DistributedDataParallel(model_make(), device_ids=None if GLOO else [DEVICE.index])
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.01)
    for step in range(3):
        data, wanted = batch_make(step)
        nn.functional.mse_loss(model(data), wanted).backward()
        optimizer.step()
        optimizer.zero_grad()


start()
run('the library', check_library)
run('DDP', data_parallel)
run('DDP, small buckets', lambda: data_parallel(bucket_cap_mb=1))
run('DDP, static graph', lambda: data_parallel(static_graph=True))
run('DDP, no_sync', no_sync)
run('FSDP2', fully_sharded)
run('FSDP2, bfloat16', lambda: fully_sharded(mixed=True))
run('ZeroRedundancyOptimizer', zero_redundancy)
finish()
