/* device_ops.c: the emulator behind the host seam (backend.h). Thin: takes the lock, translates CUDA's
 * numbers into results. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "backends/emu/block.h"
#include "backends/emu/order.h"
#include "backends/emu/rma.h"
#include "backends/emu/record.h"
#include "backends/emu/world_impl.h"
#include "base/log.h"
#include "base/os.h"

static ncclResult_t cuda_result(int error, const char *what) {
  if (error == 0) return ncclSuccess;
  return log_fail(error == 1   ? ncclInvalidArgument
                  : error == 2 ? ncclSystemError
                               : ncclUnhandledCudaError,
                  "emulated device: %s failed with CUDA error %d%s", what, error,
                  error == 2     ? " (out of memory)"
                  : error == 400 ? " (invalid stream handle)"
                                 : "");
}

static ncclResult_t emu_device_count(uint32_t *count) {
  *count = emu_options()->device_count;
  return ncclSuccess;
}

static ncclResult_t emu_ops_device_current(uint32_t *device_index) {
  *device_index = emu_device_current();
  return ncclSuccess;
}

static ncclResult_t emu_ops_device_select(uint32_t device_index) {
  return cuda_result(emu_device_select(device_index), "selecting the device");
}

static ncclResult_t emu_device_info(uint32_t device_index, struct device_info *info) {
  if (device_index >= emu_options()->device_count)
    return log_fail(ncclInvalidArgument,
                    "emulated device %" PRIu32 " does not exist; TUTTI_EMU=devices=%" PRIu32 " would add it",
                    device_index, device_index + 1);
  memset(info, 0, sizeof *info);
  snprintf(info->name, sizeof info->name, "tutti emulated GPU");
  emu_device_bus_id(device_index, info->bus_id, sizeof info->bus_id);
  info->capability = 90;
  info->memory_bytes = EMU_DEVICE_MEMORY_BYTES;
  return ncclSuccess;
}

static ncclResult_t emu_device_nodes(uint32_t *node_count) {
  const struct emu_options *o = emu_options();
  if (o->device_count % o->node_count != 0)
    return log_fail(ncclInvalidUsage,
                    "TUTTI_EMU: nodes=%" PRIu32 " does not divide devices=%" PRIu32
                    "; choose numbers that do",
                    o->node_count, o->device_count);
  *node_count = o->node_count;
  return ncclSuccess;
}

static ncclResult_t emu_device_node(uint32_t device_index, uint32_t *node) {
  const struct emu_options *o = emu_options();
  uint32_t node_count = 1;
  TRY(emu_device_nodes(&node_count));
  *node = o->net ? device_index / (o->device_count / node_count) : 0;
  return ncclSuccess;
}

static ncclResult_t emu_device_reach(uint32_t from, uint32_t to, bool *reach) {
  (void)from;
  (void)to;
  *reach = emu_options()->direct;
  return ncclSuccess;
}

static uint32_t round_up(uint32_t value, uint32_t unit) { return (value + unit - 1) / unit * unit; }

/* Production sizes, or the tiny ones asked for: a chunk of `chunk` bytes must fit the chunk's slots. */
static ncclResult_t emu_device_limits(struct plan_limits *limits) {
  const struct emu_options *o = emu_options();
  memset(limits, 0, sizeof *limits);
  limits->slots = o->slots != 0 ? o->slots : FIFO_SLOTS_MAX;
  limits->chunk_bytes = o->chunk_bytes;
  limits->step_bytes[PROTO_SIMPLE] = 524288;
  limits->step_bytes[PROTO_LL] = 65536;
  limits->step_bytes[PROTO_LL128] = 614400;
  limits->p2p_chunk_bytes = 524288;
  if (o->mode == EMU_THREADS) limits->step_bytes[PROTO_SIMPLE] = limits->p2p_chunk_bytes = 131072;
  if (o->chunk_bytes != 0) {
    const uint32_t chunk_steps = chunk_steps_of_slots(limits->slots);
    limits->step_bytes[PROTO_SIMPLE] = round_up((o->chunk_bytes + chunk_steps - 1) / chunk_steps, 16);
    limits->step_bytes[PROTO_LL] = round_up(2 * o->chunk_bytes, 16);
    limits->step_bytes[PROTO_LL128] = round_up(o->chunk_bytes, 120) / 120 * 128;
    limits->p2p_chunk_bytes = o->chunk_bytes;
  }
  /* Free threads: cores are what there is few of, and a rank has one. */
  const bool threads = o->mode == EMU_THREADS;
  limits->channel_count = o->channel_count != 0 ? o->channel_count : threads ? 1 : 2;
  limits->p2p_channel_count = 1;
  while (limits->p2p_channel_count < limits->channel_count) limits->p2p_channel_count *= 2;
  limits->p2p_channels_per_peer = limits->p2p_channel_count < 2 ? 1 : 2;
  limits->flag_bits = o->flag_bits != 0 ? o->flag_bits : 32;
  limits->direct = o->direct;
  limits->algos = o->inputs != 0 ? ~0u : ~PLAN_SHOWS_INPUTS;
  limits->algos_last = threads ? 0 : PLAN_ALGOS_LAST;
  limits->cores = threads;
  limits->links = STEP_LINKS_MAX;
  return ncclSuccess;
}

