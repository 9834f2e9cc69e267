/* backend.c: chooses the backend once a process, and fills the gaps of a backend's table with stubs.
 * Promises that every member can be called. Does not know what any backend does. */
#include "backends/backend.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"
#include "base/os.h"
#include "base/param.h"

static ncclResult_t absent(const char *member) {
  return log_fail(ncclInvalidUsage, "the backend in use cannot do '%s'; choose another with TUTTI_BACKEND",
                  member);
}

static ncclResult_t stub_device_count(uint32_t *count) {
  (void)count;
  return absent("device_count");
}
static ncclResult_t stub_device_current(uint32_t *index) {
  (void)index;
  return absent("device_current");
}
static ncclResult_t stub_device_select(uint32_t index) {
  (void)index;
  return absent("device_select");
}
static ncclResult_t stub_device_info(uint32_t index, struct device_info *info) {
  (void)index, (void)info;
  return absent("device_info");
}
static ncclResult_t stub_device_reach(uint32_t from, uint32_t to, bool *reach) {
  (void)from, (void)to, (void)reach;
  return absent("device_reach");
}
static ncclResult_t stub_device_limits(struct plan_limits *limits) {
  (void)limits;
  return absent("device_limits");
}
static ncclResult_t stub_memory_alloc(uint32_t index, size_t bytes, void **pointer) {
  (void)index, (void)bytes, (void)pointer;
  return absent("memory_alloc");
}
static ncclResult_t stub_memory_free(void *pointer) {
  (void)pointer;
  return absent("memory_free");
}
static ncclResult_t stub_memory_query(const void *pointer, struct pointer_info *info) {
  (void)pointer, (void)info;
  return absent("memory_query");
}
static ncclResult_t stub_memory_read(void *host, const void *device, size_t bytes) {
  (void)host, (void)device, (void)bytes;
  return absent("memory_read");
}
static ncclResult_t stub_comm_open(const struct device_comm_config *config, struct device_comm **comm) {
  (void)config, (void)comm;
  return absent("comm_open");
}
static void stub_comm_close(struct device_comm *comm) { (void)comm; }
static void stub_comm_own(struct device_comm *comm) { (void)comm; }
static void stub_comm_disown(struct device_comm *comm) { (void)comm; }
static ncclResult_t stub_comm_connect(struct device_comm *sender, struct device_comm *receiver,
                                      uint32_t channel_index, uint32_t conn_index, uint8_t proto) {
  (void)sender, (void)receiver, (void)channel_index, (void)conn_index, (void)proto;
  return absent("comm_connect");
}
static ncclResult_t stub_comm_memory(struct device_comm *comm, uint64_t *bytes) {
  (void)comm, (void)bytes;
  return absent("comm_memory");
}
static void stub_comm_abort(struct device_comm *comm) { (void)comm; }
static ncclResult_t stub_comm_error(struct device_comm *comm) {
  (void)comm;
  return absent("comm_error");
}
static bool stub_comm_idle(struct device_comm *comm) {
  (void)comm;
  return true;
}
static ncclResult_t stub_launch(struct device_comm *comm, const struct plan *plan,
                                const device_stream *streams, uint32_t stream_count) {
  (void)comm, (void)plan, (void)streams, (void)stream_count;
  return absent("launch");
}
static bool stub_launch_cached(struct device_comm *comm, const struct device_cached_launch *cached,
                               ncclResult_t *result) {
  (void)comm, (void)cached, (void)result;
  return false;
}
/* Without this member there are no graphs, so no stream is captured. */
static ncclResult_t stub_stream_capture(device_stream stream, uint64_t *graph_id) {
  (void)stream;
  *graph_id = 0;
  return ncclSuccess;
}
static ncclResult_t stub_wait_until(bool (*done)(void *argument), void *argument, uint64_t deadline_ms) {
  (void)done, (void)argument, (void)deadline_ms;
  return absent("wait_until");
}
/* A backend that cannot tell its devices' paths apart has none that would be worth telling. */
static ncclResult_t stub_device_path(uint32_t from, uint32_t to, struct device_path_info *info) {
  const struct device_path_info near = {PATH_LOC, "LOC", 0, 0, true, true};
  const struct device_path_info path = {PATH_NVL, "NVL", 0, 0, true, true};
  *info = from == to ? near : path;
  return ncclSuccess;
}
static ncclResult_t stub_device_nodes(uint32_t *node_count) {
  *node_count = 0;
  return ncclSuccess;
}
static ncclResult_t stub_comm_scratch(struct device_comm *comm, size_t bytes, void **scratch) {
  (void)comm, (void)bytes, (void)scratch;
  return absent("comm_scratch");
}
static ncclResult_t stub_device_node(uint32_t device_index, uint32_t *node) {
  (void)device_index;
  *node = 0;
  return ncclSuccess;
}
static void stub_comm_settle(struct device_comm *comm, const struct plan_limits *limits) {
  (void)comm, (void)limits;
}
static void stub_comm_fail(struct device_comm *comm, ncclResult_t error) { (void)comm, (void)error; }
static bool stub_region_ask(struct device_comm *comm, const void *output, uint32_t peer, bool lasts,
                            struct device_memory_handle *handle) {
  (void)comm, (void)output, (void)peer, (void)lasts, (void)handle;
  return false;
}
static void stub_region_answered(struct device_comm *comm, uint32_t peer,
                                 const struct device_memory_handle *handle, uint64_t address) {
  (void)comm, (void)peer, (void)handle, (void)address;
}
static ncclResult_t stub_region_map(struct device_comm *comm, uint32_t peer,
                                    const struct device_memory_handle *handle, uint64_t *address) {
  (void)comm, (void)peer, (void)handle, (void)address;
  return absent("region_map");
}
static void stub_region_unmap(struct device_comm *comm, uint32_t peer,
                              const struct device_memory_handle *handle) {
  (void)comm, (void)peer, (void)handle;
}
static bool stub_region_gone(struct device_comm *comm, uint32_t *peer, struct device_memory_handle *handle) {
  (void)comm, (void)peer, (void)handle;
  return false;
}
static void stub_region_sweep(void) {}
static bool stub_conn_both_ends(void) { return false; }
static ncclResult_t stub_device_farthest_path(uint32_t device_index, struct device_path_info *info) {
  (void)device_index;
  memset(info, 0, sizeof *info);
  return ncclSuccess;
}
/* A backend that no other process can reach: its ranks meet others over networks alone, if at all. */
static ncclResult_t stub_comm_handle(struct device_comm *comm, struct device_comm_handle *handle) {
  (void)comm;
  memset(handle, 0, sizeof *handle);
  return ncclSuccess;
}
static ncclResult_t stub_comm_reach(struct device_comm *comm, uint32_t peer,
                                    const struct device_comm_handle *handle, bool *reach) {
  (void)comm, (void)peer, (void)handle;
  *reach = false;
  return ncclSuccess;
}
static ncclResult_t stub_conn_export(struct device_comm *comm, const struct device_conn_name *name,
                                     struct device_conn_handle *handle) {
  (void)comm, (void)name, (void)handle;
  return absent("conn_export");
}
static ncclResult_t stub_conn_import(struct device_comm *comm, const struct device_conn_name *name,
                                     const struct device_conn_handle *handle) {
  (void)comm, (void)name, (void)handle;
  return absent("conn_import");
}
static ncclResult_t stub_conn_net(struct device_comm *comm, const struct device_conn_name *name,
                                  struct device_net_end *end) {
  (void)comm, (void)name, (void)end;
  return absent("conn_net");
}
static ncclResult_t stub_pxn_make(struct device_comm *comm, uint32_t sender,
                                  const struct device_conn_name *name, size_t block_bytes,
                                  struct device_pxn *pxn, struct device_conn_handle *handle) {
  (void)comm, (void)sender, (void)name, (void)block_bytes, (void)pxn, (void)handle;
  return absent("pxn_make");
}
static void stub_pxn_drop(struct device_net_conn *conn) { (void)conn; }
static ncclResult_t stub_pxn_end(struct device_comm *comm, const struct device_conn_name *name,
                                 size_t block_bytes, struct device_pxn *pxn) {
  (void)comm, (void)name, (void)block_bytes, (void)pxn;
  return absent("pxn_end");
}
static uint64_t stub_net_load(struct device_net_conn *conn, const uint64_t *counter) {
  (void)conn;
  return __atomic_load_n(counter, __ATOMIC_ACQUIRE);
}
static void stub_net_store(struct device_net_conn *conn, uint64_t *counter, uint64_t value) {
  (void)conn;
  __atomic_store_n(counter, value, __ATOMIC_RELEASE);
}
static ncclResult_t stub_net_slots(struct device_comm *comm, uint32_t channel_index, uint32_t place,
                                   bool sends, uint8_t **buffer) {
  (void)comm, (void)channel_index, (void)place, (void)sends, (void)buffer;
  return absent("net_slots");
}
static void stub_net_announce(struct device_net_conn *conn, uint32_t slot, uint32_t tag, uint64_t bytes) {
  (void)conn, (void)slot, (void)tag, (void)bytes;
}
static bool stub_net_take(struct device_net_conn *conn, const struct device_net_step *step, void *data) {
  (void)conn, (void)step, (void)data;
  return false;
}
static void stub_net_put(struct device_net_conn *conn, const struct device_net_step *step, const void *data) {
  (void)conn, (void)step, (void)data;
}
static bool stub_net_ll(bool pxn) {
  (void)pxn;
  return false;
}
static ncclResult_t stub_service_add(const struct device_service *service, void **handle) {
  (void)service;
  *handle = NULL;
  return ncclSuccess;
}
static void stub_service(void *handle) { (void)handle; }
static void stub_nothing(void) {}
static void stub_outside_wait(int more) { (void)more; }
static bool stub_net_memory(struct device_comm *comm, enum pointer_kind kind) {
  (void)comm, (void)kind;
  return false;
}
static ncclResult_t stub_memory_dmabuf(void *memory, size_t bytes, int *descriptor, uint64_t *offset) {
  (void)memory, (void)bytes, (void)descriptor, (void)offset;
  return absent("memory_dmabuf");
}
static void stub_comm_stall(struct device_comm *comm, bool asks, struct device_stall *stall) {
  (void)comm, (void)asks;
  memset(stall, 0, sizeof *stall);
}

