/* verbs_fake.c: see verbs_fake.h. A queue pair's requests go through three stages in order: posted, executed
 * (visible at the other end), completed (known at this end). */
#include "verbs_fake.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/os.h"

enum {
  DEVICES = 4,
  PORTS = 2,
  QPS = 1024,
  CQS = 256,
  MEMORIES = 1024,
  EVENTS = 64,
  DEPTH = 256,
  CQ_DEPTH = 65536,
  SHARED_ENTRIES = 1 << 22
};
enum {
  PATIENCE = 40 /* polls until a packet is sent again */,
  SHORT = 120,
  LONG = 1500,
  PIECE_WORDS = 3,
  PLACES = 2
};

struct work {
  struct ibv_send_wr request;
  struct ibv_sge places[PLACES];
  uint8_t inlined[64];
  uint64_t number; /* of this queue pair */
  uint64_t done_at;
};
struct fake_qp {
  struct ibv_qp qp;
  struct ibv_ece options;
  bool used;
  pid_t process; /* its owner */
  struct fake_qp *other;
  struct ibv_qp_attr attributes;
  uint32_t send_depth, receive_depth;
  struct work works[DEPTH];
  uint64_t posted, carried, completed;
  uint64_t receives[DEPTH], receives_posted, receives_taken;
  uint64_t begin_at; /* of the request that is executed next */
  uint32_t tries, piece;
  uint64_t unheard_until; /* when it gives up */
  bool forgotten;         /* its timer is lost: it never gives up */
};
struct fake_cq {
  struct ibv_cq cq;
  bool used;
  uint32_t depth;
  uint64_t in, out;
  struct ibv_wc *entries;
};
/* Data on its way into device memory, in the order of writes. */
struct late {
  struct late *next;
  uint8_t *to;
  size_t bytes;
  uint8_t data[];
};
struct fake_memory {
  struct ibv_mr memory;
  bool used;
  int access;
};
struct fake_device {
  struct ibv_device device;
  struct ibv_context context;
  bool open, dead;
  uint64_t cut_until[PORTS + 1], down_at[PORTS + 1], up_at[PORTS + 1];
  struct ibv_async_event events[EVENTS];
  uint32_t event_in, event_out;
  uint32_t qps_made; /* queue pairs are numbered by their devices */
};

struct world {
  struct fake_verbs_options options;
  struct fake_verbs_stats stats;
  uint64_t now;
  struct fake_device devices[DEVICES];
  struct fake_qp qps[QPS];
  struct fake_cq cqs[CQS];
  struct fake_memory memories[MEMORIES];
  uint32_t serial, qps_made, qps_end; /* no queue pair from qps_end on was ever used */
  uint64_t flap_at;                   /* the next one */
  uint32_t flaps;                     /* so far */
};
#define SHARED_ADDRESS ((void *)0x200000000000)
/* What processes share: a file at the same address in all of them. */
struct shared_world {
  pthread_mutex_t mutex; /* lives on when a process dies that holds it */
  struct world world;
  size_t entries_used;
  struct ibv_wc entries[SHARED_ENTRIES]; /* of completion queues; none is used twice */
};
static struct world own_world, *world = &own_world;
static struct shared_world *shared;         /* NULL: the devices are of one process */
static uint32_t first_device, device_count; /* the process's, if they are shared */
/* What is on its way into this process's device memory. */
static struct late *late_first, **late_end = &late_first;
static bool destroys_held; /* atomic */

static os_mutex own_mutex = OS_MUTEX_INITIALIZER;

static int lock(void) {
  if (shared == NULL) os_mutex_lock(&own_mutex);
  else if (pthread_mutex_lock(&shared->mutex) == EOWNERDEAD) pthread_mutex_consistent(&shared->mutex);
  return 0;
}
static void unlock(const int *unused) {
  (void)unused;
  if (shared == NULL) os_mutex_unlock(&own_mutex);
  else pthread_mutex_unlock(&shared->mutex);
}
/* Held until the end of the function. */
#define LOCKED const int locked __attribute__((cleanup(unlock), unused)) = lock()

static void broken(const char *what) {
  fprintf(stderr, "verbs_fake: %s\n", what);
  abort();
}

static uint64_t draw(const struct fake_qp *qp, uint64_t number, uint64_t what) {
  return hash_scramble(hash_scramble(world->options.seed ^ (qp->qp.qp_num * HASH_STEP)) ^ (number << 20) ^
                       what);
}

static struct fake_device *device_of(struct ibv_context *context) {
  for (int i = 0; i < DEVICES; i++)
    if (&world->devices[i].context == context) return &world->devices[i];
  broken("a context that is none");
  return NULL;
}

static uint32_t makers_of(const struct fake_qp *qp) {
  return world->options.makers & ~(1u << (device_of(qp->qp.context) - world->devices));
}