static ncclResult_t emu_ops_memory_alloc(uint32_t device_index, size_t bytes, void **pointer) {
  return cuda_result(emu_memory_alloc(device_index, bytes, pointer), "allocating device memory");
}

static ncclResult_t emu_ops_memory_free(void *pointer) {
  emu_race_call = (struct race_call){"ncclMemFree", NULL};
  emu_lock();
  const int raced = emu_race_free(pointer);
  emu_unlock();
  if (raced != 0) return ncclInvalidUsage;                                  /* it says so */
  return emu_memory_free(pointer) == 0 ? ncclSuccess : ncclInvalidArgument; /* it says what is wrong */
}

static ncclResult_t emu_memory_query(const void *pointer, struct pointer_info *info) {
  struct emu_allocation allocation;
  memset(info, 0, sizeof *info);
  if (!emu_memory_find(pointer, &allocation)) {
    info->freed = emu_memory_was_freed(pointer);
    return ncclSuccess;
  }
  info->kind = allocation.kind == 1 ? POINTER_HOST : allocation.kind == 2 ? POINTER_DEVICE : POINTER_MANAGED;
  info->device_index = allocation.device_index;
  info->base = allocation.base;
  info->bytes = allocation.bytes;
  info->id = allocation.serial;
  return ncclSuccess;
}

/* ---- communicators ---- */

/* In the order of ids and ranks, not of the threads that open them: a run that fails reports its ranks in
 * this order, and is to be the same each time. */
static void comm_list(struct device_comm *fresh) {
  struct device_comm **place = &emu_comms;
  const struct device_comm_config *own = &fresh->config;
  while (*place != NULL && ((*place)->config.comm_id < own->comm_id ||
                            ((*place)->config.comm_id == own->comm_id && (*place)->config.rank < own->rank)))
    place = &(*place)->next;
  fresh->next = *place;
  *place = fresh;
}

static void comm_raced(uint64_t comm_id) { emu_comm_fail(comm_id, ncclInvalidUsage); }

static ncclResult_t emu_comm_open(const struct device_comm_config *config, struct device_comm **comm) {
  struct device_comm *fresh = (struct device_comm *)os_alloc(sizeof *fresh);
  if (fresh == NULL) return log_no_memory("rank %" PRIu32 ": its device's part", config->rank);
  fresh->config = *config;
  snprintf(fresh->name, sizeof fresh->name, "%s", config->name != NULL ? config->name : "communicator");
  fresh->config.name = fresh->name;
  fresh->config.live = NULL;
  fresh->trace_id = config->comm_id;
  if (config->live != NULL) fresh->live = *config->live;
  emu_record_counts(fresh);
  fresh->memory_bytes = sizeof *fresh;
  fresh->cores = os_core_count();
  emu_kept_sweep();
  emu_lock();
  emu_owner_set(&fresh->owner);
  const bool owned = fresh->owner != NULL;
  if (owned) {
    fresh->race =
        emu_race_rank_open(config->comm_id, fresh->name, config->rank, config->rank_count, comm_raced);
    comm_list(fresh);
  }
  emu_unlock();
  if (!owned) {
    os_free(fresh);
    return log_no_memory("rank %" PRIu32 ": noting the thread that drives it", config->rank);
  }
  *comm = fresh;
  return ncclSuccess;
}

