/* test_api.c: the core behind nccl.h over a fake backend that records launches and runs nothing: each
 * documented error with its code and a message that names function and cause, groups, configs, operators,
 * splits, polling, and the failure of the k-th allocation for every k. */
/* sanitizers: address thread */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backends/backend.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "core/bootstrap/bootstrap.h"
#include "core/comm/comm.h"
#include "core/plan/names.h"
#include "nccl_device.h"
#include "tutti.h"

/* ---- The fake backend ---- */

#define FAKE_DEVICES 16
#define LAUNCHES_MAX 64

struct device_comm {
  struct device_comm_config config;
  bool aborted;
};

struct launch {
  uint64_t comm_id;
  uint32_t rank, work_count, stream_count;
  device_stream stream;
  struct work first;
  const void *scalar; /* of that work */
};

static struct {
  os_mutex mutex;
  os_cond changed;
  struct launch launches[LAUNCHES_MAX];
  uint32_t launch_count, connect_count, open_count, abort_count, fail_launch_at;
  bool busy;          /* kernels never end */
  uint32_t waits;     /* polls that found them busy */
  uint32_t waiting;   /* threads within wait_until */
  ncclResult_t error; /* of all ranks' kernels */
} fake = {.mutex = OS_MUTEX_INITIALIZER};

static char device_memory[FAKE_DEVICES][4096]; /* "allocations": one for each device */
static char host_memory[64];
static _Thread_local uint32_t current_device;

static ncclResult_t fake_device_count(uint32_t *count) {
  *count = FAKE_DEVICES;
  return ncclSuccess;
}
static ncclResult_t fake_device_current(uint32_t *index) {
  *index = current_device;
  return ncclSuccess;
}
static ncclResult_t fake_device_limits(struct plan_limits *limits) {
  const struct plan_limits production = {
      8, {65536, 614400, 524288}, 0, 524288, 4, 4, 2, 32, 0, false, 0, 0, 1, 0, 0, false, 0, false, false, 0};
  *limits = production;
  return ncclSuccess;
}
static ncclResult_t fake_memory_alloc(uint32_t index, size_t bytes, void **pointer) {
  (void)bytes;
  *pointer = device_memory[index];
  return ncclSuccess;
}
static ncclResult_t fake_memory_free(void *pointer) { return pointer ? ncclSuccess : ncclInvalidArgument; }
static ncclResult_t fake_memory_query(const void *pointer, struct pointer_info *info) {
  const uintptr_t address = (uintptr_t)pointer, host = (uintptr_t)host_memory,
                  device = (uintptr_t)device_memory;
  memset(info, 0, sizeof *info);
  if (address >= host && address < host + sizeof host_memory) info->kind = POINTER_HOST;
  if (address < device || address >= device + sizeof device_memory) return ncclSuccess;
  info->kind = POINTER_DEVICE;
  info->device_index = (uint32_t)((address - device) / sizeof device_memory[0]);
  info->base = device_memory[info->device_index];
  info->bytes = sizeof device_memory[0];
  return ncclSuccess;
}
static ncclResult_t fake_comm_open(const struct device_comm_config *config, struct device_comm **comm) {
  struct device_comm *fresh = (struct device_comm *)os_alloc(sizeof *fresh);
  if (!fresh) return log_fail(ncclSystemError, "fake: no memory for rank %u", config->rank);
  fresh->config = *config;
  *comm = fresh;
  os_mutex_lock(&fake.mutex);
  fake.open_count += 1;
  os_mutex_unlock(&fake.mutex);
  return ncclSuccess;
}
static void fake_comm_close(struct device_comm *comm) {
  if (!comm) return;
  os_mutex_lock(&fake.mutex);
  fake.open_count -= 1;
  os_mutex_unlock(&fake.mutex);
  os_free(comm);
}
static ncclResult_t fake_comm_connect(struct device_comm *sender, struct device_comm *receiver,
                                      uint32_t channel_index, uint32_t conn_index, uint8_t proto) {
  (void)channel_index, (void)conn_index, (void)proto;
  assert_int_equal(sender->config.comm_id, receiver->config.comm_id);
  fake.connect_count += 1;
  return ncclSuccess;
}
static ncclResult_t fake_comm_memory(struct device_comm *comm, uint64_t *bytes) {
  *bytes = sizeof *comm;
  return ncclSuccess;
}
static void fake_comm_abort(struct device_comm *comm) {
  os_mutex_lock(&fake.mutex);
  comm->aborted = true;
  fake.abort_count += 1;
  os_mutex_unlock(&fake.mutex);
}
static ncclResult_t fake_comm_error(struct device_comm *comm) {
  (void)comm;
  return fake.error;
}
static bool fake_comm_idle(struct device_comm *comm) {
  os_mutex_lock(&fake.mutex);
  const bool idle = comm->aborted || !fake.busy;
  fake.waits += !idle;
  os_mutex_unlock(&fake.mutex);
  return idle;
}
static ncclResult_t fake_launch(struct device_comm *comm, const struct plan *plan,
                                const device_stream *streams, uint32_t stream_count) {
  if (fake.fail_launch_at > 0 && --fake.fail_launch_at == 0) {
    return log_fail(ncclUnhandledCudaError, "fake: launch refused");
  }
  struct launch *launch = &fake.launches[fake.launch_count++ % LAUNCHES_MAX];
  launch->comm_id = comm->config.comm_id;
  launch->rank = comm->config.rank;
  launch->work_count = plan->work_count;
  launch->stream_count = stream_count;
  launch->stream = streams[0];
  launch->first = plan->works[0];
  launch->scalar = plan->buffers[0].scalar;
  return ncclSuccess;
}
/* A stream's number is its capture's. */
static ncclResult_t fake_stream_capture(device_stream stream, uint64_t *graph_id) {
  *graph_id = (uint64_t)(uintptr_t)stream / 16;
  return ncclSuccess;
}
static ncclResult_t fake_wait_until(bool (*done)(void *argument), void *argument, uint64_t deadline_ms) {
  const uint64_t deadline_ns = os_time_ns() + deadline_ms * 1000000;
  bool in_time = true;
  os_mutex_lock(&fake.mutex);
  fake.waiting += 1;
  while (!done(argument) && in_time) in_time = os_cond_wait_until(&fake.changed, &fake.mutex, deadline_ns);
  const bool is_done = done(argument);
  fake.waiting -= 1;
  os_mutex_unlock(&fake.mutex);
  return is_done ? ncclSuccess : ncclInProgress;
}
static void fake_lock(void) { os_mutex_lock(&fake.mutex); }
static void fake_unlock(void) {
  os_cond_broadcast(&fake.changed);
  os_mutex_unlock(&fake.mutex);
}

/* Replaces the emulator's table: this program links its own. */
const struct backend *emu_backend(void) {
  static const struct device_ops device = {.size = sizeof device,
                                           .count = fake_device_count,
                                           .current = fake_device_current,
                                           .limits = fake_device_limits,
                                           .comm_open = fake_comm_open,
                                           .comm_close = fake_comm_close,
                                           .comm_connect = fake_comm_connect,
                                           .comm_memory = fake_comm_memory,
                                           .comm_abort = fake_comm_abort,
                                           .comm_error = fake_comm_error,
                                           .comm_idle = fake_comm_idle,
                                           .launch = fake_launch,
                                           .stream_capture = fake_stream_capture,
                                           .wait_until = fake_wait_until,
                                           .lock = fake_lock,
                                           .unlock = fake_unlock};
  static const struct memory_ops memory = {.size = sizeof memory,
                                           .alloc = fake_memory_alloc,
                                           .free = fake_memory_free,
                                           .query = fake_memory_query};
  static const struct backend ops = {sizeof ops, "fake", &device, &memory, NULL, NULL};
  return &ops;
}

/* ---- What every test uses ---- */

static ncclComm_t comms[FAKE_DEVICES];
static void *const buffer = device_memory[0];

static int setup(void **state) {
  (void)state;
  os_cond_init(&fake.changed);
  fake.launch_count = fake.connect_count = fake.abort_count = fake.fail_launch_at = 0;
  fake.busy = false;
  fake.waits = 0;
  fake.error = ncclSuccess;
  current_device = 0;
  log_reset();
  return 0;
}

/* No block of memory and no open rank may remain. */
static int teardown(void **state) {
  (void)state;
  bootstrap_forget_ids();
  if (os_alloc_live() != 0) print_error("%llu blocks leaked\n", (unsigned long long)os_alloc_live());
  return os_alloc_live() == 0 && fake.open_count == 0 ? 0 : 1;
}

static void set_param(const char *name, const char *value) {
  if (value) setenv(name, value, 1);
  else unsetenv(name);
  param_reset();
}

/* The call returned `code`, and the last error's text has all of the pieces. */
#define expect_error(call, code, ...)                      \
  do {                                                     \
    log_reset();                                           \
    assert_int_equal(call, code);                          \
    expect_text((const char *const[]){__VA_ARGS__, NULL}); \
  } while (0)