static uint32_t stub_drive_idle(void) { return UINT32_MAX; }
static bool stub_keeps_time(void) { return true; }

static const struct device_ops stubs = {
    .size = sizeof(struct device_ops),
    .name = "none",
    .device_count = stub_device_count,
    .device_current = stub_device_current,
    .device_select = stub_device_select,
    .device_info = stub_device_info,
    .device_reach = stub_device_reach,
    .device_limits = stub_device_limits,
    .memory_alloc = stub_memory_alloc,
    .memory_free = stub_memory_free,
    .memory_query = stub_memory_query,
    .memory_read = stub_memory_read,
    .comm_open = stub_comm_open,
    .comm_close = stub_comm_close,
    .comm_own = stub_comm_own,
    .comm_disown = stub_comm_disown,
    .comm_connect = stub_comm_connect,
    .comm_memory = stub_comm_memory,
    .comm_abort = stub_comm_abort,
    .comm_error = stub_comm_error,
    .comm_idle = stub_comm_idle,
    .launch = stub_launch,
    .launch_cached = stub_launch_cached,
    .stream_capture = stub_stream_capture,
    .wait_until = stub_wait_until,
    .progress = stub_nothing,
    .lock = stub_nothing,
    .unlock = stub_nothing,
    .device_path = stub_device_path,
    .device_nodes = stub_device_nodes,
    .comm_scratch = stub_comm_scratch,
    .device_node = stub_device_node,
    .comm_settle = stub_comm_settle,
    .comm_fail = stub_comm_fail,
    .comm_handle = stub_comm_handle,
    .comm_reach = stub_comm_reach,
    .conn_export = stub_conn_export,
    .conn_import = stub_conn_import,
    .conn_net = stub_conn_net,
    .net_load = stub_net_load,
    .net_store = stub_net_store,
    .net_announce = stub_net_announce,
    .net_slots = stub_net_slots,
    .net_memory = stub_net_memory,
    .memory_dmabuf = stub_memory_dmabuf,
    .conn_both_ends = stub_conn_both_ends,
    .device_farthest_path = stub_device_farthest_path,
    .region_ask = stub_region_ask,
    .region_answered = stub_region_answered,
    .region_map = stub_region_map,
    .region_unmap = stub_region_unmap,
    .region_gone = stub_region_gone,
    .region_sweep = stub_region_sweep,
    .records_look = stub_nothing,
    .service_add = stub_service_add,
    .service_wake = stub_service,
    .service_remove = stub_service,
    .outside_wait = stub_outside_wait,
    .drive_idle = stub_drive_idle,
    .keeps_time = stub_keeps_time,
    .comm_stall = stub_comm_stall,
    .pxn_make = stub_pxn_make,
    .pxn_drop = stub_pxn_drop,
    .pxn_end = stub_pxn_end,
    .net_take = stub_net_take,
    .net_put = stub_net_put,
    .net_ll = stub_net_ll,
};

