"""What torchrun starts for `test_distributed_checkpoints`: ``python -m ... FOLDER TASK ...``.

The tasks are done one after the other; FOLDER/TASK.done says which.
"""

import errno
import logging
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from implicit_models.files import remove
from implicit_models.training import checkpoints
from implicit_models.training.checkpoints import CheckpointFolder
from implicit_models.training.distributed import Parallelism, Processes
from implicit_models.training.progress import Progress
from implicit_models.training.state_file import load_state, save_state
from tests.training.setup_checkpoints import (
    assert_same,
    build_module,
    build_optimiser,
    make_steps,
    whole_state,
)

KINDS: tuple[Parallelism, ...] = ("ddp", "fsdp")


def main(root: Path, *tasks: str) -> None:
    dist.init_process_group("gloo")
    warnings.simplefilter("error")
    try:
        for task in tasks:
            {"exchange": exchange, "fail": fail, "elsewhere": elsewhere}[task](root)
            dist.barrier()
            (root / f"{task}.done").touch()
    finally:
        dist.destroy_process_group()


def processes_of(kind: Parallelism) -> Processes:
    return Processes(dist.get_rank(), dist.get_world_size(), torch.device("cpu"), kind)


def fresh(kind: Parallelism, seed: int = 1) -> tuple[nn.Module, torch.optim.AdamW]:
    module = build_module(seed)
    if kind == "fsdp":
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        fully_shard(module, mesh=mesh, reshard_after_forward=False)
        assert all(isinstance(parameter, DTensor) for parameter in module.parameters())
        return module, build_optimiser(module)
    spread = DistributedDataParallel(module, find_unused_parameters=True)
    return spread, build_optimiser(spread)


def truth(root: Path, name: str = "truth") -> dict:
    return torch.load(root / f"{name}.pt")


def exchange(root: Path) -> None:
    """Load what one process has left, save it in both ways, and load that in both ways."""
    expected, path = truth(root), root / "state.safetensors"
    for kind in KINDS:
        processes = processes_of(kind)
        module, optimiser = fresh(kind)
        assert load_state(path, module, optimiser, processes).step == 3
        assert_same(whole_state(module, optimiser), expected)
        save_state(root / f"{kind}.safetensors", module, optimiser, Progress(3), processes)
        assert (root / f"{kind}.safetensors").exists()

        # From one process's checkpoint, and then one of several.
        module, optimiser = fresh(kind)
        assert CheckpointFolder(root, "alone", processes).resume(module, optimiser) == Progress(3)
        assert_same(whole_state(module, optimiser), expected)
        folder = CheckpointFolder(root, kind, processes)
        history = [{"step": 3, "loss": 0.5}]
        folder.save(module, optimiser, Progress(3, history=history))
        with torch.no_grad():  # while it is being written
            for parameter in module.parameters():
                parameter.zero_()
            for values in optimiser.state.values():
                values["exp_avg"].zero_()
                values["step"].zero_()
        history.clear()
        folder.wait()
        assert (folder.path / "step_000000003").exists()

        # Before the first step, and with the weights still gathered after a forward pass.
        module, optimiser = fresh(kind, seed=2)
        module(torch.zeros(1, 1, dtype=torch.long))
        folder = CheckpointFolder(root, f"{kind}_empty", processes)
        folder.save(module, optimiser, Progress(0))
        save_state(root / f"{kind}_empty.safetensors", module, optimiser, Progress(0), processes)
        assert not optimiser.state
        folder.wait()
    for written in KINDS:
        for kind in KINDS:
            module, optimiser = fresh(kind)
            make_steps(module, optimiser, 1)
            folder = CheckpointFolder(root, written, processes_of(kind))
            progress = folder.resume(module, optimiser)
            assert progress == Progress(3, history=[{"step": 3, "loss": 0.5}])
            assert_same(whole_state(module, optimiser), expected)
            # The state belongs to what computes.
            make_steps(module, optimiser, 2)
            found = whole_state(module, optimiser)
            for name, weight in truth(root, "later")["weights"].items():
                torch.testing.assert_close(found["weights"][name], weight, rtol=0, atol=1e-6)