static void expect_text(const char *const *pieces) {
  const char *text = ncclGetLastError(NULL);
  for (; *pieces; pieces++) {
    if (!strstr(text, *pieces)) fail_msg("'%s' lacks '%s'", text, *pieces);
  }
}

#define expect_ok(call)                                                                     \
  do {                                                                                      \
    const ncclResult_t ok_ = (call);                                                        \
    if (ok_ != ncclSuccess) fail_msg("%s gave %d: %s", #call, ok_, ncclGetLastError(NULL)); \
  } while (0)

static void open_all(int count) { expect_ok(ncclCommInitAll(comms, count, NULL)); }

static void close_all(int count) {
  for (int i = 0; i < count; i++) expect_ok(ncclCommDestroy(comms[i]));
}

static const struct launch *last_launch(void) {
  assert_true(fake.launch_count > 0);
  return &fake.launches[(fake.launch_count - 1) % LAUNCHES_MAX];
}

/* ---- Library ---- */

static void test_library(void **state) {
  (void)state;
  int version = 0;
  expect_ok(ncclGetVersion(&version));
  assert_int_equal(version, 23007);
  expect_error(ncclGetVersion(NULL), ncclInvalidArgument, "ncclGetVersion", "NULL");
  set_param("TUTTI_NCCL_VERSION", "22809");
  expect_ok(ncclGetVersion(&version));
  assert_int_equal(version, 22809);
  set_param("TUTTI_NCCL_VERSION", NULL);
  assert_string_equal(ncclGetErrorString(ncclSuccess), "no error");
  assert_string_equal(ncclGetErrorString((ncclResult_t)77), "unknown result code");
  assert_non_null(strstr(tutti_version(), "2.30.7"));
  assert_string_equal(tutti_backend(), "fake");
  void *memory = &version;
  expect_error(ncclMemAlloc(NULL, 8), ncclInvalidArgument, "ncclMemAlloc", "NULL");
  expect_ok(ncclMemAlloc(&memory, 0));
  assert_null(memory);
  expect_ok(ncclMemAlloc(&memory, 8));
  expect_ok(ncclMemFree(memory));
  expect_ok(ncclMemFree(NULL));
}

/* A table's size decides which members are used; the others, and those of a missing table, are stubs with a
 * name. */
static void test_backend_fill(void **state) {
  (void)state;
  const struct device_ops device = {.size = offsetof(struct device_ops, launch), .count = fake_device_count};
  const struct backend old = {.size = sizeof old, .name = "old", .device = &device};
  struct backend_tables tables;
  const struct backend *filled = &tables.backend;
  uint32_t count = 0;
  uint64_t graph = 1;
  backend_fill(&tables, &old);
  expect_ok(filled->device->count(&count));
  expect_error(filled->device->launch(NULL, NULL, NULL, 0), ncclInvalidUsage, "device.launch");
  expect_error(filled->memory->free(NULL), ncclInvalidUsage, "memory.free");
  expect_error(filled->network->conn_net(NULL, NULL, NULL), ncclInvalidUsage, "network.conn_net");
  expect_ok(filled->device->stream_capture(NULL, &graph));
  assert_int_equal(graph, 0);
}

int ncclLLA2ACalcSlots(void);
ncclResult_t ncclGetMultimemDevicePointer(void);

static void test_unsupported(void **state) {
  (void)state;
  expect_error(ncclGetMultimemDevicePointer(), ncclInvalidUsage, "ncclGetMultimemDevicePointer",
               "not in this release");
  expect_error(ncclLLA2ACalcSlots(), 0, "ncclLLA2ACalcSlots");
}

/* The emulator runs no kernels of programs, and says so; what the host alone asks is answered. */
static void test_device_api(void **state) {
  (void)state;
  ncclDevCommRequirements_t required = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
  ncclDevComm_t made;
  ncclWindow_t window = NULL;
  void *memory = NULL, *pointer = NULL;
  ncclComm_t comms[2];
  expect_ok(ncclCommInitAll(comms, 2, NULL));
  expect_error(ncclDevCommCreate(comms[0], &required, &made), ncclInvalidUsage, "ncclDevCommCreate: rank 0",
               "the emulator runs no kernels of programs; use");
  expect_ok(ncclCommQueryProperties(comms[1], &properties));
  assert_true(!properties.deviceApiSupport && properties.rank == 1);
  assert_int_equal(properties.nLsaTeams * ncclTeamLsa(comms[1]).nRanks, 2);
  const ncclTeam_t all = ncclTeamWorld(comms[1]), none = ncclTeamLsa(NULL);
  assert_true(all.nRanks == 2 && all.rank == 1 && all.stride == 1 && none.nRanks == 0);
  assert_int_equal(ncclTeamRankToWorld(comms[1], all, 0), 0);
  expect_ok(ncclMemAlloc(&memory, 64));
  expect_ok(ncclCommWindowRegister(comms[0], memory, 64, &window, NCCL_WIN_COLL_SYMMETRIC));
  expect_error(ncclGetLsaDevicePointer(window, 0, 0, &pointer), ncclInvalidUsage,
               "is no window that kernels can use");
  expect_ok(ncclCommWindowDeregister(comms[0], window));
  expect_ok(ncclMemFree(memory));
  expect_error(ncclDevCommDestroy(comms[0], &made), ncclInvalidUsage, "no such device communicator");
  expect_error(ncclLsaBarrierCreateRequirement(all, 1, NULL, NULL), ncclInvalidArgument, "a result is NULL");
  for (int i = 0; i < 2; i++) expect_ok(ncclCommDestroy(comms[i]));
}

/* ---- Making communicators ---- */

static void test_init_arguments(void **state) {
  (void)state;
  ncclUniqueId id, garbage;
  ncclComm_t comm = NULL;
  memset(&garbage, 7, sizeof garbage);
  expect_error(ncclGetUniqueId(NULL), ncclInvalidArgument, "ncclGetUniqueId", "NULL");
  expect_ok(ncclGetUniqueId(&id));
  expect_error(ncclCommInitRank(NULL, 1, id, 0), ncclInvalidArgument, "ncclCommInitRank", "comm is NULL");
  expect_error(ncclCommInitRank(&comm, 0, id, 0), ncclInvalidArgument, "rank 0 of 0");
  expect_error(ncclCommInitRank(&comm, 2, id, 2), ncclInvalidArgument, "rank 2 of 2");
  expect_error(ncclCommInitRank(&comm, 2, id, -1), ncclInvalidArgument, "rank -1");
  expect_error(ncclCommInitRank(&comm, 1, garbage, 0), ncclInvalidArgument, "unique id");
  expect_error(ncclCommInitRankScalable(&comm, 1, 0, 0, &id, NULL), ncclInvalidArgument, "0 unique ids");
  expect_error(ncclCommInitRankScalable(&comm, 1, 0, 2, &id, NULL), ncclInvalidArgument,
               "2 unique ids for 1");
  garbage = id;
  garbage.internal[32] ^= 1; /* the version follows four 64-bit words */
  expect_error(ncclCommInitRank(&comm, 1, garbage, 0), ncclInvalidUsage, "is of version");
  assert_null(comm);
  expect_ok(ncclCommInitRank(&comm, 1, id, 0));
  expect_ok(ncclCommDestroy(comm));
  expect_error(ncclCommInitRank(&comm, 1, id, 0), ncclInvalidUsage, "before", "ncclGetUniqueId");
}

static void test_init_all(void **state) {
  (void)state;
  const int reversed[] = {2, 1, 0}, twice[] = {1, 1}, beyond[] = {0, FAKE_DEVICES};
  int value = -1;
  expect_error(ncclCommInitAll(NULL, 1, NULL), ncclInvalidArgument, "ncclCommInitAll", "NULL");
  expect_error(ncclCommInitAll(comms, -1, NULL), ncclInvalidArgument, "negative");
  expect_error(ncclCommInitAll(comms, 2, twice), ncclInvalidUsage, "device 1",
               "rank 0 and rank 1 both on CUDA device 1");
  expect_error(ncclCommInitAll(comms, 2, beyond), ncclInvalidArgument, "device 16", "there are 16");
  expect_ok(ncclCommInitAll(comms, 0, NULL));
  expect_ok(ncclCommInitAll(comms, 3, reversed));
  for (int i = 0; i < 3; i++) {
    expect_ok(ncclCommUserRank(comms[i], &value));
    assert_int_equal(value, i);
    expect_ok(ncclCommCount(comms[i], &value));
    assert_int_equal(value, 3);
    expect_ok(ncclCommCuDevice(comms[i], &value));
    assert_int_equal(value, 2 - i);
  }
  expect_error(ncclCommCount(comms[0], NULL), ncclInvalidArgument, "ncclCommCount", "NULL");
  expect_error(ncclCommUserRank(NULL, &value), ncclInvalidArgument, "ncclCommUserRank", "NULL");
  close_all(3);
}

struct rank_thread {
  os_thread thread;
  ncclUniqueId id;
  int rank, rank_count, device, delay_ms;
  bool comes_second; /* after another rank has checked in and waits for the others */
  ncclComm_t comm;
  ncclResult_t result;
};

static bool fake_has_waiter(void) {
  os_mutex_lock(&fake.mutex);
  const bool has = fake.waiting > 0;
  os_mutex_unlock(&fake.mutex);
  return has;
}

static void *rank_body(void *argument) {
  struct rank_thread *rank = (struct rank_thread *)argument;
  current_device = (uint32_t)rank->device;
  os_sleep_ms((unsigned)rank->delay_ms);
  for (int i = 0; i < 60000 && rank->comes_second && !fake_has_waiter(); i++) os_sleep_ms(1);
  rank->result = ncclCommInitRank(&rank->comm, rank->rank_count, rank->id, rank->rank);
  return NULL;
}

static void run_ranks(struct rank_thread *ranks, int count) {
  ncclUniqueId id;
  expect_ok(ncclGetUniqueId(&id));
  for (int i = 0; i < count; i++) {
    ranks[i].id = id;
    assert_true(os_thread_start(&ranks[i].thread, rank_body, &ranks[i]));
  }
  for (int i = 0; i < count; i++) os_thread_join(ranks[i].thread);
}

static void test_init_threads(void **state) {
  (void)state;
  struct rank_thread ranks[4];
  memset(ranks, 0, sizeof ranks);
  for (int i = 0; i < 4; i++)
    ranks[i].rank = ranks[i].device = i, ranks[i].rank_count = 4, ranks[i].delay_ms = 20 - 5 * i;
  run_ranks(ranks, 4);
  for (int i = 0; i < 4; i++) {
    int rank = -1;
    assert_int_equal(ranks[i].result, ncclSuccess);
    expect_ok(ncclCommUserRank(ranks[i].comm, &rank));
    assert_int_equal(rank, i);
  }
  for (int i = 0; i < 4; i++) expect_ok(ncclCommDestroy(ranks[i].comm));
}

/* All ranks that called get the same code; the message names the missing ranks. */
static void expect_disagreement(struct rank_thread first, struct rank_thread second, ncclResult_t code,
                                const char *piece) {
  struct rank_thread ranks[2] = {first, second};
  log_reset();
  run_ranks(ranks, 2);
  assert_int_equal(ranks[0].result, code);
  assert_int_equal(ranks[1].result, code);
  assert_null(ranks[0].comm);
  assert_null(ranks[1].comm);
  expect_text((const char *const[]){"ncclCommInitRank", piece, NULL});
}

static void test_init_disagreement(void **state) {
  (void)state;
  const struct rank_thread base = {.rank_count = 3};
  struct rank_thread first = base, second = base;
  second.comes_second = true;
  second.rank = second.device = 1;
  second.rank_count = 4;
  expect_disagreement(first, second, ncclInvalidArgument, "rank 1 says 4 ranks, rank 0 says 3");
  second.rank_count = 3;
  second.rank = 0;
  expect_disagreement(first, second, ncclInvalidUsage, "rank 0 came twice");
  second.rank = 1;
  second.device = 0;
  expect_disagreement(first, second, ncclInvalidUsage,
                      "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 0");
  set_param("TUTTI_INIT_TIMEOUT_SECONDS", "1");
  second.device = 1;
  expect_disagreement(first, second, ncclRemoteError, "missing: rank 2");
  set_param("TUTTI_INIT_TIMEOUT_SECONDS", NULL);
}

static void test_init_shared_device(void **state) {
  (void)state;
  const int twice[] = {0, 0};
  set_param("NCCL_MULTI_RANK_GPU_ENABLE", "1");
  expect_ok(ncclCommInitAll(comms, 2, twice));
  close_all(2);
  set_param("NCCL_MULTI_RANK_GPU_ENABLE", NULL);
}

static ncclResult_t init_with(const ncclConfig_t *config, ncclComm_t *comm) {
  ncclUniqueId id;
  ncclConfig_t copy = *config;
  expect_ok(ncclGetUniqueId(&id));
  return ncclCommInitRankConfig(comm, 1, id, 0, &copy);
}

static void test_config(void **state) {
  (void)state;
  const ncclConfig_t initial = NCCL_CONFIG_INITIALIZER;
  ncclConfig_t config = initial;
  ncclComm_t comm = NULL;
  config.magic = 1;
  expect_error(init_with(&config, &comm), ncclInvalidArgument, "ncclCommInitRankConfig",
               "NCCL_CONFIG_INITIALIZER");
  config = initial, config.size = 8;
  expect_error(init_with(&config, &comm), ncclInvalidArgument, "size 8");
  config = initial, config.blocking = 2;
  expect_error(init_with(&config, &comm), ncclInvalidArgument, "config.blocking is 2");
  config = initial, config.cgaClusterSize = 9;
  expect_error(init_with(&config, &comm), ncclInvalidArgument, "cgaClusterSize");
  config = initial, config.minCTAs = 8, config.maxCTAs = 4;
  expect_error(init_with(&config, &comm), ncclInvalidArgument, "minCTAs 8", "maxCTAs 4");
  config = initial, config.nChannelsPerNetPeer = -3;
  expect_error(init_with(&config, &comm), ncclInvalidArgument, "nChannelsPerNetPeer");
  config = initial, config.graphUsageMode = 3;
  expect_error(init_with(&config, &comm), ncclInvalidArgument, "config.graphUsageMode is 3");
  config = initial, config.nChannelsPerNetPeer = 7;
  expect_ok(init_with(&config, &comm));
  assert_int_equal(comm->settings.plan.net_peer_channels, 7);
  expect_ok(ncclCommDestroy(comm));
  set_param("NCCL_NCHANNELS_PER_NET_PEER", "3");
  expect_ok(init_with(&config, &comm));
  assert_int_equal(comm->settings.plan.net_peer_channels, 3);
  expect_ok(ncclCommDestroy(comm));
  set_param("NCCL_NCHANNELS_PER_NET_PEER", NULL);
  config = initial, config.netName = "NoSuch";
  expect_error(init_with(&config, &comm), ncclInvalidUsage, "config.netName=NoSuch", "Socket");
  config.netName = "socket";
  expect_ok(init_with(&config, &comm));
  expect_ok(ncclCommDestroy(comm));
  config.netName = "NoSuch";
  expect_error(init_with(&config, &comm), ncclInvalidUsage, "config.netName is NoSuch", "network Socket");
  set_param("NCCL_NET", "Socket");
  expect_ok(init_with(&config, &comm));
  expect_ok(ncclCommDestroy(comm));
  set_param("NCCL_NET", NULL);
  config = initial;
  /* A caller of 2.14 sets only `blocking`: later members are ignored, whatever their value. */
  config.version = NCCL_VERSION(2, 14, 3);
  config.cgaClusterSize = 77;
  expect_ok(init_with(&config, &comm));
  expect_ok(ncclCommDestroy(comm));
  /* A smaller struct likewise. */
  config = initial, config.size = offsetof(ncclConfig_t, minCTAs), config.minCTAs = -5;
  expect_ok(init_with(&config, &comm));
  expect_ok(ncclCommDestroy(comm));
  config = initial, config.commName = "trainer";
  expect_ok(init_with(&config, &comm));
  expect_error(ncclBroadcast(buffer, buffer, 1, ncclFloat, 5, comm, NULL), ncclInvalidArgument,
               "ncclBroadcast", "comm 'trainer'", "rank 0", "root 5");
  expect_ok(ncclCommDestroy(comm));
}

/* Headers of NCCL by the version that last added a member to ncclConfig_t, and its size there. A config of
 * each lies at the end of a page behind which nothing may be read. */
static void test_config_of_older_headers(void **state) {
  (void)state;
  static const struct {
    unsigned version;
    size_t bytes;
  } headers[] = {{21400, 24}, {21700, 40}, {21800, 48}, {22500, 48}, {22600, 56},
                 {22700, 72}, {22800, 80}, {22900, 88}, {23000, 96}};
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  uint8_t *pages =
      (uint8_t *)mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(pages != MAP_FAILED);
  assert_int_equal(mprotect(pages + page, page, PROT_NONE), 0);
  for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclConfig_t *last = (ncclConfig_t *)(void *)(pages + page - headers[i].bytes);
    ncclUniqueId id;
    ncclComm_t comm = NULL;
    config.size = headers[i].bytes;
    config.version = headers[i].version;
    memcpy(last, &config, headers[i].bytes);
    expect_ok(ncclGetUniqueId(&id));
    expect_ok(ncclCommInitRankConfig(&comm, 1, id, 0, last));
    expect_ok(ncclCommDestroy(comm));
  }
  munmap(pages, 2 * page);
}

