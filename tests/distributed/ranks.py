"""Run a function on several ranks of a gloo process group, each in a process of its own."""

import datetime
import multiprocessing
import os
import pickle
import tempfile
import traceback
import warnings

import torch
import torch.distributed as dist

TIMEOUT = 30  # seconds, of every collective

_context = multiprocessing.get_context("forkserver")
_fresh_context = multiprocessing.get_context("spawn")
# The ranks are forked from a process that has done the slow imports.
_context.set_forkserver_preload(
    [
        "torch",
        "torch._dynamo",
        "torch._inductor.config",
        "torch.distributed.checkpoint.state_dict",
        "torch.distributed.fsdp",
        "torch.distributed.tensor.parallel",
        "torch_ggt",
    ]
)


class RankError(Exception):
    """What went wrong, on which rank."""


def on_ranks(number, function, *arguments, fresh=False, seconds=10 * TIMEOUT):
    """The results of ``function(*arguments)``, one per rank; RankError if any of them raises, dies or takes too long.

    Processes that are ``fresh`` import everything themselves, with the environment of now.
    """
    context = _fresh_context if fresh else _context
    outcomes = outcomes_on_ranks(number, function, *arguments, context=context, seconds=seconds)
    for rank, (kind, value) in enumerate(outcomes):
        if kind != "returned":
            raise RankError(f"rank {rank} {kind}: {value}")
    return [value for _, value in outcomes]


def outcomes_on_ranks(number, function, *arguments, context=_context, seconds=10 * TIMEOUT):
    """("returned", result), ("raised", "Type: message\\ntraceback") or ("died", exit code) for each rank."""
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(number):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_main, args=(rank, number, folder, sender, function, arguments))
            process.start()
            sender.close()
            pipes.append(receiver)
            processes.append(process)
        outcomes = []
        for receiver, process in zip(pipes, processes, strict=True):
            try:
                outcomes.append(pickle.loads(receiver.recv_bytes()) if receiver.poll(seconds) else ("hung", None))
            except EOFError:
                process.join(TIMEOUT)
                outcomes.append(("died", process.exitcode))
        for process in processes:
            process.join(TIMEOUT)
            if process.is_alive():
                process.kill()
        return outcomes


def assert_the_others_end(outcomes):
    """Rank 1 died; each of the others returned (seconds that it waited, an error's message) within the timeout."""
    outcomes = list(outcomes)
    assert outcomes.pop(1)[0] == "died"
    for kind, value in outcomes:
        assert kind == "returned"
        seconds, message = value
        assert message
        assert seconds < TIMEOUT + 5


def _main(rank, number, folder, sender, function, arguments):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of torch.distributed, about itself
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=number,
        timeout=datetime.timedelta(seconds=TIMEOUT),
    )
    try:
        outcome = "returned", function(*arguments)
    except BaseException as error:  # the CheckpointException of torch is not an Exception
        outcome = "raised", f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
    sender.send_bytes(pickle.dumps(outcome))  # not send(): tensors would stay in the memory of a process that ends
    sender.close()
    if outcome[0] == "returned" and dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
    os._exit(0)  # threads of a broken group may never end