static void event_add(struct fake_device *device, enum ibv_event_type type, struct ibv_qp *qp, int port) {
  struct ibv_async_event *event = &device->events[device->event_in++ % EVENTS];
  memset(event, 0, sizeof *event);
  event->event_type = type;
  if (qp != NULL) event->element.qp = qp;
  else event->element.port_num = port;
}

/* ---- completions ---- */

static void complete(struct ibv_cq *at, const struct fake_qp *qp, uint64_t id, enum ibv_wc_status status,
                     enum ibv_wc_opcode opcode, uint32_t immediate, uint32_t bytes) {
  struct fake_cq *cq = (struct fake_cq *)at;
  if (cq->in - cq->out >= cq->depth) broken("a completion queue overflows");
  struct ibv_wc *wc = &cq->entries[cq->in++ % cq->depth];
  memset(wc, 0, sizeof *wc);
  wc->wr_id = id;
  wc->status = status;
  wc->qp_num = qp->qp.qp_num;
  wc->vendor_err = status == IBV_WC_SUCCESS ? 0 : 0x80 + (uint32_t)status;
  if (status != IBV_WC_SUCCESS) return; /* no other member is valid */
  wc->opcode = opcode;
  wc->imm_data = immediate;
  wc->byte_len = bytes;
}

/* Completes the current request with this status; all later ones are flushed. */
static void qp_stop(struct fake_qp *qp, enum ibv_wc_status status) {
  if (qp->attributes.qp_state == IBV_QPS_ERR) return;
  qp->attributes.qp_state = IBV_QPS_ERR;
  for (; qp->completed < qp->posted; qp->completed++) {
    complete(qp->qp.send_cq, qp, qp->works[qp->completed % DEPTH].request.wr_id, status, IBV_WC_RDMA_WRITE, 0,
             0);
    status = IBV_WC_WR_FLUSH_ERR;
  }
  for (; qp->receives_taken < qp->receives_posted; qp->receives_taken++)
    complete(qp->qp.recv_cq, qp, qp->receives[qp->receives_taken % DEPTH], IBV_WC_WR_FLUSH_ERR, IBV_WC_RECV,
             0, 0);
}

/* ---- executing requests ---- */

static struct fake_memory *memory_of(uint32_t key, struct ibv_pd *pd, uint64_t at, size_t bytes, int access) {
  for (int i = 0; i < MEMORIES; i++) {
    struct fake_memory *memory = &world->memories[i];
    if (!memory->used || memory->memory.lkey != key || memory->memory.pd != pd) continue;
    const uint64_t begin = (uint64_t)(uintptr_t)memory->memory.addr;
    const bool inside = at >= begin && at + bytes <= begin + memory->memory.length;
    return inside && (memory->access & access) == access ? memory : NULL;
  }
  return NULL;
}

static bool port_is_cut(struct fake_qp *qp) {
  const struct fake_device *device = device_of(qp->qp.context);
  return device->cut_until[qp->attributes.port_num] > world->now;
}

/* The other end, if packets reach it. */
static bool is_reached(struct fake_qp *qp) {
  struct fake_qp *other = qp->other;
  if (world->options.no_route || other == NULL || !other->used || other->other != qp) return false;
  if (other->attributes.qp_state != IBV_QPS_RTR && other->attributes.qp_state != IBV_QPS_RTS) return false;
  if (other == qp) return true; /* a loopback connection stays within the device */
  if (port_is_cut(qp) || port_is_cut(other) || device_of(other->qp.context)->dead) return false;
  return true;
}

/* Reports the port's state. The effect on its queue pairs differs between devices. */
static bool port_is_down(struct fake_qp *qp) {
  const bool told = world->options.fault == VERBS_PORT_DOWN || world->options.fault == VERBS_PORT_RETURNS;
  return (told || world->options.flaps > 0) && port_is_cut(qp);
}

static void second(struct fake_qp *qp) {
  world->stats.retries++;
  if (draw(qp, qp->works[qp->carried % DEPTH].number, 64 + qp->tries) % 100 < world->options.forgets) {
    qp->forgotten = true;
    world->stats.forgotten++;
    return;
  }
  if (port_is_down(qp) && world->options.seed / VERBS_FAULTS % 2 != 0) qp_stop(qp, IBV_WC_LOC_QP_OP_ERR);
  if (++qp->tries > qp->attributes.retry_cnt) qp_stop(qp, IBV_WC_RETRY_EXC_ERR);
  qp->begin_at = world->now + PATIENCE;
}

static uint32_t work_bytes(const struct work *work) {
  uint32_t bytes = 0;
  for (int i = 0; i < work->request.num_sge; i++) bytes += work->places[i].length;
  return bytes;
}