static void test_parameters(void **state) {
  (void)state;
  ncclParamHandle_t size = NULL, name = NULL;
  const char *text = NULL, **keys = NULL;
  int count = 0, all = 0, bytes = 0;
  int64_t long_number = 0;
  uint64_t big_number = 0;
  int32_t number = 0;
  int16_t short_number = 0;
  char raw[16];
  set_param("NCCL_BUFFSIZE", "1M");
  set_param("NCCL_TOPO_FILE", "box.xml");
  expect_ok(ncclParamBind(&size, "NCCL_BUFFSIZE"));
  expect_ok(ncclParamBind(&name, "NCCL_TOPO_FILE"));
  expect_ok(ncclParamGetI64(size, &long_number));
  assert_int_equal(long_number, 1 << 20);
  expect_ok(ncclParamGetU64(size, &big_number));
  assert_int_equal(big_number, 1 << 20);
  expect_ok(ncclParamGetI32(size, &number));
  assert_int_equal(number, 1 << 20);
  expect_error(ncclParamGetI16(size, &short_number), ncclInvalidArgument, "ncclParamGetI16", "NCCL_BUFFSIZE",
               "1048576");
  expect_error(ncclParamGetI32(name, &number), ncclInvalidArgument, "ncclParamGetI32", "is a text");
  expect_ok(ncclParamGetStr(name, &text));
  assert_string_equal(text, "box.xml");
  expect_ok(ncclParamGetStr(size, &text));
  assert_string_equal(text, "1048576");
  expect_ok(ncclParamGet(size, raw, sizeof raw, &bytes));
  assert_int_equal(bytes, 8);
  memcpy(&long_number, raw, 8);
  assert_int_equal(long_number, 1 << 20);
  expect_ok(ncclParamGet(name, raw, sizeof raw, &bytes));
  assert_int_equal(bytes, 7);
  assert_memory_equal(raw, "box.xml", 7);
  expect_error(ncclParamGet(name, raw, 6, &bytes), ncclInvalidArgument, "has 7 bytes", "6");
  expect_ok(ncclParamGetParameter("NCCL_TOPO_FILE", &text, &bytes));
  assert_string_equal(text, "box.xml");
  assert_int_equal(bytes, 7);
  expect_error(ncclParamBind(&size, "NCCL_NO_SUCH"), ncclInvalidArgument, "NCCL_NO_SUCH is no setting");
  expect_error(ncclParamBind(&size, "NCCL_GDRCOPY_ENABLE"), ncclInvalidArgument, "has no effect");
  expect_error(ncclParamBind(NULL, "NCCL_BUFFSIZE"), ncclInvalidArgument, "ncclParamBind", "NULL");
  expect_error(ncclParamGetI64((ncclParamHandle_t)raw, &long_number), ncclInvalidArgument, "is no handle");
  expect_ok(ncclParamGetAllParameterKeys(&keys, &count));
  for (int i = 0; i < count; i++) assert_memory_equal(keys[i], "NCCL_", 5);
  set_param("NCCL_PARAM_DUMP_ALL", "true");
  expect_ok(ncclParamGetAllParameterKeys(&keys, &all));
  assert_true(all > count && count > 50);
  assert_memory_equal(keys[all - 1], "TUTTI_", 6);
  ncclParamDumpAll();
  set_param("NCCL_PARAM_DUMP_ALL", NULL);
  set_param("NCCL_BUFFSIZE", NULL);
  set_param("NCCL_TOPO_FILE", NULL);
}

