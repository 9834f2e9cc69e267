"""package_calls.py: the Python package: every collective and message on arrays of the host and on device
memory, and the errors of wrong calls. Run by test_package.sh, once for each name:

    package_calls.py NAME

Prints `ok` and exits with 0, or with a traceback."""
import array
import sys

import tutti
from tutti import cuda

RANKS = 4


class Job:
    """Four ranks of one thread, each with a stream."""

    def __init__(self):
        self.comms = tutti.Communicator.init_all(RANKS)
        self.streams = []
        for comm in self.comms:
            cuda.set_device(comm.device)
            self.streams.append(cuda.Stream())

    def run(self, call):
        """call(rank, comm, stream) of all ranks as a group, to its end."""
        with tutti.group():
            for rank, comm in enumerate(self.comms):
                call(rank, comm, self.streams[rank])
        for stream in self.streams:
            stream.synchronize()

    def close(self):
        for comm in self.comms:
            comm.destroy()
        for stream in self.streams:
            stream.close()


def floats(*values):
    return array.array('f', values)


def collectives():
    job = Job()
    own = [floats(rank, 10 + rank, 20 + rank, 30 + rank) for rank in range(RANKS)]
    four = [floats(*[-1] * 4) for _ in range(RANKS)]
    all_ranks = [floats(*[-1] * 16) for _ in range(RANKS)]
    one = [floats(-1) for _ in range(RANKS)]
    job.run(lambda r, comm, s: comm.allreduce(own[r], four[r], stream=s))
    assert all(list(each) == [6, 46, 86, 126] for each in four), four
    job.run(lambda r, comm, s: comm.reduce(own[r], four[r], tutti.MAX, 2, stream=s))
    assert list(four[2]) == [3, 13, 23, 33] and list(four[1]) == [6, 46, 86, 126], four
    job.run(lambda r, comm, s: comm.broadcast(own[r], four[r], 1, stream=s))
    assert all(list(each) == [1, 11, 21, 31] for each in four), four
    job.run(lambda r, comm, s: comm.allgather(own[r], all_ranks[r], stream=s))
    assert all(list(each) == [x for part in own for x in part] for each in all_ranks), all_ranks
    job.run(lambda r, comm, s: comm.reduce_scatter(own[r], one[r], tutti.AVG, stream=s))
    assert [list(each) for each in one] == [[1.5], [11.5], [21.5], [31.5]], one
    job.run(lambda r, comm, s: comm.alltoall(own[r], four[r], stream=s))
    assert all(list(four[r]) == [10 * r + i for i in range(RANKS)] for r in range(RANKS)), four
    job.run(lambda r, comm, s: comm.gather(one[r], four[r], 3, stream=s))
    assert list(four[3]) == [1.5, 11.5, 21.5, 31.5], four
    job.run(lambda r, comm, s: comm.scatter(own[r], one[r], 3, stream=s))
    assert [list(each) for each in one] == [[3], [13], [23], [33]], one
    job.close()


def messages():
    job = Job()
    sent = [bytes([rank] * 5) for rank in range(RANKS)]
    received = [bytearray(5) for _ in range(RANKS)]

    def shift(rank, comm, stream):
        comm.send(sent[rank], (rank + 1) % RANKS, stream=stream)
        comm.recv(received[rank], (rank - 1) % RANKS, stream=stream)
    job.run(shift)
    assert [each[0] for each in received] == [3, 0, 1, 2], received
    job.close()


def in_place_and_device():
    job = Job()
    data = [array.array('q', [rank, 5]) for rank in range(RANKS)]
    job.run(lambda r, comm, s: comm.allreduce(data[r], data[r], tutti.PROD, stream=s))
    assert all(list(each) == [0, 625] for each in data), data
    for _ in range(20):
        job.run(lambda r, comm, s: comm.allreduce(data[r], data[r], tutti.MAX, stream=s))
    assert all(len(comm._kept) <= 2 for comm in job.comms), [len(comm._kept) for comm in job.comms]
    buffers = []
    for rank, comm in enumerate(job.comms):
        cuda.set_device(comm.device)
        buffers.append(cuda.Buffer(2, tutti.NcclDataType.INT64))
        host = array.array('q', [rank, 1])
        buffers[rank].copy_from(host.buffer_info()[0], 16, job.streams[rank])
        job.streams[rank].synchronize()
    job.run(lambda r, comm, s: comm.allreduce(buffers[r], buffers[r], stream=s))
    host = array.array('q', [0, 0])
    buffers[3].copy_to(host.buffer_info()[0], 16, job.streams[3])
    job.streams[3].synchronize()
    assert list(host) == [6, 4], host
    for buffer in buffers:
        buffer.close()
    job.close()