def fail(root: Path) -> None:
    """Fail on one process alone, in writing and in reading."""
    rank, expected = dist.get_rank(), truth(root)
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("implicit_models").addHandler(handler)

    processes = processes_of("fsdp")
    module, optimiser = fresh("fsdp")
    load_state(root / "state.safetensors", module, optimiser, processes)
    folder = CheckpointFolder(root, "failing", processes)
    folder.save(module, optimiser, Progress(3))
    folder.wait()

    write = FileSystemWriter.write_data
    if rank == 1:
        FileSystemWriter.write_data = _no_space
    folder.save(module, optimiser, Progress(4))
    folder.wait()
    FileSystemWriter.write_data = write
    processes.wait()  # the main one has put away what there was of it
    assert [each.name for each in folder.path.iterdir()] == ["step_000000003"]
    _expect(said, ["step_000000004 could not be written (OSError: [Errno 28] No space"])

    # What was written cannot be read again on one process: the others do not wait for its digests.
    checksum = checkpoints.checksum
    if rank == 1:
        checkpoints.checksum = _unreadable_file
    folder.save(module, optimiser, Progress(4))
    folder.wait()
    checkpoints.checksum = checksum
    processes.wait()
    assert [each.name for each in folder.path.iterdir()] == ["step_000000003"]
    _expect(said, ["step_000000004 could not be written (RuntimeError: process 1: OSError: [Errno"])

    make_steps(module, optimiser, 1)
    folder.save(module, optimiser, Progress(4))
    folder.wait()
    read = FileSystemReader.read_data
    if rank == 1:
        FileSystemReader.read_data = _unreadable
    module, optimiser = fresh("fsdp")
    assert folder.resume(module, optimiser) == Progress(3)
    FileSystemReader.read_data = read
    assert_same(whole_state(module, optimiser), expected)
    _expect(said, ["step_000000004 cannot be used (RuntimeError: process 1: OSError: [Errno 5]"])

    # A file of one process cut in half: all take the one before.
    if rank == 0:
        file = folder.path / "step_000000004" / "__1_0.distcp"
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    module, optimiser = fresh("ddp")
    assert folder.resume(module, optimiser) == Progress(3)
    assert_same(whole_state(module, optimiser), expected)
    _expect(said, ["step_000000004 cannot be used (ValueError: __1_0.distcp has"])

    # A state that one process cannot read: all raise, and nothing has changed.
    module, optimiser = fresh("fsdp")
    before = whole_state(module, optimiser)
    path = root / ("state.safetensors" if rank == 0 else "none.safetensors")
    try:
        load_state(path, module, optimiser, processes)
    except (RuntimeError, FileNotFoundError) as error:
        assert isinstance(error, FileNotFoundError) == (rank == 1)
    else:
        raise AssertionError("a state was loaded on a part of the processes")
    assert_same(whole_state(module, optimiser), before)

    # Leaving without waiting, as where something else has failed.
    module, optimiser = fresh("ddp")
    load_state(root / "state.safetensors", module, optimiser, processes)
    CheckpointFolder(root, "left", processes).save(module, optimiser, Progress(3))


def elsewhere(root: Path) -> None:
    """Load on another number of processes, and save there; removing what was left takes long."""
    expected = truth(root)
    begun_too_early: list[Path] = []

    def remove_slowly(path: Path) -> None:
        time.sleep(0.2)
        if path.exists():
            begun_too_early.append(path)
        remove(path)

    checkpoints.remove = remove_slowly
    for written in KINDS:
        for kind in KINDS:
            module, optimiser = fresh(kind)
            processes = processes_of(kind)
            folder = CheckpointFolder(root, written, processes)
            assert folder.resume(module, optimiser) is not None
            assert_same(whole_state(module, optimiser), expected)
            again = CheckpointFolder(root, f"{written}_{kind}_again", processes)
            again.save(module, optimiser, Progress(3))
            again.wait()
            assert not begun_too_early


def _no_space(self: FileSystemWriter, plan, planner):
    raise OSError(errno.ENOSPC, "No space left on device")


def _unreadable_file(path: Path) -> str:
    raise OSError(errno.EIO, path.name)


def _unreadable(self: FileSystemReader, *arguments, **settings):
    if str(self.path).endswith("step_000000004"):
        raise OSError(errno.EIO, str(Path(self.path).name))
    return READ_DATA(self, *arguments, **settings)


READ_DATA = FileSystemReader.read_data


def _expect(said: list[str], beginnings: list[str]) -> None:
    """Hold what was said against what the main process alone should say."""
    expected = beginnings if dist.get_rank() == 0 else []
    assert len(said) == len(expected), said
    for message, beginning in zip(said, expected, strict=True):
        assert beginning in message, message
    said.clear()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