static void test_memory_statistics(void **state) {
  (void)state;
  uint64_t persist = 0, total = 0, suspend = 1, suspended = 1;
  open_all(1);
  expect_ok(ncclCommMemStats(comms[0], ncclStatGpuMemPersist, &persist));
  expect_ok(ncclCommMemStats(comms[0], ncclStatGpuMemTotal, &total));
  expect_ok(ncclCommMemStats(comms[0], ncclStatGpuMemSuspend, &suspend));
  expect_ok(ncclCommMemStats(comms[0], ncclStatGpuMemSuspended, &suspended));
  assert_true(total > 0 && persist + suspend == total && suspended == 0);
  expect_error(ncclCommMemStats(comms[0], (ncclCommMemStat_t)4, &total), ncclInvalidArgument, "4 is no");
  expect_error(ncclCommMemStats(comms[0], ncclStatGpuMemTotal, NULL), ncclInvalidArgument, "NULL");
  expect_error(ncclCommMemStats(NULL, ncclStatGpuMemTotal, &total), ncclInvalidArgument, "ncclCommMemStats");
  close_all(1);
}

static void test_algo_list(void **state) {
  (void)state;
  set_param("NCCL_ALGO", "ring,spiral");
  expect_error(ncclCommInitAll(comms, 1, NULL), ncclInvalidUsage, "NCCL_ALGO", "spiral", "Ring");
  set_param("NCCL_ALGO", "allreduce:ring;alldance:tree");
  expect_error(ncclCommInitAll(comms, 1, NULL), ncclInvalidUsage, "alldance");
  set_param("NCCL_ALGO", "^tree;broadcast:RING");
  open_all(1);
  close_all(1);
  set_param("NCCL_ALGO", NULL);
  set_param("NCCL_PROTO", "^ll,ll128,simple");
  expect_error(ncclCommInitAll(comms, 1, NULL), ncclInvalidUsage, "NCCL_PROTO", "allows nothing");
  set_param("NCCL_PROTO", NULL);
}

/* ---- Non-blocking communicators ---- */

static ncclComm_t init_nonblocking(ncclUniqueId id, int rank, int rank_count, ncclResult_t code) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t comm = NULL;
  config.blocking = 0;
  current_device = (uint32_t)rank;
  assert_int_equal(ncclCommInitRankConfig(&comm, rank_count, id, rank, &config), code);
  assert_non_null(comm);
  return comm;
}

static ncclResult_t async_error(ncclComm_t comm) {
  ncclResult_t error = ncclInternalError;
  expect_ok(ncclCommGetAsyncError(comm, &error));
  return error;
}

static void test_nonblocking(void **state) {
  (void)state;
  ncclUniqueId id;
  ncclComm_t child = NULL, other = NULL;
  int value;
  expect_ok(ncclGetUniqueId(&id));
  comms[0] = init_nonblocking(id, 0, 2, ncclInProgress);
  assert_int_equal(async_error(comms[0]), ncclInProgress);
  expect_error(ncclCommCount(comms[0], &value), ncclInvalidArgument, "ncclCommCount", "still being made");
  expect_error(ncclAllReduce(buffer, buffer, 1, ncclInt, ncclSum, comms[0], NULL), ncclInvalidArgument,
               "ncclAllReduce", "still being made");
  expect_error(ncclCommDestroy(comms[0]), ncclInvalidArgument, "ncclCommDestroy");
  expect_error(ncclCommGetAsyncError(comms[0], NULL), ncclInvalidArgument, "ncclCommGetAsyncError", "NULL");
  comms[1] = init_nonblocking(id, 1, 2, ncclSuccess);
  assert_int_equal(async_error(comms[0]), ncclSuccess);
  expect_ok(ncclCommCount(comms[0], &value));
  assert_int_equal(ncclCommSplit(comms[0], 0, 0, &child, NULL), ncclInProgress);
  assert_int_equal(async_error(child), ncclInProgress);
  assert_int_equal(async_error(comms[0]), ncclInProgress);
  expect_error(ncclCommSplit(comms[0], 0, 0, &other, NULL), ncclInvalidArgument, "still being split");
  expect_ok(ncclCommSplit(comms[1], 0, 0, &other, NULL));
  assert_int_equal(async_error(child), ncclSuccess);
  assert_int_equal(async_error(comms[0]), ncclSuccess);
  expect_ok(ncclCommDestroy(child));
  expect_ok(ncclCommDestroy(other));
  fake.busy = true;
  assert_int_equal(ncclCommFinalize(comms[0]), ncclInProgress);
  assert_int_equal(async_error(comms[0]), ncclInProgress);
  fake.busy = false;
  assert_int_equal(async_error(comms[0]), ncclSuccess);
  close_all(2);
}

/* A rank that aborts before all have called ends the wait of the others. */
static void test_nonblocking_abort(void **state) {
  (void)state;
  ncclUniqueId id;
  expect_ok(ncclGetUniqueId(&id));
  comms[0] = init_nonblocking(id, 0, 3, ncclInProgress);
  comms[1] = init_nonblocking(id, 1, 3, ncclInProgress);
  expect_ok(ncclCommAbort(comms[0]));
  assert_int_equal(async_error(comms[1]), ncclRemoteError);
  expect_error(ncclAllReduce(buffer, buffer, 1, ncclInt, ncclSum, comms[1], NULL), ncclRemoteError,
               "rank 0 was aborted");
  expect_ok(ncclCommDestroy(comms[1]));
  /* The parent of a waiting split may be destroyed; the split remains. */
  ncclComm_t child = NULL;
  expect_ok(ncclGetUniqueId(&id));
  comms[0] = init_nonblocking(id, 0, 2, ncclInProgress);
  comms[1] = init_nonblocking(id, 1, 2, ncclSuccess);
  assert_int_equal(ncclCommSplit(comms[0], 0, 0, &child, NULL), ncclInProgress);
  expect_ok(ncclCommAbort(comms[0]));
  expect_ok(ncclCommAbort(child));
  expect_ok(ncclCommAbort(comms[1]));
}