static bool comm_is_idle(void *argument) {
  const struct device_comm *comm = (const struct device_comm *)argument;
  return comm->ended == comm->launches && comm->rma_count == 0;
}

static bool comm_is_alone(void *argument) { return ((const struct device_comm *)argument)->rma_aimed == 0; }

static struct emu_scratch *scratch_create(size_t bytes) {
  struct emu_scratch *scratch = (struct emu_scratch *)os_alloc(sizeof *scratch);
  if (scratch == NULL) return NULL;
  scratch->memory = os_pages_map(bytes);
  scratch->bytes = bytes;
  if (scratch->memory != NULL) return scratch;
  os_free(scratch);
  return NULL;
}

static ncclResult_t emu_comm_scratch(struct device_comm *comm, size_t bytes, void **memory) {
  emu_lock();
  if (comm->scratch == NULL || comm->scratch->bytes < bytes) {
    struct emu_scratch *fresh = scratch_create(bytes);
    if (fresh != NULL) {
      fresh->next = comm->scratch;
      comm->scratch = fresh;
      comm->memory_bytes += bytes;
    }
  }
  const bool fits = comm->scratch != NULL && comm->scratch->bytes >= bytes;
  if (fits) *memory = comm->scratch->memory;
  emu_unlock();
  if (fits) return ncclSuccess;
  return log_no_memory("comm %s: rank %" PRIu32 ": %zu bytes of scratch", comm->name, comm->config.rank,
                       bytes);
}

static void scratch_free_all(struct device_comm *comm) {
  for (struct emu_scratch *scratch = comm->scratch, *next; scratch != NULL; scratch = next) {
    next = scratch->next;
    os_pages_unmap(scratch->memory, scratch->bytes);
    os_free(scratch);
  }
  comm->scratch = NULL;
}

static void emu_comm_close(struct device_comm *comm) {
  if (comm == NULL) return;
  emu_lock();
  emu_wait(comm_is_idle, comm, 0);
  emu_wait(comm_is_alone, comm, 0);
  emu_launch_drop_kept(comm);
  emu_race_rank_close(comm->race);
  if (comm->kernel_count > 0)
    log_warn("comm %s: rank %" PRIu32 " is destroyed while %" PRIu32
             " kernels of it are held by graphs; destroy those graphs first",
             comm->name, comm->config.rank, comm->kernel_count);
  struct device_comm **place = &emu_comms;
  while (*place != comm) place = &(*place)->next;
  *place = comm->next;
  emu_owner_clear(&comm->owner);
  emu_conn_close_all(comm);
  emu_comm_unshare(comm);
  emu_net_slots_free(comm);
  scratch_free_all(comm);
  emu_comm_order_share();
  if (comm->ordered) emu_world_leave_order();
  if (emu_comms == NULL) emu_order_withdraw();
  os_free(comm->order_slots);
  comm->order_slots = NULL;
  emu_changed();
  comm->closed = true;
  comm->live.comm = NULL;
  __atomic_store_n(&comm->abort_flag, 1, __ATOMIC_RELAXED);
  if (comm->kernel_count == 0) emu_comm_free(comm); /* else the last kernel frees it */
  emu_unlock();
}

static void emu_comm_own(struct device_comm *comm) {
  emu_lock();
  emu_owner_set(&comm->owner);
  emu_unlock();
}

static void emu_comm_disown(struct device_comm *comm) {
  emu_lock();
  emu_owner_clear(&comm->owner);
  comm->left = true;
  emu_changed();
  emu_unlock();
}