/* Reads memory of the process that owns the queue pair; false: that process has ended. */
static bool memory_read(const struct fake_qp *qp, const uint8_t *from, uint8_t *to, size_t bytes) {
  struct iovec here = {to, bytes}, there = {(void *)(uintptr_t)from, bytes};
  if (shared != NULL && qp->process != getpid())
    return process_vm_readv(qp->process, &here, 1, &there, 1, 0) == (ssize_t)bytes;
  memcpy(to, from, bytes);
  return true;
}

/* Reads these bytes of all scatter-gather entries together. */
static bool work_read(const struct fake_qp *qp, const struct work *work, size_t at, size_t bytes,
                      uint8_t *to) {
  const bool inlined = (work->request.send_flags & IBV_SEND_INLINE) != 0;
  if (inlined) memcpy(to, work->inlined + at, bytes);
  for (int i = 0; bytes > 0 && !inlined; i++) {
    const struct ibv_sge *place = &work->places[i];
    const size_t skipped = at < place->length ? at : place->length;
    const size_t rest = place->length - skipped, count = bytes < rest ? bytes : rest;
    if (!memory_read(qp, (const uint8_t *)(uintptr_t)place->addr + skipped, to, count)) return false;
    at -= skipped;
    to += count;
    bytes -= count;
  }
  return true;
}

/* Upwards, for readers that rely on the last word. */
static void bytes_store(volatile uint8_t *to, const uint8_t *from, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) to[i] = from[i];
}

static void late_drop(bool seen) {
  for (struct late *late; (late = late_first) != NULL; free(late)) {
    late_first = late->next;
    if (seen) bytes_store(late->to, late->data, late->bytes);
  }
  late_end = &late_first;
}

/* Copies some words of the data; true when all are copied. */
static bool data_move(struct fake_qp *qp, const struct work *work) {
  uint8_t *to = (uint8_t *)(uintptr_t)work->request.wr.rdma.remote_addr;
  const size_t bytes = work_bytes(work);
  /* Large messages are copied in a few large pieces, small ones in words. */
  const size_t share = bytes / 4 + PIECE_WORDS * 8, piece = share - share % 8, begin = qp->piece * piece;
  const size_t count = begin >= bytes ? 0 : bytes - begin < piece ? bytes - begin : piece;
  const bool of_gpu = world->options.gpus && bytes > 0 &&
                      memory_of(work->request.wr.rdma.rkey, qp->other->qp.pd,
                                work->request.wr.rdma.remote_addr, bytes, IBV_ACCESS_REMOTE_READ) != NULL;
  struct late *late = (struct late *)calloc(1, sizeof *late + count);
  *late = (struct late){NULL, to + begin, count};
  const bool read = work_read(qp, work, begin, count, late->data);
  if (read && of_gpu) {
    *late_end = late;
    late_end = &late->next;
  } else {
    if (read) bytes_store(late->to, late->data, count);
    free(late);
  }
  qp->piece += read;
  return read && begin + piece >= bytes;
}

static enum ibv_wc_status work_check(struct fake_qp *qp, const struct work *work) {
  const uint32_t bytes = work_bytes(work);
  const bool reads = work->request.opcode == IBV_WR_RDMA_READ;
  if (bytes == 0) return IBV_WC_SUCCESS; /* keys of zero bytes are not checked */
  for (int i = 0; i < work->request.num_sge && (work->request.send_flags & IBV_SEND_INLINE) == 0; i++)
    if (memory_of(work->places[i].lkey, qp->qp.pd, work->places[i].addr, work->places[i].length, 0) == NULL)
      return IBV_WC_LOC_PROT_ERR;
  if (memory_of(work->request.wr.rdma.rkey, qp->other->qp.pd, work->request.wr.rdma.remote_addr, bytes,
                reads ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE) == NULL)
    return IBV_WC_REM_ACCESS_ERR;
  return IBV_WC_SUCCESS;
}

static void notify(struct fake_qp *other, const struct work *work) {
  const uint64_t id = other->receives[other->receives_taken++ % DEPTH];
  world->stats.notifications++;
  complete(other->qp.recv_cq, other, id, IBV_WC_SUCCESS, IBV_WC_RECV_RDMA_WITH_IMM, work->request.imm_data,
           work_bytes(work));
}

static void work_carried(struct fake_qp *qp, struct work *work) {
  const uint64_t late = draw(qp, work->number, 2) % (world->options.delay_most + 1);
  const bool ack_lost = world->options.fault == VERBS_LOSES && draw(qp, work->number, 3) % 10 == 0;
  const uint64_t before = qp->carried > qp->completed ? qp->works[(qp->carried - 1) % DEPTH].done_at : 0;
  work->done_at = world->now + late + (ack_lost ? PATIENCE : 0);
  if (work->done_at < before) work->done_at = before;
  qp->carried++;
  qp->tries = qp->piece = 0;
  qp->begin_at = world->now + 1;
  if (qp->carried < qp->posted)
    qp->begin_at += draw(qp, work->number + 1, 1) % (world->options.delay_most + 1);
}