static void test_nonblocking_timeout(void **state) {
  (void)state;
  ncclUniqueId id;
  expect_ok(ncclGetUniqueId(&id));
  set_param("TUTTI_INIT_TIMEOUT_SECONDS", "1");
  comms[0] = init_nonblocking(id, 1, 3, ncclInProgress);
  while (async_error(comms[0]) == ncclInProgress) os_sleep_ms(20);
  assert_int_equal(async_error(comms[0]), ncclRemoteError);
  expect_text((const char *const[]){"missing: rank 0, 2", NULL});
  expect_ok(ncclCommAbort(comms[0]));
  set_param("TUTTI_INIT_TIMEOUT_SECONDS", NULL);
}

/* ---- Groups ---- */

static void test_group_errors(void **state) {
  (void)state;
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  expect_error(ncclGroupEnd(), ncclInvalidUsage, "ncclGroupEnd", "ncclGroupStart");
  expect_error(ncclGroupSimulateEnd(&info), ncclInvalidUsage, "ncclGroupSimulateEnd", "ncclGroupStart");
  open_all(2);
  /* The outermost ncclGroupEnd returns the first error, and nothing is launched. */
  expect_ok(ncclGroupStart());
  expect_ok(ncclGroupStart());
  expect_ok(ncclAllReduce(buffer, buffer, 8, ncclInt, ncclSum, comms[0], NULL));
  assert_int_equal(ncclReduce(buffer, buffer, 8, ncclInt, ncclSum, 9, comms[1], NULL), ncclInvalidArgument);
  assert_int_equal(ncclCommSplit(NULL, 0, 0, &comms[2], NULL), ncclInvalidArgument);
  expect_ok(ncclGroupEnd());
  assert_int_equal(ncclGroupEnd(), ncclInvalidArgument);
  assert_int_equal(fake.launch_count, 0);
  /* The next group has no error; nested ends launch nothing. */
  expect_ok(ncclGroupStart());
  expect_ok(ncclGroupStart());
  for (int i = 0; i < 2; i++) expect_ok(ncclAllReduce(buffer, buffer, 8, ncclInt, ncclSum, comms[i], NULL));
  expect_ok(ncclGroupEnd());
  assert_int_equal(fake.launch_count, 0);
  expect_ok(ncclGroupEnd());
  assert_int_equal(fake.launch_count, 2);
  assert_int_equal(last_launch()->first.op_sequence, 0);
  close_all(2);
}

static void test_group_discards_communicators(void **state) {
  (void)state;
  ncclUniqueId id;
  open_all(2);
  expect_ok(ncclGetUniqueId(&id));
  comms[3] = comms[4] = NULL;
  expect_ok(ncclGroupStart());
  current_device = 0;
  expect_ok(ncclCommInitRank(&comms[3], 2, id, 0));
  expect_ok(ncclCommSplit(comms[0], 0, 0, &comms[4], NULL));
  assert_int_equal(ncclCommInitRank(&comms[3], 2, id, 5), ncclInvalidArgument);
  assert_int_equal(ncclGroupEnd(), ncclInvalidArgument);
  assert_null(comms[3]);
  assert_null(comms[4]);
  /* Made and aborted again: two ranks of the group connect, a third is missing. */
  expect_ok(ncclGetUniqueId(&id));
  expect_ok(ncclGroupStart());
  expect_ok(ncclCommInitRank(&comms[3], 1, id, 0));
  expect_ok(ncclCommInitRank(&comms[4], 1, id, 0));
  expect_error(ncclGroupEnd(), ncclInvalidUsage, "before");
  assert_null(comms[3]);
  close_all(2);
}

static void test_group_blocking_mix(void **state) {
  (void)state;
  ncclUniqueId id;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  expect_ok(ncclGetUniqueId(&id));
  expect_ok(ncclGroupStart());
  expect_ok(ncclCommInitRankConfig(&comms[0], 2, id, 0, &config));
  current_device = 1;
  expect_ok(ncclCommInitRank(&comms[1], 2, id, 1));
  expect_error(ncclGroupEnd(), ncclInvalidArgument, "blocking and non-blocking");
}

static void test_group_streams(void **state) {
  (void)state;
  device_stream const plain = (device_stream)1, captured = (device_stream)32, other = (device_stream)48;
  open_all(2);
  expect_ok(ncclGroupStart());
  expect_ok(ncclAllReduce(buffer, buffer, 8, ncclInt, ncclSum, comms[0], (cudaStream_t)captured));
  expect_ok(ncclAllReduce(buffer, buffer, 8, ncclInt, ncclSum, comms[0], (cudaStream_t)plain));
  expect_error(ncclGroupEnd(), ncclInvalidUsage, "ncclGroupEnd", "captured only in part");
  expect_ok(ncclGroupStart());
  expect_ok(ncclAllReduce(buffer, buffer, 8, ncclInt, ncclSum, comms[0], (cudaStream_t)captured));
  expect_ok(ncclAllReduce(buffer, buffer, 8, ncclInt, ncclSum, comms[0], (cudaStream_t)other));
  expect_error(ncclGroupEnd(), ncclInvalidUsage, "different graphs");
  assert_int_equal(fake.launch_count, 0);
  /* The first used stream comes first, and each stream once. */
  expect_ok(ncclGroupStart());
  for (uintptr_t i = 0; i < 6; i++) {
    expect_ok(ncclAllReduce(buffer, buffer, 8, ncclInt, ncclSum, comms[0], (cudaStream_t)(5 - i % 3)));
  }
  expect_ok(ncclGroupEnd());
  assert_int_equal(last_launch()->stream_count, 3);
  assert_ptr_equal(last_launch()->stream, (device_stream)5);
  close_all(2);
}

/* All ranks launch on several communicators in one order, whatever the order of their calls is. */
static void test_group_order(void **state) {
  (void)state;
  enum { COMMS = 3 };
  ncclComm_t all[COMMS][2];
  uint64_t ids[2][COMMS];
  for (int i = 0; i < COMMS; i++) expect_ok(ncclCommInitAll(all[i], 2, NULL));
  expect_ok(ncclGroupStart());
  for (int rank = 0; rank < 2; rank++)
    for (int i = 0; i < COMMS; i++)
      expect_ok(
          ncclAllReduce(buffer, buffer, 8, ncclInt, ncclSum, all[rank == 0 ? i : COMMS - 1 - i][rank], NULL));
  expect_ok(ncclGroupEnd());
  assert_int_equal(fake.launch_count, 2 * COMMS);
  uint32_t counts[2] = {0, 0};
  for (uint32_t i = 0; i < fake.launch_count; i++) {
    const struct launch *launch = &fake.launches[i];
    ids[launch->rank][counts[launch->rank]++] = launch->comm_id;
  }
  assert_memory_equal(ids[0], ids[1], sizeof ids[0]);
  for (int i = 0; i < COMMS; i++)
    for (int rank = 0; rank < 2; rank++) expect_ok(ncclCommDestroy(all[i][rank]));
}

static void test_group_self(void **state) {
  (void)state;
  open_all(2);
  expect_error(ncclSend(buffer, 1, ncclInt, 0, comms[0], NULL), ncclInvalidUsage, "ncclSend",
               "sends to itself");
  expect_error(ncclRecv(buffer, 1, ncclInt, 0, comms[0], NULL), ncclInvalidUsage, "ncclRecv",
               "receives from itself");
  expect_ok(ncclGroupStart());
  expect_ok(ncclSend(buffer, 1, ncclInt, 0, comms[0], NULL));
  expect_ok(ncclRecv(buffer, 2, ncclInt, 0, comms[0], NULL));
  expect_error(ncclGroupEnd(), ncclInvalidUsage, "4 bytes", "8");
  expect_ok(ncclGroupStart());
  expect_ok(ncclSend(buffer, 1, ncclInt, 0, comms[0], NULL));
  expect_ok(ncclRecv(device_memory[1], 1, ncclInt, 0, comms[0], NULL));
  expect_ok(ncclGroupEnd());
  assert_int_equal(fake.launch_count, 1);
  assert_int_equal(fake.connect_count, 0);
  close_all(2);
}

static void test_group_simulate(void **state) {
  (void)state;
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER, wrong = info;
  wrong.magic = 1;
  open_all(2);
  expect_ok(ncclGroupStart());
  expect_error(ncclGroupSimulateEnd(&wrong), ncclInvalidArgument, "ncclGroupSimulateEnd",
               "NCCL_SIM_INFO_INITIALIZER");
  expect_error(ncclGroupEnd(), ncclInvalidUsage, "ncclGroupEnd");
  expect_ok(ncclGroupStart());
  for (int i = 0; i < 2; i++) expect_ok(ncclAllReduce(buffer, buffer, 512, ncclInt, ncclSum, comms[i], NULL));
  expect_ok(ncclGroupSimulateEnd(&info));
  assert_true(info.estimatedTime > 0);
  assert_int_equal(fake.launch_count, 0);
  close_all(2);
}

