"""The step on a GPU against the same step on the CPU, and without a single synchronization. Needs torch alone.

PYTHONPATH=src python tests/gpu/check_step.py
"""

import itertools

import torch

from torch_ggt import GGT


def relative_error(window_dtype, history, scope, solver, jitter, nesterov):
    """Largest relative difference of the parameters after 60 steps on the same gradients."""
    shapes = [(), (7,), (33, 5), (3, 4, 5, 2)]
    starts = [torch.randn(s) for s in shapes]
    runs = {}
    for device in ("cpu", "cuda"):
        parameters = [torch.nn.Parameter(s.clone().to(device)) for s in starts]
        optimizer = GGT(
            parameters,
            lr=1e-2,
            weight_decay=0.1,
            window=11,
            window_dtype=window_dtype,
            history=history,
            scope=scope,
            solver=solver,
            jitter=jitter,
            nesterov=nesterov,
        )
        generator = torch.Generator().manual_seed(1)
        for step in range(60):
            for p in parameters:
                p.grad = torch.randn(p.shape, generator=generator).to(device)
                if step == 30:
                    p.grad.fill_(float("nan"))
            if device == "cuda" and step > 2 and solver != "eigh":  # cuSOLVER's eigh itself waits for the device
                torch.cuda.set_sync_debug_mode("error")
            optimizer.step()
            torch.cuda.set_sync_debug_mode("default")
        assert optimizer.skipped == 1
        runs[device] = torch.cat([p.detach().cpu().flatten() for p in parameters])
    return ((runs["cpu"] - runs["cuda"]).norm() / runs["cpu"].norm()).item()


def main():
    worst = 0.0
    for case in itertools.product(
        (torch.float32, torch.bfloat16, torch.float64),
        ("momentum", "gradient"),
        ("model", "parameter"),
        (("cholesky", 1e-6), ("eigh", 1e-6), ("eigh", 0.0), ("auto", 1e-6)),
        (False, True),
    ):
        window_dtype, history, scope, (solver, jitter), nesterov = case
        error = relative_error(window_dtype, history, scope, solver, jitter, nesterov)
        worst = max(worst, error)
        assert error < 1e-4, (case, error)
    print(f"GPU equals CPU to {worst:.1e}; no synchronization", torch.__version__, torch.cuda.get_device_name())


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore")
    main()