static void qp_carry(struct fake_qp *qp) {
  struct work *work = &qp->works[qp->carried % DEPTH];
  const bool notifies = work->request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  if (qp->carried == qp->posted || world->now < qp->begin_at || qp->forgotten) return;
  const bool lost = qp->other != qp && world->options.fault == VERBS_LOSES &&
                    draw(qp, work->number, 16 + qp->tries) % 10 == 0;
  if (lost || !is_reached(qp)) {
    second(qp);
    return;
  }
  const enum ibv_wc_status status = work_check(qp, work);
  if (status != IBV_WC_SUCCESS) {
    if (status == IBV_WC_REM_ACCESS_ERR) qp_stop(qp->other, IBV_WC_WR_FLUSH_ERR);
    qp->completed = qp->carried;
    qp_stop(qp, status);
    return;
  }
  const bool unready = qp->tries == 0 && draw(qp, work->number, 4) % 100 < world->options.not_ready;
  if (notifies && (unready || qp->other->receives_taken == qp->other->receives_posted)) {
    qp->tries = 1; /* rnr_retry is 7: for ever */
    qp->begin_at = world->now + PATIENCE / 4;
    return;
  }
  if (work->request.opcode == IBV_WR_RDMA_READ && world->options.no_reads) broken("a needless read");
  if (work->request.opcode == IBV_WR_RDMA_READ)
    world->stats.flushes++, late_drop(!world->options.reads_nothing);
  else if (!data_move(qp, work)) return;
  if (notifies) notify(qp->other, work);
  work_carried(qp, work);
}

static void qp_complete(struct fake_qp *qp) {
  if (qp->unheard_until != 0) {
    if (qp->unheard_until < world->now) qp_stop(qp, IBV_WC_RETRY_EXC_ERR);
    return;
  }
  while (qp->completed < qp->carried && qp->works[qp->completed % DEPTH].done_at <= world->now) {
    const struct work *work = &qp->works[qp->completed++ % DEPTH];
    if ((work->request.send_flags & IBV_SEND_SIGNALED) != 0)
      complete(qp->qp.send_cq, qp, work->request.wr_id, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE, 0, 0);
  }
}

/* ---- faults ---- */

/* Some devices report an event when their queue pairs fail. */
static uint64_t draw_late(void) { return world->options.seed / VERBS_FAULTS % 2 != 0 ? 60 : 1; }

static void port_fails(struct fake_device *device, uint8_t port, bool told, uint64_t until) {
  device->cut_until[port] = until;
  if (told) device->down_at[port] = world->now + draw_late();
  if (told && until != UINT64_MAX) device->up_at[port] = until;
}

static void strike(struct fake_qp *qp) {
  struct fake_device *device = device_of(qp->qp.context);
  const uint8_t port = qp->attributes.port_num;
  world->stats.struck = true;
  switch (world->options.fault) {
    case VERBS_CUT: port_fails(device, port, false, UINT64_MAX); break;
    case VERBS_CUT_SHORTLY: port_fails(device, port, false, world->now + SHORT); break;
    case VERBS_PORT_DOWN: port_fails(device, port, true, UINT64_MAX); break;
    case VERBS_PORT_FLAPS: port_fails(device, port, true, world->now + SHORT); break;
    case VERBS_PORT_RETURNS: port_fails(device, port, true, world->now + LONG); break;
    case VERBS_QP_FATAL: event_add(device, IBV_EVENT_QP_FATAL, &qp->qp, 0); /* fall through */
    case VERBS_QP_STOPS: qp_stop(qp, IBV_WC_GENERAL_ERR); break;
    case VERBS_UNHEARD: qp->unheard_until = world->now + PATIENCE * qp->attributes.retry_cnt; break;
    case VERBS_ACCESS:
      qp_stop(qp, IBV_WC_REM_ACCESS_ERR);
      if (qp->other != NULL && qp->other->used) qp_stop(qp->other, IBV_WC_WR_FLUSH_ERR);
      break;
    case VERBS_DEVICE_FATAL:
      device->dead = true;
      event_add(device, IBV_EVENT_DEVICE_FATAL, NULL, 0);
      break;
    default: break;
  }
}