/* One of several launches fails: no operation of the group may wait for ever. */
static void test_group_launch_failure(void **state) {
  (void)state;
  open_all(3);
  fake.fail_launch_at = 2;
  expect_ok(ncclGroupStart());
  for (int i = 0; i < 3; i++) expect_ok(ncclAllReduce(buffer, buffer, 8, ncclInt, ncclSum, comms[i], NULL));
  assert_int_equal(ncclGroupEnd(), ncclUnhandledCudaError);
  assert_int_equal(fake.abort_count, 3);
  assert_int_equal(async_error(comms[2]), ncclUnhandledCudaError);
  expect_error(ncclAllReduce(buffer, buffer, 8, ncclInt, ncclSum, comms[0], NULL), ncclUnhandledCudaError,
               "ncclAllReduce", "failed earlier");
  for (int i = 0; i < 3; i++) expect_ok(ncclCommAbort(comms[i]));
}

/* ---- Operations ---- */

static void test_arguments(void **state) {
  (void)state;
  char nothing[8192] = {0};
  ncclComm_t const foreign = (ncclComm_t)nothing;
  ncclComm_t const wild = (ncclComm_t)(uintptr_t)0x1230; /* not mapped */
  open_all(2);
  ncclComm_t const comm = comms[1];
  expect_error(ncclAllReduce(buffer, buffer, 1, ncclInt, ncclSum, NULL, NULL), ncclInvalidArgument,
               "ncclAllReduce", "the communicator is NULL");
  expect_error(ncclAllGather(buffer, buffer, 1, ncclInt, foreign, NULL), ncclInvalidArgument, "ncclAllGather",
               "no communicator");
  expect_error(ncclAllGather(buffer, buffer, 1, ncclInt, wild, NULL), ncclInvalidArgument, "ncclAllGather",
               "no communicator");
  expect_error(ncclCommDestroy(wild), ncclInvalidArgument, "ncclCommDestroy", "no communicator");
  expect_error(ncclAllReduce(NULL, buffer, 3, ncclInt, ncclSum, comm, NULL), ncclInvalidArgument,
               "ncclAllReduce", "rank 1", "count 3", "sendbuff is NULL");
  expect_error(ncclReduceScatter(buffer, NULL, 3, ncclInt, ncclSum, comm, NULL), ncclInvalidArgument,
               "ncclReduceScatter", "recvbuff is NULL");
  expect_error(ncclAllReduce(buffer, buffer, 1, (ncclDataType_t)12, ncclSum, comm, NULL), ncclInvalidArgument,
               "type 12");
  expect_error(ncclAllReduce(buffer, buffer, 1, ncclInt, (ncclRedOp_t)-1, comm, NULL), ncclInvalidArgument,
               "operator -1");
  expect_error(ncclAllReduce(buffer, buffer, 1, ncclInt, ncclNumOps, comm, NULL), ncclInvalidArgument,
               "operator");
  expect_error(ncclReduce(buffer, buffer, 1, ncclInt, ncclSum, 2, comm, NULL), ncclInvalidArgument,
               "ncclReduce", "root 2", "0..1");
  expect_error(ncclBcast(buffer, 1, ncclInt, -1, comm, NULL), ncclInvalidArgument, "ncclBcast", "root -1");
  expect_error(ncclGather(buffer, buffer, 1, ncclInt, 2, comm, NULL), ncclInvalidArgument, "ncclGather",
               "root 2");
  expect_error(ncclScatter(buffer, buffer, 1, ncclInt, 2, comm, NULL), ncclInvalidArgument, "ncclScatter",
               "root 2");
  expect_error(ncclSend(buffer, 1, ncclInt, 2, comm, NULL), ncclInvalidArgument, "ncclSend", "peer 2");
  expect_error(ncclRecv(buffer, 1, ncclInt, -7, comm, NULL), ncclInvalidArgument, "ncclRecv", "peer -7");
  expect_error(ncclAlltoAll(buffer, buffer, SIZE_MAX / 2, ncclInt, comm, NULL), ncclInvalidArgument,
               "ncclAlltoAll", "elements");
  assert_int_equal(fake.launch_count, 0);
  /* Unused buffers of a rank may be NULL, and a count of zero does nothing. */
  expect_ok(ncclReduce(buffer, NULL, 4, ncclInt, ncclSum, 0, comm, NULL));
  expect_ok(ncclBroadcast(NULL, buffer, 4, ncclInt, 0, comm, NULL));
  assert_int_equal(fake.launch_count, 2);
  expect_ok(ncclAllReduce(NULL, NULL, 0, ncclInt, ncclSum, comm, NULL));
  expect_ok(ncclAlltoAll(NULL, NULL, 0, ncclInt, comm, NULL));
  assert_int_equal(fake.launch_count, 2);
  expect_ok(ncclSend(NULL, 0, ncclInt, 0, comm, NULL));
  assert_int_equal(fake.launch_count, 3);
  close_all(2);
}

static void test_retyping(void **state) {
  (void)state;
  open_all(2);
  expect_ok(ncclAllGather(buffer, buffer, 5, ncclDouble, comms[0], NULL));
  assert_int_equal(last_launch()->first.dtype, ncclInt8);
  assert_int_equal(last_launch()->first.count, 40);
  expect_ok(ncclAllReduce(buffer, buffer, 5, ncclFloat8e4m3, ncclMax, comms[0], NULL));
  assert_int_equal(last_launch()->first.dtype, ncclFloat8e4m3);
  assert_int_equal(last_launch()->first.op, OP_MAX);
  expect_ok(ncclAlltoAll(device_memory[0], device_memory[1], 5, ncclHalf, comms[0], NULL));
  assert_true(last_launch()->work_count >= 2);
  assert_int_equal(fake.launch_count, 3);
  close_all(2);
}

/* The second use of a connection needs no call. */
static void test_connections(void **state) {
  (void)state;
  open_all(4);
  for (int round = 0; round < 3; round++) {
    expect_ok(ncclAllReduce(buffer, buffer, 5, ncclInt, ncclSum, comms[2], NULL));
    assert_int_equal(fake.connect_count, 2);
  }
  uint64_t bytes = 0;
  double time_us = 0;
  expect_ok(tutti_comm_memory(comms[2], &bytes));
  assert_in_range(bytes, 1, 16384);
  expect_ok(tutti_model_time(comms[2], "all_reduce", 1 << 20, &time_us));
  assert_true(time_us > 0);
  expect_error(tutti_model_time(comms[2], "all_dance", 1, &time_us), ncclInvalidArgument, "tutti_model_time",
               "all_dance");
  char text[200], start[8];
  expect_ok(tutti_model_text(comms[2], text, sizeof text));
  assert_non_null(strstr(text, "4 ranks on 1 node, "));
  expect_ok(tutti_model_text(comms[2], start, sizeof start));
  assert_string_equal(start, "4 ranks");
  expect_error(tutti_model_text(comms[2], NULL, 8), ncclInvalidArgument, "tutti_model_text", "text");
  expect_error(tutti_model_text(comms[2], text, 0), ncclInvalidArgument, "tutti_model_text", "text_bytes");
  close_all(4);
}

/* The first option is the one that a call would choose; each option is listed once, sorted by time. */
static void test_tuning_options(void **state) {
  (void)state;
  tutti_tuning_options_t options = {.size = sizeof options};
  open_all(4);
  expect_ok(tutti_comm_tuning_options(comms[1], "all_reduce", 64 << 20, &options));
  assert_int_equal(options.rank_count, 4);
  assert_int_equal(options.node_count, 1);
  assert_in_range(options.option_count, 3, TUTTI_TUNING_OPTIONS_MAX);
  for (int i = 0; i < options.option_count; i++) {
    assert_true(options.options[i].channel_count > 0 && options.options[i].time_us > 0);
    if (i > 1) assert_true(options.options[i].time_us >= options.options[i - 1].time_us);
    for (int other = 0; other < i; other++)
      assert_false(strcmp(options.options[i].algo, options.options[other].algo) == 0 &&
                   strcmp(options.options[i].proto, options.options[other].proto) == 0);
  }
  expect_ok(ncclAllReduce(buffer, buffer, 16 << 20, ncclFloat, ncclSum, comms[1], NULL));
  assert_string_equal(options.options[0].algo, names_algo[last_launch()->first.algo]);
  assert_string_equal(options.options[0].proto, names_proto[last_launch()->first.proto]);
  expect_error(tutti_comm_tuning_options(comms[1], "sendrecv", 8, &options), ncclInvalidArgument,
               "tutti_comm_tuning_options", "has only one option");
  options.size = 1;
  expect_error(tutti_comm_tuning_options(comms[1], "all_reduce", 8, &options), ncclInvalidArgument,
               "tutti_comm_tuning_options", "sizeof(tutti_tuning_options_t)");
  close_all(4);
}