static ncclResult_t emu_comm_connect(struct device_comm *sender, struct device_comm *receiver,
                                     uint32_t channel_index, uint32_t conn_index, uint8_t slots) {
  emu_lock();
  const ncclResult_t result = emu_conn_open(sender, receiver, channel_index, conn_index, slots);
  emu_unlock();
  return result;
}

static ncclResult_t emu_comm_memory(struct device_comm *comm, uint64_t *bytes) {
  emu_lock();
  *bytes = comm->memory_bytes + map_bytes(&comm->conns) + map_bytes(&comm->peers) + map_bytes(&comm->slots) +
           map_bytes(&comm->sent);
  emu_unlock();
  return ncclSuccess;
}

/* ---- suspending ---- */

static uint64_t emu_comm_releasable(struct device_comm *comm) {
  emu_lock();
  const uint64_t bytes = comm->memory_bytes - sizeof *comm + map_bytes(&comm->conns) +
                         map_bytes(&comm->slots) + map_bytes(&comm->sent);
  emu_unlock();
  return bytes;
}

static ncclResult_t emu_comm_release_check(struct device_comm *comm) {
  emu_lock();
  const bool held = comm->captured_count > 0;
  emu_unlock();
  if (!held) return ncclSuccess;
  return log_fail(ncclInvalidUsage,
                  "comm %s: rank %" PRIu32
                  " has kernels in a CUDA graph, which would use memory that is given back; "
                  "destroy the graph, and what was instantiated from it, before",
                  comm->name, comm->config.rank);
}

static void emu_comm_release(struct device_comm *comm) {
  emu_lock();
  emu_launch_drop_kept(comm);
  emu_conn_close_all(comm);
  emu_net_slots_free(comm);
  scratch_free_all(comm);
  comm->memory_bytes = sizeof *comm;
  comm->reaches_out = comm->has_remote = false;
  emu_changed();
  emu_unlock();
}

static void emu_comm_release_end(struct device_comm *comm) {
  (void)comm;
  emu_kept_sweep();
}

/* ---- */

static void emu_comm_abort(struct device_comm *comm) {
  emu_lock();
  emu_comm_abort_rank(comm);
  emu_unlock();
}

static void emu_comm_settle(struct device_comm *comm, const struct plan_limits *limits) {
  emu_lock();
  comm->config.limits = *limits;
  emu_unlock();
}

static void emu_comm_fail_rank(struct device_comm *comm, ncclResult_t error) {
  emu_lock();
  if (comm->error == ncclSuccess) __atomic_store_n(&comm->error, error, __ATOMIC_RELAXED);
  emu_comm_abort_rank(comm);
  emu_unlock();
}

static ncclResult_t emu_comm_error(struct device_comm *comm) {
  if (emu_options()->mode == EMU_THREADS) return __atomic_load_n(&comm->error, __ATOMIC_RELAXED);
  emu_lock(); /* the world's moves end first */
  const ncclResult_t error = comm->error;
  emu_unlock();
  return error;
}

static bool emu_comm_idle(struct device_comm *comm) {
  emu_lock();
  const bool idle = comm_is_idle(comm);
  emu_unlock();
  return idle;
}

static bool emu_comm_unread(struct device_comm *comm) {
  emu_lock();
  const bool unread = emu_conn_unread(comm);
  emu_unlock();
  return unread;
}

/* ---- launching ---- */

/* There is no kernel that could drop the hook. */
static int launch_refused(const struct plan *plan, int error) {
  if (plan->hook != NULL) plan->hook->drop(plan->hook->argument);
  return error;
}

static int launch_on(struct device_comm *comm, const struct plan *plan, const device_stream *streams,
                     uint32_t stream_count) {
  struct emu_stream *first = emu_stream_find(streams[0]);
  struct emu_stream *others[LAUNCH_STREAMS_MAX];
  if (first == NULL || stream_count > LAUNCH_STREAMS_MAX) return launch_refused(plan, 400);
  for (uint32_t i = 1; i < stream_count; i++)
    if ((others[i - 1] = emu_stream_find(streams[i])) == NULL) return launch_refused(plan, 400);
  /* A graph keeps its kernels, with their buffers. */
  struct emu_kernel *kernel =
      emu_stream_capture_id(first) != 0 ? emu_launch_create(comm, plan, true) : emu_launch_find(comm, plan);
  if (kernel == NULL) return launch_refused(plan, 2);
  const int error = emu_launch_uses(kernel, plan->calls, plan->call_count)
                        ? emu_stream_launch(first, kernel, others, stream_count - 1)
                        : 2;
  emu_kernel_drop(kernel);
  return error;
}

