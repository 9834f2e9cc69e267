/* collective_launch.c: NCCL's calls for one rank's part of a collective. */
#include "collective.h"

static ncclResult_t launch_all_reduce(const struct collective_call *c) {
  return api->ncclAllReduce(c->send, c->receive, c->count, c->type, c->op, c->comm, c->stream);
}
static ncclResult_t launch_all_gather(const struct collective_call *c) {
  return api->ncclAllGather(c->send, c->receive, c->count, c->type, c->comm, c->stream);
}
static ncclResult_t launch_reduce_scatter(const struct collective_call *c) {
  return api->ncclReduceScatter(c->send, c->receive, c->count, c->type, c->op, c->comm, c->stream);
}
static ncclResult_t launch_broadcast(const struct collective_call *c) {
  return api->ncclBroadcast(c->send, c->receive, c->count, c->type, c->root, c->comm, c->stream);
}
static ncclResult_t launch_reduce(const struct collective_call *c) {
  return api->ncclReduce(c->send, c->receive, c->count, c->type, c->op, c->root, c->comm, c->stream);
}
/* Around a ring: sends to the next rank, receives from the previous one. */
static ncclResult_t launch_sendrecv(const struct collective_call *c) {
  int next = (c->rank + 1) % c->rank_count, previous = (c->rank + c->rank_count - 1) % c->rank_count;
  ncclResult_t begun = api->ncclGroupStart();
  if (begun != ncclSuccess) return begun;
  ncclResult_t sent = api->ncclSend(c->send, c->count, c->type, next, c->comm, c->stream);
  ncclResult_t received = api->ncclRecv(c->receive, c->count, c->type, previous, c->comm, c->stream);
  ncclResult_t ended = api->ncclGroupEnd();
  return sent != ncclSuccess ? sent : received != ncclSuccess ? received : ended;
}
static ncclResult_t launch_alltoall(const struct collective_call *c) {
  return api->ncclAlltoAll(c->send, c->receive, c->count, c->type, c->comm, c->stream);
}
static ncclResult_t launch_gather(const struct collective_call *c) {
  return api->ncclGather(c->send, c->receive, c->count, c->type, c->root, c->comm, c->stream);
}
static ncclResult_t launch_scatter(const struct collective_call *c) {
  return api->ncclScatter(c->send, c->receive, c->count, c->type, c->root, c->comm, c->stream);
}

ncclResult_t collective_launch(const struct collective *collective, const struct collective_call *call) {
  static ncclResult_t (*const launches[COLLECTIVE_COUNT])(const struct collective_call *c) = {
      [COLLECTIVE_ALL_REDUCE] = launch_all_reduce,
      [COLLECTIVE_ALL_GATHER] = launch_all_gather,
      [COLLECTIVE_REDUCE_SCATTER] = launch_reduce_scatter,
      [COLLECTIVE_BROADCAST] = launch_broadcast,
      [COLLECTIVE_REDUCE] = launch_reduce,
      [COLLECTIVE_SENDRECV] = launch_sendrecv,
      [COLLECTIVE_ALLTOALL] = launch_alltoall,
      [COLLECTIVE_GATHER] = launch_gather,
      [COLLECTIVE_SCATTER] = launch_scatter,
  };
  return launches[collective->id](call);
}