static void test_operators(void **state) {
  (void)state;
  ncclRedOp_t op = ncclSum, second = ncclSum;
  float factor = 0.5f;
  uint32_t bits;
  memcpy(&bits, &factor, sizeof bits);
  open_all(4);
  expect_ok(ncclAllReduce(buffer, buffer, 5, ncclInt, ncclAvg, comms[0], NULL));
  assert_int_equal(last_launch()->first.op, OP_SUM_POST_DIV);
  assert_int_equal(last_launch()->first.op_arg, 4 << 1 | 1);
  expect_ok(ncclAllReduce(buffer, buffer, 5, ncclUint64, ncclAvg, comms[0], NULL));
  assert_int_equal(last_launch()->first.op_arg, 4 << 1);
  expect_ok(ncclAllReduce(buffer, buffer, 5, ncclFloat, ncclAvg, comms[0], NULL));
  assert_int_equal(last_launch()->first.op, OP_PRE_MUL_SUM);
  assert_int_equal(last_launch()->first.op_arg, 0x3e800000);
  expect_ok(ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat, ncclScalarHostImmediate, comms[0]));
  assert_true((int)op >= (int)ncclNumOps);
  expect_ok(ncclAllReduce(buffer, buffer, 5, ncclFloat, op, comms[0], NULL));
  assert_int_equal(last_launch()->first.op_arg, bits);
  expect_error(ncclAllReduce(buffer, buffer, 5, ncclHalf, op, comms[0], NULL), ncclInvalidArgument,
               "ncclAllReduce", "created for");
  expect_error(ncclAllReduce(buffer, buffer, 5, ncclFloat, op, comms[1], NULL), ncclInvalidArgument,
               "operator");
  assert_null(last_launch()->scalar);
  /* A scalar on the device is read when the operation begins. */
  expect_ok(ncclRedOpCreatePreMulSum(&second, buffer, ncclFloat, ncclScalarDevice, comms[0]));
  expect_ok(ncclAllReduce(buffer, buffer, 5, ncclFloat, second, comms[0], NULL));
  assert_ptr_equal(last_launch()->scalar, buffer);
  expect_ok(ncclRedOpDestroy(op, comms[0]));
  expect_error(ncclRedOpDestroy(op, comms[0]), ncclInvalidArgument, "ncclRedOpDestroy");
  expect_error(ncclRedOpDestroy(ncclAvg, comms[0]), ncclInvalidArgument, "built-in");
  expect_error(ncclAllReduce(buffer, buffer, 5, ncclFloat, op, comms[0], NULL), ncclInvalidArgument,
               "operator");
  expect_error(ncclRedOpCreatePreMulSum(NULL, &factor, ncclFloat, ncclScalarDevice, comms[0]),
               ncclInvalidArgument, "op is NULL");
  expect_error(ncclRedOpCreatePreMulSum(&op, &factor, ncclNumTypes, ncclScalarDevice, comms[0]),
               ncclInvalidArgument, "ncclDataType_t");
  expect_error(ncclRedOpCreatePreMulSum(&op, &factor, ncclInt, (ncclScalarResidence_t)2, comms[0]),
               ncclInvalidArgument, "ncclScalarResidence_t");
  for (int i = 0; i < 20; i++) { /* the table grows */
    expect_ok(ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat, ncclScalarHostImmediate, comms[0]));
    assert_int_not_equal(op, second);
  }
  close_all(4);
}

static void test_check_pointers(void **state) {
  (void)state;
  int local = 0;
  set_param("NCCL_CHECK_MODE", "local");
  open_all(2);
  set_param("NCCL_CHECK_MODE", NULL);
  expect_error(ncclAllReduce(&local, &local, 1, ncclInt, ncclSum, comms[0], NULL), ncclInvalidArgument,
               "ncclAllReduce", "sendbuff", "not memory of a device");
  expect_error(ncclAllReduce(device_memory[0], device_memory[1], 1, ncclInt, ncclSum, comms[0], NULL),
               ncclInvalidArgument, "recvbuff", "memory of device 1");
  expect_error(ncclAllGather(device_memory[0], device_memory[0], 1024, ncclInt, comms[0], NULL),
               ncclInvalidArgument, "recvbuff", "needs 8192");
  /* Only used members are checked. */
  expect_ok(ncclReduce(device_memory[1], &local, 1, ncclInt, ncclSum, 0, comms[1], NULL));
  expect_ok(ncclBroadcast(&local, device_memory[1], 1, ncclInt, 0, comms[1], NULL));
  close_all(2);
}

static void test_registration(void **state) {
  (void)state;
  void *user = NULL;
  void *handle = NULL, *second = NULL;
  ncclWindow_t window = (ncclWindow_t)buffer;
  open_all(1);
  expect_error(ncclCommRegister(comms[0], NULL, 8, &handle), ncclInvalidArgument, "ncclCommRegister", "NULL");
  expect_error(ncclCommRegister(comms[0], buffer, 0, &handle), ncclInvalidArgument, "size is 0");
  expect_ok(ncclCommRegister(comms[0], buffer, 8, &handle));
  expect_ok(ncclCommRegister(comms[0], buffer, 8, &second));
  assert_ptr_equal(handle, second);
  expect_ok(ncclCommDeregister(comms[0], handle));
  expect_ok(ncclCommDeregister(comms[0], handle));
  expect_error(ncclCommDeregister(comms[0], handle), ncclInvalidUsage, "ncclCommDeregister",
               "gave no handle");
  expect_ok(ncclCommRegister(comms[0], host_memory, 8, &handle));
  assert_null(handle);
  expect_ok(ncclCommDeregister(comms[0], NULL));
  expect_ok(ncclCommRegister(comms[0], buffer, 16, &handle)); /* left for the destroy */
  expect_error(ncclCommWindowRegister(comms[0], NULL, 8, &window, 0), ncclInvalidArgument,
               "ncclCommWindowRegister");
  expect_error(ncclCommWindowRegister(comms[0], buffer, 8, &window, 16), ncclInvalidArgument, "NCCL_WIN");
  expect_ok(ncclCommWindowRegister(comms[0], buffer, 8, &window, NCCL_WIN_COLL_SYMMETRIC));
  assert_non_null(window);
  expect_ok(ncclWinGetUserPtr(comms[0], window, &user));
  assert_ptr_equal(user, buffer);
  expect_error(ncclWinGetUserPtr(comms[0], window, NULL), ncclInvalidArgument, "ncclWinGetUserPtr", "NULL");
  expect_ok(ncclCommWindowDeregister(comms[0], window));
  expect_error(ncclWinGetUserPtr(comms[0], window, &user), ncclInvalidUsage, "has no window");
  assert_null(user);
  expect_ok(ncclWinGetUserPtr(comms[0], NULL, &user));
  assert_null(user);
  expect_ok(ncclCommWindowRegister(comms[0], buffer, 8, &window,
                                   NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING));
  expect_ok(ncclCommWindowDeregister(comms[0], window));
  expect_error(ncclCommWindowDeregister(comms[0], window), ncclInvalidUsage, "ncclCommWindowDeregister",
               "has no window");
  expect_ok(ncclCommWindowRegister(comms[0], host_memory, 8, &window, NCCL_WIN_DEFAULT));
  assert_null(window);
  expect_ok(ncclCommWindowDeregister(comms[0], NULL));
  close_all(1);
}

/* ---- Splits ---- */

static void test_split(void **state) {
  (void)state;
  ncclComm_t children[4] = {NULL, NULL, NULL, (ncclComm_t)buffer};
  const int color[4] = {7, 2, 7, NCCL_SPLIT_NOCOLOR}, key[4] = {9, 0, 3, 0}, rank[3] = {1, 0, 0},
            count[3] = {2, 1, 2};
  open_all(4);
  expect_error(ncclCommSplit(comms[0], 0, 0, NULL, NULL), ncclInvalidArgument, "ncclCommSplit",
               "newcomm is NULL");
  expect_error(ncclCommSplit(comms[0], -2, 0, &children[0], NULL), ncclInvalidArgument, "color is -2");
  expect_error(ncclCommSplit(NULL, 0, 0, &children[0], NULL), ncclInvalidArgument, "ncclCommSplit", "NULL");
  expect_ok(ncclGroupStart());
  for (int i = 0; i < 4; i++) expect_ok(ncclCommSplit(comms[i], color[i], key[i], &children[i], NULL));
  expect_ok(ncclGroupEnd());
  assert_null(children[3]);
  for (int i = 0; i < 3; i++) {
    int value = -1;
    expect_ok(ncclCommUserRank(children[i], &value));
    assert_int_equal(value, rank[i]);
    expect_ok(ncclCommCount(children[i], &value));
    assert_int_equal(value, count[i]);
    expect_ok(ncclCommCuDevice(children[i], &value));
    assert_int_equal(value, i);
  }
  close_all(4); /* children outlive their parent */
  expect_ok(ncclAllReduce(buffer, buffer, 5, ncclInt, ncclSum, children[0], NULL));
  for (int i = 0; i < 3; i++) expect_ok(ncclCommDestroy(children[i]));
}