/* An active port goes down, for about as long as retries last, and its device reports it, perhaps late. */
static void world_flap(void) {
  const uint64_t drawn = hash_scramble(world->options.seed ^ ((world->flaps + 1) * HASH_STEP));
  struct fake_device *device = &world->devices[drawn % world->options.devices];
  const uint8_t port = (uint8_t)(1 + (drawn >> 8) % world->options.ports);
  if (device->cut_until[port] + 2 * SHORT < world->now) {
    port_fails(device, port, true, world->now + SHORT + (drawn >> 16) % SHORT * ((drawn >> 32) % 8));
    world->flaps++;
  }
  world->flap_at = world->now + 1 + (drawn >> 40) % (4 * SHORT) * ((drawn >> 48) % 4);
}

/* The process whose memory a request writes executes it. */
static bool is_executed_here(const struct fake_qp *qp) {
  const struct fake_qp *other = qp->other != NULL && qp->other->used ? qp->other : qp;
  return shared == NULL || other->process == getpid();
}

static void world_step(void) {
  world->now++;
  if (world->flaps < world->options.flaps && world->flap_at <= world->now && world->stats.struck)
    world_flap();
  for (uint32_t i = 0; i < world->qps_end; i++) {
    struct fake_qp *qp = &world->qps[i];
    if (!qp->used || device_of(qp->qp.context)->dead) continue;
    qp_complete(qp);
    if (qp->attributes.qp_state == IBV_QPS_RTS && is_executed_here(qp)) qp_carry(qp);
  }
  for (int i = 0; i < DEVICES; i++)
    for (int port = 1; port <= PORTS; port++) {
      if (world->devices[i].down_at[port] == world->now)
        event_add(&world->devices[i], IBV_EVENT_PORT_ERR, NULL, port);
      if (world->devices[i].up_at[port] == 0 || world->devices[i].up_at[port] > world->now) continue;
      world->devices[i].up_at[port] = 0;
      event_add(&world->devices[i], IBV_EVENT_PORT_ACTIVE, NULL, port);
    }
}

/* ---- the table ---- */

static struct ibv_device **list(int *count) {
  static struct ibv_device *devices[DEVICES + 1];
  *count = (int)(shared != NULL ? device_count : world->options.devices);
  for (int i = 0; i < *count; i++) devices[i] = &world->devices[first_device + (uint32_t)i].device;
  return devices;
}

static void list_free(struct ibv_device **devices) { (void)devices; }

static void path(struct ibv_device *device, char *out, size_t out_bytes) {
  const struct fake_device *of = (const struct fake_device *)device;
  const int index = (int)(of - world->devices), nic = world->options.one_nic ? 0 : index;
  snprintf(out, out_bytes, "/sys/devices/pci0000:%02d/0000:%02d:00.%d", nic, nic,
           world->options.one_nic ? index : 0);
}

static struct ibv_context *context_open(struct ibv_device *device) {
  LOCKED;
  struct fake_device *of = (struct fake_device *)device;
  of->open = true;
  of->context.device = device;
  world->stats.contexts++;
  return &of->context;
}

static int context_close(struct ibv_context *context) {
  LOCKED;
  device_of(context)->open = false;
  world->stats.contexts--;
  return 0;
}

static int device_query(struct ibv_context *context, struct ibv_device_attr *attributes) {
  (void)context;
  memset(attributes, 0, sizeof *attributes);
  attributes->phys_port_cnt = (uint8_t)world->options.ports;
  attributes->max_cqe = CQ_DEPTH;
  attributes->sys_image_guid = 0x1234;
  return 0;
}

static int port_query(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attributes) {
  const bool down = device_of(context)->up_at[port] != 0;
  memset(attributes, 0, sizeof *attributes);
  attributes->state = down ? IBV_PORT_DOWN : IBV_PORT_ACTIVE;
  attributes->active_mtu = IBV_MTU_4096;
  attributes->gid_tbl_len = 4;
  attributes->active_speed = 128;
  attributes->active_width = 2;
  attributes->lid =
      world->options.infiniband ? (uint16_t)(device_of(context) - world->devices) * 8 + port : 0;
  attributes->link_layer = world->options.infiniband ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
  return 0;
}

/* 0: link-local; 1: the same for RoCE v1; 2: IPv4; the last is empty. */
static int gid_query(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid) {
  const uint8_t host = (uint8_t)((device_of(context) - world->devices) * 8 + port);
  memset(gid, 0, sizeof *gid);
  if (index == 3) return 0;
  if (index == 2) {
    gid->raw[10] = gid->raw[11] = 0xff;
    gid->raw[12] = 10;
  } else {
    gid->raw[0] = 0xfe;
    gid->raw[1] = 0x80;
  }
  gid->raw[15] = host;
  return 0;
}

static enum gid_kind kind(struct ibv_context *context, uint8_t port, int index) {
  (void)context;
  (void)port;
  return index == 1 ? GID_ROCE1 : GID_ROCE2;
}