static ncclResult_t launch_result(int error) {
  if (error == RACE_ERROR) return log_fail(ncclInvalidUsage, "%s", emu_race_text());
  return cuda_result(error, "launching a kernel");
}

/* Default-stream names mean the rank's device, whatever device the calling thread has selected. */
static ncclResult_t emu_launch(struct device_comm *comm, const struct plan *plan,
                               const device_stream *streams, uint32_t stream_count) {
  const uint32_t selected = emu_device_current();
  emu_device_select(comm->config.device_index);
  emu_lock();
  emu_owner_set(&comm->owner);
  const int error = launch_on(comm, plan, streams, stream_count);
  emu_unlock();
  emu_device_select(selected);
  return launch_result(error);
}

static bool launch_cached_on(struct device_comm *comm, const struct device_cached_launch *cached,
                             int *error) {
  struct emu_stream *stream = emu_stream_find(cached->stream);
  if (stream == NULL || emu_stream_capture_id(stream) != 0) return false;
  struct emu_kernel *kernel = emu_launch_find_cached(comm, cached);
  if (kernel == NULL) return false;
  if (!emu_launch_uses(kernel, cached->calls, cached->call_count)) return false;
  if (!emu_stream_launch_whole(stream, kernel, error)) *error = emu_stream_launch(stream, kernel, NULL, 0);
  return true;
}

/* Free threads alone are in such a hurry. Default streams' names mean the rank's device. */
static bool emu_launch_cached(struct device_comm *comm, const struct device_cached_launch *cached,
                              ncclResult_t *result) {
  const uint32_t selected = emu_device_current();
  const bool selects = selected != comm->config.device_index;
  int error = 0;
  if (emu_options()->mode != EMU_THREADS || emu_comm_error(comm) != ncclSuccess) return false;
  if (selects) emu_device_select(comm->config.device_index);
  emu_lock();
  const bool launched = launch_cached_on(comm, cached, &error);
  emu_unlock();
  if (selects) emu_device_select(selected);
  if (launched) *result = launch_result(error);
  return launched;
}

static ncclResult_t emu_stream_capture(device_stream stream, uint64_t *graph_id) {
  emu_lock();
  const struct emu_stream *found = emu_stream_find(stream);
  if (found != NULL) *graph_id = emu_stream_capture_id(found);
  emu_unlock();
  return found != NULL ? ncclSuccess
                       : log_fail(ncclInvalidArgument, "stream %p is not a stream of this process", stream);
}

static enum stream_place emu_stream_place(device_stream stream, uint32_t *device_index) {
  if ((uintptr_t)stream <= 2) return STREAM_DEFAULT;
  emu_lock();
  const struct emu_stream *found = emu_stream_find(stream);
  if (found != NULL) *device_index = emu_stream_device(found);
  emu_unlock();
  return found != NULL ? STREAM_ON : STREAM_GONE;
}

static ncclResult_t emu_wait_until(bool (*done)(void *argument), void *argument, uint64_t deadline_ms) {
  emu_lock();
  const ncclResult_t result = emu_wait(done, argument, deadline_ms);
  emu_unlock();
  return result;
}

static bool never(void *argument) {
  (void)argument;
  return false;
}

/* Every pair of devices is as near as NVLink makes them; with tear=1 as far as PCIe does. */
static ncclResult_t emu_device_path(uint32_t from, uint32_t to, struct device_path_info *info) {
  const struct device_path_info self = {PATH_LOC, "LOC", 0, 0, true, true};
  const struct device_path_info whole = {PATH_NVL, "NVL", 0, 0, true, true};
  const struct device_path_info torn = {PATH_PIX, "PIX", 0, 0, true, false};
  *info = from == to ? self : emu_options()->tear ? torn : whole;
  return ncclSuccess;
}

