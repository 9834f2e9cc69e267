/* profiler_describe.c: events in the forms of the interface's versions. */
#include <string.h>

#include "core/plugins/profiler_abi.h"

static const char *const dtypes[] = {"ncclInt8",    "ncclUint8",    "ncclInt32",      "ncclUint32",
                                     "ncclInt64",   "ncclUint64",   "ncclFloat16",    "ncclFloat32",
                                     "ncclFloat64", "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2"};
const char *const profiler_funcs[FUNC_COUNT] = {"Broadcast", "Reduce",   "AllGather", "ReduceScatter",
                                                "AllReduce", "SendRecv", "Send",      "Recv",
                                                "AlltoAll",  "Scatter",  "Gather",    "Copy"};
const char *const profiler_algos[ALGO_COUNT] = {
    "TREE",      "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS",
    "NVLS_TREE", "PAT",  "DIRECT",         "TWO_SHOT",      "CUSTOM"};
const char *const profiler_protos[PROTO_COUNT] = {"LL", "LL128", "SIMPLE"};

const char *profiler_dtype(uint8_t dtype) {
  return dtype < sizeof dtypes / sizeof dtypes[0] ? dtypes[dtype] : "unknown";
}

/* The number of a name from a table above; `count` if it is none of them. */
static uint8_t number_of(const char *const *table, uint32_t count, const char *name) {
  uint32_t number = 0;
  while (number < count && table[number] != name) number += 1;
  return (uint8_t)number;
}
#define NUMBER(table, name) number_of(table, sizeof(table) / sizeof *(table), name)

static size_t bytes_of(const char *dtype, size_t count) {
  static const uint8_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1, 0};
  return count * bytes[NUMBER(dtypes, dtype)];
}

static void describe_coll_1(const struct coll_event *coll, struct coll_event_1 *to) {
  to->sequence = coll->sequence;
  to->func = NUMBER(profiler_funcs, coll->func);
  to->in = coll->in;
  to->out = coll->out;
  to->count = coll->count;
  to->root = coll->root;
  to->dtype = NUMBER(dtypes, coll->dtype);
  to->bytes = bytes_of(coll->dtype, coll->count);
  to->channels = coll->channels;
  to->algo = NUMBER(profiler_algos, coll->algo);
  to->proto = NUMBER(profiler_protos, coll->proto);
  to->is_collnet = to->algo == ALGO_COLLNET_DIRECT || to->algo == ALGO_COLLNET_CHAIN;
  to->is_nvls = to->algo == ALGO_NVLS || to->algo == ALGO_NVLS_TREE;
}

static void describe_coll(int version, const struct coll_event *coll, struct event_1 *event) {
  const struct coll_event_3 plain = {event->about.coll_3.comm_name,
                                     event->about.coll_3.comm_id,
                                     coll->sequence,
                                     coll->func,
                                     coll->in,
                                     coll->out,
                                     coll->count,
                                     coll->root,
                                     coll->dtype,
                                     coll->channels,
                                     coll->warps,
                                     coll->algo,
                                     coll->proto};
  struct coll_event_2 *to = &event->about.coll_2;
  if (version == 1) {
    describe_coll_1(coll, &event->about.coll_1);
    return;
  }
  event->about.coll_3 = plain;
  if (version == 3) return;
  to->bytes = bytes_of(coll->dtype, coll->count);
  to->channels = coll->channels;
  to->warps = coll->warps;
  to->algo = coll->algo;
  to->proto = coll->proto;
}

static void describe_p2p(int version, const struct p2p_event *p2p, struct event_1 *event) {
  struct p2p_event_1 *first = &event->about.p2p_1;
  struct p2p_event_2 *second = &event->about.p2p_2;
  if (version == 1) {
    first->func = NUMBER(profiler_funcs, p2p->func);
    first->buffer = p2p->buffer;
    first->dtype = NUMBER(dtypes, p2p->dtype);
    first->count = p2p->count;
    first->peer = p2p->peer;
    return;
  }
  second->func = p2p->func;
  second->buffer = p2p->buffer;
  second->dtype = p2p->dtype;
  second->count = p2p->count;
  second->peer = p2p->peer;
}

/* Name and id of the communicator are the first members of all forms. */
static void *describe_1(int version, const struct profiler_comm *comm, const union event_about *about,
                        struct event_1 *event) {
  if (event->type != EVENT_COLL && event->type != EVENT_P2P) return event;
  event->about.coll_3.comm_name = comm->name;
  event->about.coll_3.comm_id = comm->comm_id;
  if (event->type == EVENT_COLL) describe_coll(version, &about->coll, event);
  else describe_p2p(version, &about->p2p, event);
  return event;
}

void *profiler_describe(int version, const struct profiler_comm *comm, int type, void *parent,
                        const union event_about *about, union event_any *form) {
  const int rank = (int)comm->rank;
  memset(form, 0, sizeof *form);
  if (version >= 5) {
    form->v5 = (struct event_5){(uint64_t)type, parent, rank, *about};
    return &form->v5;
  }
  if (type > UINT8_MAX) return NULL;
  if (version == 4) {
    form->v4 = (struct event_4){(uint8_t)type, parent, rank, *about};
    return &form->v4;
  }
  form->v1.type = (uint8_t)type;
  form->v1.parent = parent;
  form->v1.rank = rank;
  return describe_1(version, comm, about, &form->v1);
}