static struct ibv_pd *pd_alloc(struct ibv_context *context) {
  LOCKED;
  struct ibv_pd *pd = (struct ibv_pd *)calloc(1, sizeof *pd);
  pd->context = context;
  world->stats.pds++;
  return pd;
}

static int pd_free(struct ibv_pd *pd) {
  LOCKED;
  free(pd);
  world->stats.pds--;
  return 0;
}

static struct ibv_mr *memory_register(struct ibv_pd *pd, void *data, size_t bytes, int access, bool relaxed) {
  LOCKED;
  (void)relaxed;
  for (int i = 0; i < MEMORIES; i++) {
    struct fake_memory *memory = &world->memories[i];
    if (memory->used) continue;
    memset(memory, 0, sizeof *memory);
    memory->used = true;
    memory->access = access;
    memory->memory.pd = pd;
    memory->memory.addr = data;
    memory->memory.length = bytes;
    memory->memory.lkey = memory->memory.rkey = ++world->serial * 257;
    world->stats.memories++;
    world->stats.memories_made++;
    return &memory->memory;
  }
  errno = ENOMEM;
  return NULL;
}

static int memory_unregister(struct ibv_mr *memory) {
  LOCKED;
  ((struct fake_memory *)memory)->used = false;
  world->stats.memories--;
  return 0;
}

static struct ibv_mr *dmabuf_register(struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t address,
                                      int descriptor, int access) {
  if (fcntl(descriptor, F_GETFD) >= 0 && offset % 4096 == 0)
    return memory_register(pd, (void *)(uintptr_t)address, bytes, access, false);
  errno = EBADF;
  return NULL;
}

static bool peer_memory(void) { return world->options.gpus; }

static struct ibv_wc *entries_take(size_t count) {
  if (shared == NULL) return (struct ibv_wc *)calloc(count, sizeof(struct ibv_wc));
  shared->entries_used += count;
  if (shared->entries_used > SHARED_ENTRIES) broken("no space for another completion queue");
  return &shared->entries[shared->entries_used - count];
}

static struct ibv_cq *cq_create(struct ibv_context *context, int depth) {
  LOCKED;
  int i = 0;
  while (i < CQS && world->cqs[i].used) i++;
  if (i == CQS) broken("too many completion queues");
  struct fake_cq *cq = &world->cqs[i];
  memset(cq, 0, sizeof *cq);
  cq->used = true;
  cq->cq.context = context;
  cq->depth = (uint32_t)depth;
  cq->entries = entries_take((size_t)depth);
  world->stats.cqs++;
  return &cq->cq;
}

static int cq_destroy(struct ibv_cq *at) {
  LOCKED;
  struct fake_cq *cq = (struct fake_cq *)at;
  if (shared == NULL) free(cq->entries);
  cq->used = false;
  world->stats.cqs--;
  return 0;
}

static int cq_poll(struct ibv_cq *at, int most, struct ibv_wc *completions) {
  LOCKED;
  struct fake_cq *cq = (struct fake_cq *)at;
  int count = 0;
  world_step();
  for (; count < most && cq->out < cq->in; count++) completions[count] = cq->entries[cq->out++ % cq->depth];
  return count;
}

static struct ibv_qp *qp_create(struct ibv_pd *pd, struct ibv_qp_init_attr *attributes) {
  LOCKED;
  uint32_t i = world->qps_made; /* in the order in which they are made, whenever old ones are destroyed */
  while (i < world->qps_made + QPS && world->qps[i % QPS].used) i++;
  if (i == world->qps_made + QPS) broken("too many queue pairs");
  world->qps_made = i + 1;
  if (world->qps_end <= i % QPS) world->qps_end = i % QPS + 1;
  struct fake_qp *qp = &world->qps[i % QPS];
  memset(qp, 0, sizeof *qp);
  qp->used = true;
  qp->process = getpid();
  qp->qp.context = pd->context;
  qp->qp.qp_context = attributes->qp_context;
  qp->qp.pd = pd;
  qp->qp.send_cq = attributes->send_cq;
  qp->qp.recv_cq = attributes->recv_cq;
  qp->qp.qp_num = 100 + ++device_of(pd->context)->qps_made;
  qp->options = (struct ibv_ece){.vendor_id = 0x2c9, .options = makers_of(qp)};
  qp->send_depth = attributes->cap.max_send_wr;
  qp->receive_depth = attributes->cap.max_recv_wr;
  if (qp->send_depth > DEPTH || qp->receive_depth > DEPTH) broken("a queue pair that is too deep");
  if (++world->stats.qps > world->stats.most_qps) world->stats.most_qps = world->stats.qps;
  return &qp->qp;
}