#define PROGRESS_EVENTS 256

static void emu_progress(void) {
  emu_lock();
  emu_poll(never, NULL, PROGRESS_EVENTS);
  emu_unlock();
}

static void emu_ops_unlock(void) {
  emu_changed();
  emu_unlock();
}

static const struct device_ops device_table = {
    .size = sizeof(struct device_ops),
    .count = emu_device_count,
    .current = emu_ops_device_current,
    .select = emu_ops_device_select,
    .info = emu_device_info,
    .nodes = emu_device_nodes,
    .reach = emu_device_reach,
    .limits = emu_device_limits,
    .path = emu_device_path,
    .comm_open = emu_comm_open,
    .comm_close = emu_comm_close,
    .comm_own = emu_comm_own,
    .comm_disown = emu_comm_disown,
    .comm_connect = emu_comm_connect,
    .comm_releasable = emu_comm_releasable,
    .comm_release_check = emu_comm_release_check,
    .comm_release = emu_comm_release,
    .comm_release_end = emu_comm_release_end,
    .comm_memory = emu_comm_memory,
    .comm_abort = emu_comm_abort,
    .node = emu_device_node,
    .comm_settle = emu_comm_settle,
    .comm_fail = emu_comm_fail_rank,
    .comm_error = emu_comm_error,
    .comm_idle = emu_comm_idle,
    .comm_unread = emu_comm_unread,
    .launch = emu_launch,
    .launch_cached = emu_launch_cached,
    .stream_capture = emu_stream_capture,
    .stream_place = emu_stream_place,
    .wait_until = emu_wait_until,
    .progress = emu_progress,
    .outside_wait = emu_world_outside_wait,
    .drive_idle = emu_drive_idle,
    .keeps_time = emu_keeps_time,
    .records_progress = emu_records_progress,
    .comm_stall = emu_comm_stall,
    .put = emu_put,
    .await = emu_await,
    .lock = emu_lock,
    .unlock = emu_ops_unlock,
};
static const struct memory_ops memory_table = {
    .size = sizeof(struct memory_ops),
    .alloc = emu_ops_memory_alloc,
    .free = emu_ops_memory_free,
    .query = emu_memory_query,
    .scratch = emu_comm_scratch,
    .dmabuf = emu_memory_dmabuf,
    .generation = emu_memory_generation,
};
static const struct process_ops process_table = {
    .size = sizeof(struct process_ops),
    .comm_handle = emu_comm_handle,
    .comm_reach = emu_comm_reach,
    .conn_export = emu_conn_export,
    .conn_import = emu_conn_import,
    .conn_both_ends = emu_conn_both_ends,
    .order_offer = emu_order_offer,
    .order_prepare = emu_comm_order_prepare,
    .order_join = emu_comm_order_join,
    .order_cancel = emu_order_cancel,
    .order_hold = emu_comm_order_hold,
    .order_arrive = emu_order_arrive,
    .order_met = emu_comm_order_met,
    .puts_between = emu_puts_between,
    .signals_export = emu_signals_export,
    .signals_import = emu_signals_import,
    .window_map = emu_window_map,
};
static const struct network_ops network_table = {
    .size = sizeof(struct network_ops),
    .conn_net = emu_conn_net,
    .net_load = emu_net_load,
    .net_store = emu_net_store,
    .net_announce = emu_net_announce,
    .net_take = emu_net_take,
    .net_put = emu_net_put,
    .net_ll = emu_net_ll,
    .pxn_make = emu_pxn_make,
    .pxn_drop = emu_pxn_drop,
    .pxn_end = emu_pxn_end,
    .net_slots = emu_net_slots,
    .net_rdma = emu_net_rdma,
    .net_memory = emu_net_memory,
    .service_add = emu_service_add,
    .service_wake = emu_service_wake,
    .service_remove = emu_service_remove,
};
static const struct backend emu = {sizeof(struct backend), "emu",          &device_table,
                                   &memory_table,          &process_table, &network_table};

const struct backend *emu_backend(void) { return &emu; }