def operators_and_splits():
    job = Job()
    data = [floats(1, 2) for _ in range(RANKS)]
    ops = [comm.create_pre_mul_sum(rank + 1) for rank, comm in enumerate(job.comms)]
    job.run(lambda r, comm, s: comm.allreduce(data[r], data[r], ops[r], stream=s))
    assert all(list(each) == [10, 20] for each in data), data
    for comm, op in zip(job.comms, ops):
        comm.destroy_op(op)
    job.close()
    config = tutti.NCCLConfig(comm_name='one', max_ctas=4)
    comm = tutti.Communicator.init(1, 0, tutti.get_unique_id(), config)
    half = comm.split(0, 0)
    assert (comm.nranks, comm.rank, half.nranks, half.is_valid) == (1, 0, 1, True)
    half.destroy()
    comm.destroy()
    comm.destroy()
    assert not comm.is_valid


def refused(kind, text, call, *arguments, **options):
    """The call raises `kind` with `text` in its sentence."""
    try:
        call(*arguments, **options)
    except kind as error:
        assert text in str(error), str(error)
        return
    raise AssertionError('not refused: ' + text)


def wrong_arguments():
    comm, other = tutti.Communicator.init_all(2)
    eight, four = floats(*range(8)), floats(*range(4))
    refused(tutti.NcclInvalid, 'sendbuf has 8 elements and recvbuf 4', comm.allreduce, eight, four)
    refused(tutti.NcclInvalid, 'recvbuf has 4 elements, not the 4 of sendbuf times 2', comm.allgather, four,
            four)
    refused(tutti.NcclInvalid, 'sendbuf has elements of FLOAT32 and recvbuf of UINT8', comm.allreduce, four,
            bytearray(4))
    refused(tutti.NcclInvalid, 'it is read-only', comm.allreduce, bytes(4), bytes(4))
    refused(tutti.NcclInvalid, 'its elements do not lie in one piece', comm.send,
            memoryview(bytearray(8))[::2], 1)
    refused(tutti.NcclInvalid, "not 'str'", comm.send, 'text', 1)
    refused(tutti.NcclInvalid, "stream: a Stream", comm.send, four, 1, stream='s')
    refused(tutti.NcclInvalid, 'NCCLConfig has no option blokcing', tutti.NCCLConfig, blokcing=1)
    refused(tutti.NcclInvalid, 'a unique id has 128 bytes, not 3', tutti.UniqueId, b'abc')
    refused(tutti.NcclInvalid, 'belongs to another communicator', other.allreduce, four, four,
            comm.create_pre_mul_sum(2.0))
    refused(tutti.NCCLError, 'peer 7', comm.send, four, 7)
    comm.abort()
    other.abort()
    refused(tutti.NcclInvalid, 'was destroyed or aborted', comm.send, four, 1)


def mismatch():
    job = Job()
    data = [floats(1, 2) for _ in range(RANKS)]

    def call(rank, comm, stream):
        if rank == 2:
            comm.allreduce(data[rank], data[rank], tutti.MAX, stream=stream)
        else:
            comm.allreduce(data[rank], data[rank], stream=stream)
    knows_lines = (3, 11) <= sys.version_info[:2] <= (3, 13)
    refused(tutti.NCCLError, 'different reduction operators: rank 0 called ncclAllReduce(2 float, sum) at '
            + ('package_calls.py:' if knows_lines else ''), job.run, call)
    for comm in job.comms:
        comm.abort()


if __name__ == '__main__':
    globals()[sys.argv[1]]()
    print('ok')