static bool gid_matches(struct fake_qp *qp, const union ibv_gid *gid) {
  union ibv_gid own;
  for (int index = 0; index < 3; index++) {
    gid_query(qp->qp.context, qp->attributes.port_num, index, &own);
    if (memcmp(&own, gid, sizeof own) == 0) return true;
  }
  return false;
}

static int qp_modify(struct ibv_qp *at, struct ibv_qp_attr *attributes, int mask) {
  LOCKED;
  struct fake_qp *qp = (struct fake_qp *)at;
  const enum ibv_qp_state from = qp->attributes.qp_state, to = attributes->qp_state;
  if (to == IBV_QPS_ERR) {
    qp_stop(qp, IBV_WC_WR_FLUSH_ERR);
    return 0;
  }
  const bool legal = (from == IBV_QPS_RESET && to == IBV_QPS_INIT && (mask & IBV_QP_PORT) != 0) ||
                     (from == IBV_QPS_INIT && to == IBV_QPS_RTR && (mask & IBV_QP_DEST_QPN) != 0) ||
                     (from == IBV_QPS_RTR && to == IBV_QPS_RTS && (mask & IBV_QP_TIMEOUT) != 0);
  if (!legal) {
    errno = EINVAL;
    return EINVAL;
  }
  if (to == IBV_QPS_RTR && port_is_down(qp) && world->options.seed / VERBS_FAULTS % 4 == 1)
    return errno = ETIMEDOUT;
  const uint8_t port = to == IBV_QPS_INIT ? attributes->port_num : qp->attributes.port_num;
  qp->attributes = *attributes;
  qp->attributes.port_num = port;
  if (to != IBV_QPS_RTR) return 0;
  for (int i = 0; i < QPS; i++) {
    struct fake_qp *other = &world->qps[i];
    if (!other->used || other->qp.qp_num != attributes->dest_qp_num) continue;
    if (gid_matches(other, &attributes->ah_attr.grh.dgid)) qp->other = other;
  }
  return 0;
}

static int options_query(struct ibv_qp *at, struct ibv_ece *options) {
  const struct fake_qp *qp = (const struct fake_qp *)at;
  if (world->options.makers == 0) return EOPNOTSUPP;
  *options = qp->options;
  return 0;
}

/* Before it is ready to receive; the device ignores options that it lacks. */
static int options_set(struct ibv_qp *at, struct ibv_ece *options) {
  struct fake_qp *qp = (struct fake_qp *)at;
  if (qp->attributes.qp_state != IBV_QPS_INIT) return EINVAL;
  qp->options.options = options->options & makers_of(qp);
  return 0;
}

const struct ibv_qp_attr *fake_verbs_attributes(const struct ibv_qp *at, uint32_t *makers) {
  const struct fake_qp *qp = (const struct fake_qp *)at;
  *makers = qp->options.options;
  return &qp->attributes;
}

void fake_verbs_hold_destroys(bool hold) { __atomic_store_n(&destroys_held, hold, __ATOMIC_RELEASE); }

static int qp_destroy(struct ibv_qp *at) {
  while (__atomic_load_n(&destroys_held, __ATOMIC_ACQUIRE)) os_yield();
  LOCKED;
  struct fake_qp *qp = (struct fake_qp *)at;
  struct fake_device *device = device_of(qp->qp.context);
  qp->used = false;
  for (uint32_t i = device->event_out; i != device->event_in; i++) {
    struct ibv_async_event *event = &device->events[i % EVENTS];
    if (event->event_type == IBV_EVENT_QP_FATAL && event->element.qp == at)
      event->event_type = IBV_EVENT_SM_CHANGE;
  }
  for (int i = 0; i < QPS; i++)
    if (world->qps[i].other == qp) world->qps[i].other = NULL;
  world->stats.qps--;
  return 0;
}

static void work_add(struct fake_qp *qp, const struct ibv_send_wr *request) {
  struct work *work = &qp->works[qp->posted % DEPTH];
  memset(work, 0, sizeof *work);
  work->request = *request;
  if (request->num_sge > PLACES) broken("more places than were asked for");
  for (int i = 0; i < request->num_sge; i++) work->places[i] = request->sg_list[i];
  if ((request->send_flags & IBV_SEND_INLINE) != 0) {
    if (request->num_sge != 1 || work->places[0].length > sizeof work->inlined)
      broken("more inline than was asked for");
    memcpy(work->inlined, (void *)(uintptr_t)work->places[0].addr, work->places[0].length);
  }
  work->number = qp->posted;
  /* Its receiver may request missing data before it. */
  if (qp->forgotten && draw(qp, work->number, 5) % 2 != 0) qp->forgotten = false, qp->begin_at = world->now;
  if (qp->posted == qp->carried)
    qp->begin_at = world->now + draw(qp, work->number, 1) % (world->options.delay_most + 1);
  qp->posted++;
}

