"""Train the demo model, from scratch or from given weights.

    python -m mlx_streaming.demo.build.train OUT.safetensors --seconds 680 [--init WEIGHTS] ...

The schedule is by time: warm-up, constant, then linear to zero. Computes in bfloat16 on CUDA and in float32
on a CPU.
"""

import argparse
import itertools
import json
import os
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from .batches import batches, packed_rows, rows_from_processes
from .corpus.documents import MIXES
from .losses import losses, total
from .model import Model
from .optimise import Optimiser

HELD_OUT_SEED = 987654321
SHIPPED = Path(__file__).parents[1] / "checkpoint"


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("out", type=Path)
    p.add_argument("--init", type=Path, help="safetensors file, or directory of them, to continue from")
    p.add_argument("--tokenizer", type=Path, default=SHIPPED)
    p.add_argument("--mix", choices=sorted(MIXES), default="original")
    p.add_argument("--seconds", type=float, default=680)
    p.add_argument("--rows", type=int, default=64, help="rows of a batch")
    p.add_argument("--length", type=int, default=2048, help="tokens of a row; a multiple of 64")
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--optimiser", choices=["muon", "adamw"], default="muon")
    p.add_argument("--decay", type=float, default=0.45, help="share of the time in which lr falls to zero")
    p.add_argument("--qat", type=float, default=0.8, help="share of the time after which weights are rounded")
    p.add_argument("--deep-every", type=int, default=1, help="steps between those that train MTP depth 2")
    p.add_argument("--mtp-every", type=int, default=1, help="steps between those that train the MTP head")
    p.add_argument("--warm-up", type=int, default=150, help="steps")
    p.add_argument("--share", type=float, default=1.0, help="share of prompt tokens whose loss is computed")
    p.add_argument("--save-every", type=float, default=300, help="seconds")
    p.add_argument("--held-out", nargs="*", default=["original"], choices=sorted(MIXES), metavar="MIX")
    p.add_argument("--held-out-batches", type=int, default=2)
    p.add_argument("--workers", type=int, default=0, help="processes that make documents; 0: this one does")
    p.add_argument("--fla", action="store_true", help="flash-linear-attention's delta rule (CUDA)")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--threads", type=int, default=1, help="of each process, on a CPU")
    p.add_argument("--processes", type=int, default=1, help="data-parallel processes on a CPU")
    p.add_argument(
        "--freeze", nargs="*", default=[], help="parts of names of parameters that stay as they are"
    )
    return p.parse_args()


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    return {name: w.float() for file in files for name, w in load_file(file).items()}


def save(model, path: Path) -> None:
    weights = {n: p.detach().to(torch.bfloat16).cpu().contiguous() for n, p in model.state_dict().items()}
    save_file(weights, str(path) + ".part")
    os.replace(str(path) + ".part", path)


@torch.no_grad()
def evaluate(model, held_out, dtype) -> list[float]:
    """Mean [next token, MTP] loss over the held-out batches, weighted as in training, without rounding."""
    active, model.rounding.active = model.rounding.active, False
    sums = torch.zeros(2)
    for batch in held_out:
        sums += torch.tensor([float(x) for x in losses(model, batch, 1, dtype)[0]])
    model.rounding.active = active
    return (sums / len(held_out)).tolist()


def share_of_time(started: float, args) -> float:
    """Share of the scheduled time that has passed, the same number in every process."""
    spent = torch.tensor([(time.time() - started) / args.seconds])
    if args.processes > 1:
        torch.distributed.broadcast(spent, 0)
    return float(spent)


def average_gradients(parameters, processes: int) -> None:
    """Mean over the processes of all gradients, in one message."""
    grads = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([g.flatten() for g in grads])
    torch.distributed.all_reduce(flat)
    for g, part in zip(grads, flat.div_(processes).split([g.numel() for g in grads]), strict=True):
        g.copy_(part.view_as(g))


def held_out(args, mix: str, device) -> list:
    """The batches that this mix is evaluated on, the same in every run."""
    rows = packed_rows(args.tokenizer, mix, HELD_OUT_SEED, args.length)
    return list(itertools.islice(batches(rows, args.rows, args.length, device), args.held_out_batches))


def train(rank: int, args, meeting: str) -> None:
    """One process of the training; by `meeting`, the URL of a new file, several processes find each other."""
    if args.processes > 1:
        torch.distributed.init_process_group("gloo", meeting, rank=rank, world_size=args.processes)
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = Model(fla=args.fla)
    if args.init:
        model.load_state_dict(read_weights(args.init))
    model.to(device)
    for name, p in model.named_parameters():
        p.requires_grad_(not any(part in name for part in args.freeze))
    held = {mix: held_out(args, mix, device) for mix in args.held_out}
    seed = args.seed * 1000 + rank
    torch.manual_seed(seed)
    rows = (
        rows_from_processes(args.workers, args.tokenizer, args.mix, seed, args.length)
        if args.workers
        else packed_rows(args.tokenizer, args.mix, seed, args.length)
    )
    source = batches(rows, args.rows, args.length, device)
    optimiser = Optimiser(model, args.lr, args.optimiser)
    started, log, step, seen = time.time(), [], 0, 0

    def report(tag):
        values = {m: evaluate(model, h, dtype) for m, h in held.items()}
        print(f"{tag} {step} held-out [next, mtp] {values}", flush=True)
        log.append({"step": step, "tokens": seen, "seconds": time.time() - started, "held_out": values})

    if rank == 0:
        report("start")
    started = saved = time.time()
    while (spent := share_of_time(started, args)) < 1:
        model.rounding.active, model.rounding.step = spent > args.qat, step
        depth = 2 if step % args.deep_every == 0 else int(step % args.mtp_every == 0)
        batch = next(source)
        found, balance, z_loss = losses(model, batch, depth, dtype, args.share)
        total(found, balance, z_loss).backward()
        if args.processes > 1:
            average_gradients(optimiser.parameters, args.processes)
        rising = min(1.0, (step + 1) / args.warm_up)
        norm = optimiser.step(rising * min(1.0, (1 - spent) / args.decay))
        step += 1
        seen += int((batch.weights > 0).sum()) * args.processes
        if rank == 0 and (step in (1, 2, 5) or step % 10 == 0):
            values = [round(float(x), 4) for x in found]
            print(
                f"step {step} share {spent:.3f} tokens {seen} loss {values} balance {float(balance):.3f} "
                f"norm {norm:.2f} {seen / (time.time() - started):.0f} tok/s",
                flush=True,
            )
            log.append({"step": step, "tokens": seen, "seconds": time.time() - started, "loss": values})
        if rank == 0 and time.time() - saved > args.save_every:
            saved = time.time()
            save(model, args.out)
            report("saved")
    if rank:
        return
    save(model, args.out)
    report("final")
    args.out.with_suffix(".json").write_text(
        json.dumps({"arguments": {k: str(v) for k, v in vars(args).items()}, "log": log})
    )


def main() -> None:
    args = arguments()
    with tempfile.TemporaryDirectory() as meeting:
        torch.multiprocessing.spawn(train, (args, f"file://{meeting}/meeting"), args.processes)


if __name__ == "__main__":
    main()