/* All members behind the size are pointers of one width, so the table is copied entry by entry. */
void backend_fill(struct device_ops *result, const struct device_ops *table) {
  const size_t bytes = table->size < sizeof *table ? table->size : sizeof *table;
  *result = stubs;
  for (size_t offset = offsetof(struct device_ops, name); offset + sizeof(void *) <= bytes;
       offset += sizeof(void *)) {
    void *word;
    memcpy(&word, (const char *)table + offset, sizeof word);
    if (word) memcpy((char *)result + offset, &word, sizeof word);
  }
  result->size = sizeof *result;
}

static os_mutex choice_mutex = OS_MUTEX_INITIALIZER;
static struct device_ops chosen;
static const struct device_ops *chosen_ops; /* &chosen once it is filled; read atomically */

#define REASON_BYTES 512

static const struct device_ops *backend_take(const struct device_ops *ops, const char *why) {
  backend_fill(&chosen, ops);
  log_info(LOG_INIT, "Backend %s: %s", chosen.name, why);
  return &chosen;
}

static const struct device_ops *backend_default(void) {
  char reason[REASON_BYTES] = "", why[REASON_BYTES + 64];
  const char *how = NULL;
  if (emu_is_wanted(&how)) return backend_take(emu_device_ops(), how);
  const struct device_ops *cuda = backend_load_cuda(reason, sizeof reason);
  if (cuda != NULL) return backend_take(cuda, "the default where a driver and a GPU are found");
  snprintf(why, sizeof why, "the default, because there is no CUDA: %s", reason);
  return backend_take(emu_device_ops(), why);
}

static const struct device_ops *backend_choose(void) {
  const char *wanted = param_text(PARAM_TUTTI_BACKEND);
  char reason[REASON_BYTES] = "there is no such backend";
  if (wanted[0] == '\0') return backend_default();
  if (strcasecmp(wanted, "emu") == 0) return backend_take(emu_device_ops(), "chosen by TUTTI_BACKEND");
  if (strcasecmp(wanted, "cuda") == 0) {
    const struct device_ops *cuda = backend_load_cuda(reason, sizeof reason);
    if (cuda != NULL) return backend_take(cuda, "chosen by TUTTI_BACKEND");
  }
  log_warn("TUTTI_BACKEND=%s: %s; unset it or use TUTTI_BACKEND=emu", wanted, reason);
  return NULL;
}

const struct device_ops *backend_device_ops(void) {
  const struct device_ops *ops = __atomic_load_n(&chosen_ops, __ATOMIC_ACQUIRE);
  if (ops) return ops;
  os_mutex_lock(&choice_mutex);
  ops = chosen_ops ? chosen_ops : backend_choose();
  __atomic_store_n(&chosen_ops, ops, __ATOMIC_RELEASE);
  os_mutex_unlock(&choice_mutex);
  return ops;
}