static int send_post(struct ibv_qp *at, struct ibv_send_wr *request, struct ibv_send_wr **bad) {
  LOCKED;
  struct fake_qp *qp = (struct fake_qp *)at;
  for (; request != NULL; request = request->next) {
    *bad = request;
    if (qp->attributes.qp_state != IBV_QPS_RTS && qp->attributes.qp_state != IBV_QPS_ERR) return EINVAL;
    if (qp->posted - qp->completed >= qp->send_depth) return ENOMEM;
    if (qp->attributes.qp_state == IBV_QPS_ERR)
      complete(qp->qp.send_cq, qp, request->wr_id, IBV_WC_WR_FLUSH_ERR, IBV_WC_RDMA_WRITE, 0, 0);
    else work_add(qp, request);
    if (++world->stats.requests == world->options.fault_at) strike(qp);
  }
  return 0;
}

static int receive_post(struct ibv_qp *at, struct ibv_recv_wr *request, struct ibv_recv_wr **bad) {
  LOCKED;
  struct fake_qp *qp = (struct fake_qp *)at;
  for (; request != NULL; request = request->next) {
    *bad = request;
    if (qp->receives_posted - qp->receives_taken >= qp->receive_depth) return ENOMEM;
    qp->receives[qp->receives_posted++ % DEPTH] = request->wr_id;
    if (qp->attributes.qp_state != IBV_QPS_ERR) continue;
    qp->receives_taken++;
    complete(qp->qp.recv_cq, qp, request->wr_id, IBV_WC_WR_FLUSH_ERR, IBV_WC_RECV, 0, 0);
  }
  return 0;
}

static int event_get(struct ibv_context *context, struct ibv_async_event *event) {
  LOCKED;
  struct fake_device *device = device_of(context);
  if (device->event_out == device->event_in) return -1;
  *event = device->events[device->event_out++ % EVENTS];
  return 0;
}

static void event_ack(struct ibv_async_event *event) { (void)event; }

static void world_fill(const struct fake_verbs_options *options) {
  world->options = *options;
  for (int i = 0; i < DEVICES; i++)
    snprintf(world->devices[i].device.name, sizeof world->devices[i].device.name, "fake_%d", i);
}

void fake_verbs_reset(const struct fake_verbs_options *options) {
  if (world->stats.contexts + world->stats.pds + world->stats.cqs + world->stats.qps + world->stats.memories >
      0)
    broken("something is open");
  late_drop(false);
  memset(world, 0, sizeof *world);
  world_fill(options);
}

/* Devices execute requests whatever their process does. */
static void *steps_run(void *unused) {
  const struct timespec pause = {0, 100000};
  (void)unused;
  for (;;) {
    lock();
    world_step();
    unlock(NULL);
    nanosleep(&pause, NULL);
  }
  return NULL;
}

static void shared_fill(const struct fake_verbs_options *options) {
  pthread_mutexattr_t kind;
  pthread_mutexattr_init(&kind);
  pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&shared->mutex, &kind);
  world_fill(options);
}

void fake_verbs_share(const char *file, const struct fake_verbs_options *options, uint32_t first,
                      uint32_t count) {
  const int opened = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  struct stat status;
  pthread_t thread;
  if (opened < 0 || flock(opened, LOCK_EX) != 0 || fstat(opened, &status) != 0) broken(strerror(errno));
  if (status.st_size == 0 && ftruncate(opened, sizeof *shared) != 0) broken(strerror(errno));
  shared = (struct shared_world *)mmap(SHARED_ADDRESS, sizeof *shared, PROT_READ | PROT_WRITE,
                                       MAP_SHARED | MAP_FIXED_NOREPLACE, opened, 0);
  if (shared != SHARED_ADDRESS) broken("the address of what processes share is in use");
  world = &shared->world;
  if (status.st_size == 0) shared_fill(options);
  flock(opened, LOCK_UN); /* the mapping keeps the file open */
  close(opened);
  first_device = first;
  device_count = count;
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); /* the other processes read this one's memory */
  if (pthread_create(&thread, NULL, steps_run, NULL) != 0) broken("no thread for the devices");
  pthread_detach(thread);
}

struct fake_verbs_stats fake_verbs_stats(void) {
  return world->stats;
}

const struct verbs *fake_verbs(void) {
  static const struct verbs table = {
      list,
      list_free,
      path,
      context_open,
      context_close,
      device_query,
      port_query,
      gid_query,
      kind,
      pd_alloc,
      pd_free,
      memory_register,
      memory_unregister,
      dmabuf_register,
      peer_memory,
      cq_create,
      cq_destroy,
      cq_poll,
      qp_create,
      qp_modify,
      qp_destroy,
      options_query,
      options_set,
      send_post,
      receive_post,
      event_get,
      event_ack,
  };
  return &table;
}