static void test_shrink_and_revoke(void **state) {
  (void)state;
  ncclComm_t survivors[4] = {NULL, NULL, NULL, NULL};
  int lost[] = {1}, beyond[] = {4}, value = -1;
  open_all(4);
  expect_error(ncclCommShrink(comms[0], NULL, 1, &survivors[0], NULL, 0), ncclInvalidArgument,
               "ncclCommShrink", "empty");
  expect_error(ncclCommShrink(comms[0], lost, 0, &survivors[0], NULL, 0), ncclInvalidArgument, "empty");
  expect_error(ncclCommShrink(comms[1], lost, 1, &survivors[0], NULL, 0), ncclInvalidArgument,
               "excludes itself");
  expect_error(ncclCommShrink(comms[0], beyond, 1, &survivors[0], NULL, 0), ncclInvalidArgument,
               "rank 4 of 4");
  expect_error(ncclCommRevoke(comms[0], 3), ncclInvalidArgument, "ncclCommRevoke", "NCCL_REVOKE_DEFAULT");
  expect_ok(ncclCommRevoke(comms[0], NCCL_REVOKE_DEFAULT));
  expect_error(ncclCommRevoke(comms[0], NCCL_REVOKE_DEFAULT), ncclInvalidArgument, "before");
  expect_error(ncclAllReduce(buffer, buffer, 5, ncclInt, ncclSum, comms[0], NULL), ncclInvalidUsage,
               "ncclAllReduce", "revoked");
  expect_error(ncclCommFinalize(comms[0]), ncclInvalidUsage, "ncclCommFinalize", "revoked");
  expect_ok(ncclGroupStart());
  for (int i = 0; i < 4; i++) {
    if (i != 1) expect_ok(ncclCommShrink(comms[i], lost, 1, &survivors[i], NULL, NCCL_SHRINK_ABORT));
  }
  expect_ok(ncclGroupEnd());
  for (int i = 0; i < 4; i++) {
    if (i == 1) continue;
    expect_ok(ncclCommUserRank(survivors[i], &value));
    assert_int_equal(value, i == 0 ? 0 : i - 1);
    expect_ok(ncclAllReduce(buffer, buffer, 5, ncclInt, ncclSum, survivors[i], NULL));
    expect_ok(ncclCommDestroy(survivors[i]));
  }
  close_all(4);
}

/* ---- Ending ---- */

static void test_end(void **state) {
  (void)state;
  expect_ok(ncclCommDestroy(NULL));
  expect_ok(ncclCommAbort(NULL));
  expect_ok(ncclCommFinalize(NULL));
  open_all(2);
  expect_ok(ncclCommFinalize(comms[0]));
  expect_error(ncclCommFinalize(comms[0]), ncclInvalidArgument, "ncclCommFinalize", "finalized");
  expect_error(ncclAllReduce(buffer, buffer, 5, ncclInt, ncclSum, comms[0], NULL), ncclInvalidArgument,
               "finalized");
  expect_ok(ncclGroupStart());
  expect_ok(ncclAllReduce(buffer, buffer, 5, ncclInt, ncclSum, comms[1], NULL));
  expect_error(ncclCommDestroy(comms[1]), ncclInvalidUsage, "ncclCommDestroy", "open");
  expect_ok(ncclGroupEnd());
  /* Device-side connections are closed when the last rank is destroyed: a peer may still write to them. */
  expect_ok(ncclCommDestroy(comms[0]));
  assert_int_equal(fake.open_count, 2);
  expect_ok(ncclCommDestroy(comms[1]));
  assert_int_equal(fake.open_count, 0);
}

static void test_async_error(void **state) {
  (void)state;
  open_all(2);
  fake.error = ncclInternalError;
  assert_int_equal(async_error(comms[0]), ncclInternalError);
  expect_error(ncclAllReduce(buffer, buffer, 5, ncclInt, ncclSum, comms[0], NULL), ncclInternalError,
               "ncclAllReduce", "failed earlier");
  assert_int_equal(ncclCommDestroy(comms[1]), ncclInternalError);
  expect_ok(ncclCommAbort(comms[0]));
}

static bool fake_is_awaited(void) {
  os_mutex_lock(&fake.mutex);
  const bool awaited = fake.waits > 0;
  os_mutex_unlock(&fake.mutex);
  return awaited;
}

static void *destroy_body(void *argument) {
  *(ncclResult_t *)argument = ncclCommDestroy(comms[0]);
  return NULL;
}

/* Abort ends another thread's wait in destroy for a kernel that never ends. */
static void test_abort_during_destroy(void **state) {
  (void)state;
  os_thread thread;
  ncclResult_t result = ncclSuccess;
  open_all(1);
  fake.busy = true;
  assert_true(os_thread_start(&thread, destroy_body, &result));
  for (int i = 0; i < 10000 && !fake_is_awaited(); i++) os_sleep_ms(1);
  os_sleep_ms(50);
  expect_ok(ncclCommAbort(comms[0]));
  os_thread_join(thread);
  assert_int_equal(result, ncclInvalidUsage);
}

/* ---- Allocation failures ---- */

static ncclResult_t whole_life(void) {
  ncclComm_t children[3] = {NULL, NULL, NULL};
  ncclRedOp_t op;
  double scalar = 2;
  void *handle;
  ncclResult_t result = ncclCommInitAll(comms, 3, NULL);
  if (result != ncclSuccess) return result;
  ncclGroupStart();
  for (int i = 0; i < 3; i++) ncclAllReduce(buffer, buffer, 100, ncclInt, ncclSum, comms[i], NULL);
  for (int i = 0; i < 3; i++) ncclAlltoAll(device_memory[0], device_memory[1], 10, ncclInt, comms[i], NULL);
  result = ncclGroupEnd();
  ncclGroupStart();
  for (int i = 0; i < 3; i++) ncclCommSplit(comms[i], i % 2, 0, &children[i], NULL);
  const ncclResult_t split = ncclGroupEnd();
  if (result == ncclSuccess) result = split;
  const ncclResult_t created =
      ncclRedOpCreatePreMulSum(&op, &scalar, ncclDouble, ncclScalarHostImmediate, comms[0]);
  if (result == ncclSuccess) result = created;
  const ncclResult_t registered = ncclCommRegister(comms[1], buffer, 8, &handle);
  if (result == ncclSuccess) result = registered;
  for (int i = 0; i < 3; i++) ncclCommDestroy(children[i]);
  for (int i = 0; i < 3; i++) ncclCommAbort(comms[i]);
  return result;
}

static void test_allocation_failures(void **state) {
  (void)state;
  const uint64_t before = os_alloc_count();
  assert_int_equal(whole_life(), ncclSuccess);
  const uint64_t needed = os_alloc_count() - before;
  assert_true(needed > 10);
  for (uint64_t k = 1; k <= needed; k++) {
    log_reset();
    os_alloc_fail_at(k);
    const ncclResult_t result = whole_life();
    os_alloc_fail_at(0);
    assert_int_equal(result, ncclSystemError);
    assert_string_not_equal(ncclGetLastError(NULL), "");
    assert_int_equal(os_alloc_live(), 0);
    assert_int_equal(fake.open_count, 0);
  }
  assert_int_equal(whole_life(), ncclSuccess);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_library),
                                     TEST(test_backend_fill),
                                     TEST(test_unsupported),
                                     TEST(test_device_api),
                                     TEST(test_config_of_older_headers),
                                     TEST(test_parameters),
                                     TEST(test_memory_statistics),
                                     TEST(test_init_arguments),
                                     TEST(test_init_all),
                                     TEST(test_init_threads),
                                     TEST(test_init_disagreement),
                                     TEST(test_init_shared_device),
                                     TEST(test_config),
                                     TEST(test_algo_list),
                                     TEST(test_nonblocking),
                                     TEST(test_nonblocking_abort),
                                     TEST(test_nonblocking_timeout),
                                     TEST(test_group_errors),
                                     TEST(test_group_discards_communicators),
                                     TEST(test_group_blocking_mix),
                                     TEST(test_group_streams),
                                     TEST(test_group_order),
                                     TEST(test_group_self),
                                     TEST(test_group_simulate),
                                     TEST(test_group_launch_failure),
                                     TEST(test_arguments),
                                     TEST(test_retyping),
                                     TEST(test_connections),
                                     TEST(test_tuning_options),
                                     TEST(test_operators),
                                     TEST(test_check_pointers),
                                     TEST(test_registration),
                                     TEST(test_split),
                                     TEST(test_shrink_and_revoke),
                                     TEST(test_end),
                                     TEST(test_async_error),
                                     TEST(test_abort_during_destroy),
                                     TEST(test_allocation_failures)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
