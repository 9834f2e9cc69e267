/* proxy.c: the engine: the communicators of the process, and the thread that progresses them. In a
 * deterministic emulator it is a service that makes one action per turn. Otherwise it has a thread, which
 * spins while something moves, yields for a while, and then sleeps until it is woken, a network's descriptor
 * is ready, or a short time has passed (kernels change counters without a wake: proxy_watch.c). Without
 * pending operations it sleeps without timeout. If kernels progress the connections that they wait for, the
 * thread sleeps and takes over when they have stopped. */
#include "core/proxy/proxy.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "base/wake.h"
#include "core/proxy/net.h"
#include "core/proxy/proxy_impl.h"
#include "core/proxy/proxy_pxn.h"
#include "core/topology/rails.h"

#define SPIN_NS 100000u   /* time to spin once nothing moves */
#define YIELD_NS 300000u  /* time to poll and yield after that */
#define NAP_US 100u       /* at most between polls while operations are pending */
#define NAP_LONG_US 1000u /* the same, if they have made no progress for LONG_NS */
#define LONG_NS 50000000u
#define CONNECT_US 10000u /* between polls while connections are being made and nothing else is pending */
#define ENGINE_KEY 1u
#define DRIVEN_NAP_US 1000u  /* between checks if kernels still progress the engine, ... */
#define DRIVEN_NS 100000000u /* ... and for how long after they last did */

enum engine_sleep { ENGINE_AWAKE, ENGINE_NAPS, ENGINE_SLEEPS };

static struct {
  struct proxy_comm *comms; /* guarded by the lock, as their members */
  struct proxy_conn *cursor;
  uint32_t comm_count;
  uint32_t attention; /* atomic; communicators that have work or an unreported failure */
  bool in_world, moved;
  const struct backend *ops;
  void *service;
  int wake;
  uint32_t asleep, stop; /* atomic; asleep: enum engine_sleep */
  uint64_t driven;       /* atomic; turns by other threads */
  uint32_t called;       /* atomic; there is work that only the thread does */
  uint32_t threaded;     /* atomic; the thread runs turns */
  os_thread thread;
  bool running; /* the thread exists; guarded by life_mutex */
} engine = {.wake = -1};

static os_mutex engine_mutex = OS_MUTEX_INITIALIZER;
static os_mutex life_mutex = OS_MUTEX_INITIALIZER; /* starting and stopping; taken after the backend's lock */
static os_cond life_cond = PTHREAD_COND_INITIALIZER; /* the thread has run its last turn */
static os_mutex open_mutex = OS_MUTEX_INITIALIZER; /* opening a connection; taken before the backend's lock */
static os_cond reported_cond = PTHREAD_COND_INITIALIZER;

/* ---- the mailbox ---- */

static struct proxy_mailbox_entry *mailbox_newest; /* atomic */

/* Takes all entries and returns the oldest, followed by the others in order. */
static struct proxy_mailbox_entry *mailbox_take(void) {
  struct proxy_mailbox_entry *oldest = NULL;
  if (__atomic_load_n(&mailbox_newest, __ATOMIC_SEQ_CST) == NULL) return NULL;
  for (struct proxy_mailbox_entry *entry = __atomic_exchange_n(&mailbox_newest, NULL, __ATOMIC_ACQ_REL),
                                  *older;
       entry != NULL; entry = older) {
    older = entry->next;
    entry->next = oldest;
    oldest = entry;
  }
  return oldest;
}

static void mailbox_read(void) {
  for (struct proxy_mailbox_entry *entry = mailbox_take(), *next; entry != NULL; entry = next) {
    next = entry->next;
    proxy_ops_read(entry);
  }
}

void proxy_lock(void) {
  os_mutex_lock(&engine_mutex);
  mailbox_read();
}

static bool engine_try_lock(void) {
  if (!os_mutex_try_lock(&engine_mutex)) return false;
  mailbox_read();
  return true;
}

void proxy_unlock(void) { os_mutex_unlock(&engine_mutex); }

/* A thread that is awake takes the lock at least once more before it sleeps, and then sees the entry. */
void proxy_mailbox_put(struct proxy_mailbox_entry *entry) {
  entry->next = __atomic_load_n(&mailbox_newest, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(&mailbox_newest, &entry->next, entry, true, __ATOMIC_SEQ_CST,
                                      __ATOMIC_RELAXED))
    continue;
  if (__atomic_load_n(&engine.threaded, __ATOMIC_SEQ_CST) != 0 &&
      __atomic_load_n(&engine.asleep, __ATOMIC_SEQ_CST) == ENGINE_AWAKE)
    return;
  proxy_lock();
  proxy_unlock();
}

/* ---- attention ---- */

/* Wakes the thread once: until its next turn it counts as awake for all callers. */
static void engine_rouse(uint32_t at_least) {
  uint32_t asleep = __atomic_load_n(&engine.asleep, __ATOMIC_SEQ_CST);
  if (engine.wake < 0 || asleep < at_least) return;
  if (__atomic_compare_exchange_n(&engine.asleep, &asleep, ENGINE_AWAKE, false, __ATOMIC_SEQ_CST,
                                  __ATOMIC_SEQ_CST))
    wake_signal(engine.wake);
}

void proxy_attend(void) {
  __atomic_store_n(&engine.attention, 1, __ATOMIC_RELAXED);
  engine_rouse(ENGINE_SLEEPS);
}

static void engine_call(void) {
  __atomic_store_n(&engine.called, 1, __ATOMIC_SEQ_CST);
  engine_rouse(ENGINE_NAPS);
}

struct proxy_comm *proxy_comms(void) {
  return engine.comms;
}

bool proxy_in_world(void) { return engine.service != NULL; }

void proxy_wake(void) {
  if (__atomic_load_n(&engine.attention, __ATOMIC_RELAXED) == 0) return;
  if (engine.service != NULL) engine.ops->network->service_wake(engine.service);
}

/* ---- turns ---- */

static bool comm_busy(const struct proxy_comm *comm) {
  if (comm->failed) return !comm->reported;
  return comm->live > 0 || comm->connecting > 0 || !comm->idle_reported;
}

static bool conn_busy(const struct proxy_conn *conn) {
  return (conn->connection == NULL && conn->pxn_client == NULL) || conn->first != NULL ||
         conn->n_done != conn->n_posted;
}

/* Reports a failure, once, with the lock released. */
static bool comm_report(struct proxy_comm *comm) {
  if (!comm->failed || comm->reported) return false;
  comm->reported = comm->reporting = true;
  proxy_unlock();
  comm->call.failed(comm->call.argument, comm->code, comm->text);
  proxy_lock();
  comm->reporting = false;
  os_cond_broadcast(&reported_cond);
  return true;
}

/* Notifies threads that wait in the backend for the communicator to become idle. */
static bool comm_report_idle(struct proxy_comm *comm) {
  if (comm->live > 0) {
    comm->idle_reported = false;
    return false;
  }
  if (comm->idle_reported) return false;
  comm->idle_reported = true;
  return true;
}

void proxy_conn_list(struct proxy_conn *conn) {
  struct proxy_busy *busy = &conn->comm->busy;
  if (conn->listed) return;
  conn->listed = true;
  conn->next_busy = NULL;
  if (busy->first != NULL) busy->last->next_busy = conn;
  else busy->first = conn;
  busy->last = conn;
}

/* Makes at most `most` actions per connection, and keeps those with more work in the busy list. True if
 * something moved. */
static bool comm_turn(struct proxy_comm *comm, uint32_t most) {
  bool any = false;
  struct proxy_busy *busy = &comm->busy;
  struct proxy_conn **place = &busy->first;
  busy->last = NULL;
  for (struct proxy_conn *conn; (conn = *place) != NULL;) {
    for (uint32_t i = 0; i < most && proxy_conn_advance(conn); i++) any = true;
    conn->listed = conn_busy(conn);
    if (conn->listed) busy->last = conn, place = &conn->next_busy;
    else *place = conn->next_busy;
  }
  return any;
}

static void comm_settle(struct proxy_comm *comm) {
  for (struct proxy_conn *conn = comm->first; conn != NULL; conn = conn->next) proxy_conn_settle(conn);
}

#define LAST_TURNS 8 /* turns after a kernel's end; most kernels then leave nothing for the thread */

/* The engine's lock is held for a short time only; its holder runs the turn anyway. */
bool proxy_turn(struct proxy_comm *const *place, bool last) {
  bool moved = false, left = false;
  if (!engine_try_lock()) {
    if (!last) return false;
    proxy_lock();
  }
  struct proxy_comm *comm = *place;
  if (proxy_in_world()) { /* the emulator's service runs the turns */
    if (comm != NULL && last) comm_settle(comm);
    proxy_unlock();
    return false;
  }
  __atomic_fetch_add(&engine.driven, 1, __ATOMIC_RELAXED);
  for (uint32_t turns = last ? LAST_TURNS : 1; comm != NULL && !comm->failed && comm->live > 0 && turns > 0;
       turns--) {
    if (!comm_turn(comm, 32)) break;
    moved = true;
  }
  if (comm != NULL && last) comm_settle(comm);
  if (comm != NULL) left = comm->failed ? !comm->reported : last && comm->live > 0;
  if (left) engine_call(); /* under the lock: after it the engine may be stopped */
  proxy_unlock();
  return moved;
}

/* ---- in a deterministic emulator: one action per turn, round robin over connections ---- */

static struct proxy_conn *next_of_all(struct proxy_conn *conn) {
  if (conn != NULL && conn->next != NULL) return conn->next;
  struct proxy_comm *comm = conn != NULL ? conn->comm->next : engine.comms;
  while (comm != NULL && comm->first == NULL) comm = comm->next;
  return comm != NULL ? comm->first : NULL;
}

static bool advance_one(void) {
  struct proxy_conn *begin = engine.cursor;
  bool wrapped = false;
  for (struct proxy_conn *conn = next_of_all(begin);; conn = next_of_all(conn)) {
    if (conn == NULL) {
      if (wrapped) return false;
      wrapped = true;
      continue;
    }
    engine.cursor = conn;
    if (conn_busy(conn) && proxy_conn_advance(conn)) return true;
    if (wrapped && conn == begin) return false;
  }
}

static void service_turn(void *argument) {
  (void)argument;
  proxy_lock();
  engine.moved = advance_one();
  uint32_t attention = 0;
  for (struct proxy_comm *comm = engine.comms; comm != NULL; comm = comm->next) {
    (void)proxy_comm_progress_idle(comm);
    engine.moved |= comm_report(comm);
    engine.moved |= comm_report_idle(comm);
    attention += comm_busy(comm);
  }
  __atomic_store_n(&engine.attention, attention, __ATOMIC_RELAXED);
  proxy_unlock();
}

static bool service_moved(void *argument) {
  (void)argument;
  return engine.moved;
}

static bool service_ready(void *argument) {
  (void)argument;
  return __atomic_load_n(&engine.attention, __ATOMIC_RELAXED) != 0;
}

/* True if a network outside the emulator has work pending. */
static bool service_outside(void *argument) {
  bool outside = false;
  (void)argument;
  proxy_lock();
  for (const struct proxy_comm *comm = engine.comms; comm != NULL && !outside; comm = comm->next)
    outside = !comm->failed && !comm->net->in_world && (comm->connecting > 0 || comm->live > 0);
  proxy_unlock();
  return outside;
}

static void service_report(void *argument, char *out, size_t out_bytes) {
  size_t used = 0;
  (void)argument;
  out[0] = '\0';
  proxy_lock();
  for (struct proxy_conn *conn = next_of_all(NULL); conn != NULL; conn = next_of_all(conn)) {
    if (used + 1 >= out_bytes) break;
    proxy_conn_report(conn, out + used, out_bytes - used);
    used += strlen(out + used);
  }
  proxy_unlock();
}

/* ---- on a thread ---- */

enum { ENGINE_MOVED, ENGINE_WAITS, ENGINE_CONNECTS, ENGINE_LOOKS, ENGINE_IDLE };

static int comm_progress_idle(struct proxy_comm *comm) {
  switch (proxy_comm_progress_idle(comm)) {
    case NET_LOOK_SOON: return ENGINE_WAITS;
    case NET_LOOK_LATER: return ENGINE_LOOKS;
    default: return ENGINE_IDLE;
  }
}

/* One turn over everything. */
static int thread_turn(bool *idle_news) {
  int state = ENGINE_IDLE;
  proxy_lock();
  for (struct proxy_comm *comm = engine.comms; comm != NULL; comm = comm->next) {
    const int looks = comm_progress_idle(comm);
    if (looks < state) state = looks;
    if (!comm_busy(comm)) continue;
    const bool moved = comm_turn(comm, 32);
    if (comm_report(comm)) {
      state = ENGINE_MOVED; /* the list may have changed meanwhile */
      break;
    }
    *idle_news |= comm_report_idle(comm);
    const int found = moved                  ? ENGINE_MOVED
                      : comm->failed         ? ENGINE_IDLE
                      : comm->live > 0       ? ENGINE_WAITS
                      : comm->connecting > 0 ? ENGINE_CONNECTS
                                             : ENGINE_IDLE;
    if (found < state) state = found;
  }
  proxy_unlock();
  return state;
}

static uint32_t descriptors_of(int *descriptors, uint32_t capacity) {
  uint32_t count = 0;
  proxy_lock();
  for (struct proxy_conn *conn = next_of_all(NULL); conn != NULL && count < capacity;
       conn = next_of_all(conn)) {
    const struct net_ops *net = conn->comm->net;
    uint32_t more = 0;
    void *of = conn->connection != NULL ? conn->connection : conn->listener;
    if (!conn_busy(conn) || conn->comm->failed || of == NULL || net->wait_descriptors == NULL) continue;
    if (net->wait_descriptors(of, descriptors + count, capacity - count, &more) == ncclSuccess) count += more;
  }
  proxy_unlock();
  return count;
}

static uint64_t nap_us(int state, uint64_t still_ns, bool driven) {
  if (state >= ENGINE_LOOKS && driven) return DRIVEN_NAP_US;
  if (state == ENGINE_IDLE) return UINT64_MAX;
  if (state == ENGINE_LOOKS) return PROXY_PROGRESS_IDLE_US;
  if (state == ENGINE_CONNECTS) return CONNECT_US;
  return still_ns < LONG_NS ? NAP_US : NAP_LONG_US;
}

/* A thread that posts from here on is either seen by the last turn, or sees that the engine sleeps. True if
 * something moved, or another thread woke this one: a kernel that was just posted changes its counters
 * without a wake, so the thread polls as after a move. */
static bool thread_sleep(uint64_t since_ns, bool driven, uint64_t *nap_cost_ns) {
  int descriptors[WAKE_DESCRIPTORS_MAX];
  bool idle_news = false;
  __atomic_store_n(&engine.asleep, driven ? ENGINE_NAPS : ENGINE_SLEEPS, __ATOMIC_SEQ_CST);
  const uint64_t cpu_ns = os_thread_cpu_ns(), waiting = proxy_watch_count();
  const int state = thread_turn(&idle_news);
  if (state != ENGINE_MOVED && !idle_news && __atomic_load_n(&engine.stop, __ATOMIC_SEQ_CST) == 0) {
    const uint32_t count = state >= ENGINE_LOOKS ? 0 : descriptors_of(descriptors, WAKE_DESCRIPTORS_MAX);
    const uint64_t most_us = nap_us(state, os_time_ns() - since_ns, driven);
    const struct proxy_watch watch = {engine.wake, descriptors, count, most_us, waiting, cpu_ns};
    if (state == ENGINE_WAITS && waiting > 0) proxy_watch(&watch, nap_cost_ns);
    else wake_wait(engine.wake, descriptors, count, most_us);
  }
  const bool roused = __atomic_exchange_n(&engine.asleep, ENGINE_AWAKE, __ATOMIC_SEQ_CST) == ENGINE_AWAKE;
  if (idle_news) engine.ops->device->lock(), engine.ops->device->unlock();
  return roused || state == ENGINE_MOVED;
}

/* While kernels progress the engine: sleeps, then checks again if they still do, unless it is called. */
static void thread_nap(void) {
  __atomic_store_n(&engine.asleep, ENGINE_NAPS, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&engine.called, __ATOMIC_SEQ_CST) == 0 &&
      __atomic_load_n(&engine.stop, __ATOMIC_SEQ_CST) == 0)
    wake_wait(engine.wake, NULL, 0, DRIVEN_NAP_US);
  __atomic_store_n(&engine.asleep, ENGINE_AWAKE, __ATOMIC_SEQ_CST);
  proxy_lock();
  for (struct proxy_comm *comm = engine.comms; comm != NULL; comm = comm->next) {
    (void)proxy_comm_progress_idle(comm);
    if (comm->failed && !comm->reported) engine_call();
  }
  proxy_unlock();
}

/* True while other threads run the turns; *at_ns is when they last did. */
static bool thread_is_spared(uint64_t *seen, uint64_t *at_ns) {
  const uint64_t driven = __atomic_load_n(&engine.driven, __ATOMIC_RELAXED);
  const bool spared = driven != *seen;
  *seen = driven;
  if (spared) *at_ns = os_time_ns();
  return spared && __atomic_exchange_n(&engine.called, 0, __ATOMIC_SEQ_CST) == 0;
}

/* True if the thread must end: no communicator was opened since it was told to. */
static bool thread_ends(void) {
  if (__atomic_load_n(&engine.stop, __ATOMIC_SEQ_CST) == 0) return false;
  os_mutex_lock(&life_mutex);
  const bool ends = engine.stop != 0 && engine.comm_count == 0;
  if (ends) {
    engine.running = false;
    os_cond_broadcast(&life_cond);
  }
  os_mutex_unlock(&life_mutex);
  return ends;
}

static void *thread_body(void *argument) {
  uint64_t since_ns = os_time_ns(), seen_driven = 0, driven_ns = 0, nap_cost_ns = 0;
  (void)argument;
  os_thread_wakes_exactly();
  net_thread_bind();
  while (!thread_ends()) {
    bool idle_news = false;
    if (thread_is_spared(&seen_driven, &driven_ns)) {
      thread_nap();
      continue;
    }
    const int state = thread_turn(&idle_news);
    if (idle_news) engine.ops->device->lock(), engine.ops->device->unlock();
    const uint64_t now_ns = os_time_ns();
    const bool driven = driven_ns != 0 && now_ns - driven_ns < DRIVEN_NS;
    if (state == ENGINE_MOVED) {
      since_ns = now_ns;
    } else if ((driven && state >= ENGINE_LOOKS) ||
               now_ns - since_ns > (state == ENGINE_WAITS ? SPIN_NS + YIELD_NS : SPIN_NS)) {
      if (thread_sleep(since_ns, driven, &nap_cost_ns)) since_ns = os_time_ns();
    } else if (now_ns - since_ns > SPIN_NS) {
      os_yield();
    }
  }
  return NULL;
}

/* ---- starting and stopping ---- */

/* After its last turn the thread takes no lock. */
static void engine_reap(void) {
  if (engine.wake < 0 || engine.running) return;
  os_thread_join(engine.thread);
  wake_close(engine.wake);
  engine.wake = -1;
}

static ncclResult_t engine_start_thread(void) {
  engine_reap();
  TRY(wake_open(&engine.wake));
  engine.stop = 0;
  engine.running = true;
  if (os_thread_start_named(&engine.thread, "tutti-proxy", thread_body, NULL)) {
    __atomic_store_n(&engine.threaded, 1, __ATOMIC_SEQ_CST);
    return ncclSuccess;
  }
  engine.running = false;
  wake_close(engine.wake);
  engine.wake = -1;
  return log_fail(ncclSystemError, "no thread for transfers over networks; raise ulimit -u");
}

/* A forked child has none of its parent's communicators, nor the thread. Their resources stay the parent's.
 */
static void engine_forget(void) {
  static uint32_t forks;
  if (forks == os_fork_count()) return;
  forks = os_fork_count();
  if (engine.wake >= 0) wake_close(engine.wake);
  engine.comms = NULL;
  engine.cursor = NULL;
  engine.comm_count = 0;
  engine.service = NULL;
  engine.running = false;
  __atomic_store_n(&engine.threaded, 0, __ATOMIC_SEQ_CST);
  engine.wake = -1;
  mailbox_newest = NULL;
}

static ncclResult_t engine_start(const struct backend *ops) {
  const struct device_service service = {"proxy",         ENGINE_KEY, service_ready, service_turn,
                                         service_outside, NULL,       service_moved, service_report};
  if (engine.running) { /* the thread has not ended yet: it continues */
    __atomic_store_n(&engine.stop, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&engine.threaded, 1, __ATOMIC_SEQ_CST);
    return ncclSuccess;
  }
  engine.ops = ops;
  engine.service = NULL;
  engine.attention = 0; /* may be left from the previous engine */
  TRY(ops->network->service_add(&service, &engine.service));
  if (engine.service == NULL) TRY(engine_start_thread());
  return ncclSuccess;
}

static void engine_stop(void) {
  if (engine.service != NULL) {
    engine.ops->network->service_remove(engine.service);
    engine.service = NULL;
    return;
  }
  __atomic_store_n(&engine.threaded, 0, __ATOMIC_SEQ_CST);
  proxy_lock(); /* handles earlier entries; later ones are handled by the threads that put them */
  proxy_unlock();
  __atomic_store_n(&engine.stop, 1, __ATOMIC_SEQ_CST);
  wake_signal(engine.wake);
  /* Not joined here: its last turn may take the backend's lock, whose holder may wait for life_mutex. */
  while (engine.running && engine.comm_count == 0) os_cond_wait(&life_cond, &life_mutex);
  engine_reap(); /* unless it continues */
}

/* ---- communicators ---- */

static ncclResult_t comm_choose_net(struct proxy_comm *comm) {
  comm->net = comm->call.net;
  comm->net_device_count = comm->call.net_device_count;
  return comm->net != NULL ? ncclSuccess : net_choose(&comm->net, &comm->net_device_count);
}

static ncclResult_t comm_enlist(struct proxy_comm *comm) {
  comm->call.ops->device->lock(); /* the caller may hold it, so always take it first */
  os_mutex_lock(&life_mutex);
  engine_forget();
  const ncclResult_t started = engine.comm_count == 0 ? engine_start(comm->call.ops) : ncclSuccess;
  if (started == ncclSuccess) {
    engine.comm_count += 1;
    proxy_lock();
    struct proxy_comm **place = &engine.comms;
    while (*place != NULL) place = &(*place)->next;
    *place = comm;
    proxy_unlock();
  }
  os_mutex_unlock(&life_mutex);
  comm->call.ops->device->unlock();
  return started;
}

ncclResult_t proxy_comm_open(const struct proxy_comm_call *call, struct proxy_comm **result) {
  struct proxy_comm *comm = (struct proxy_comm *)os_alloc(sizeof *comm);
  if (comm == NULL) return log_no_memory("rank %" PRIu32 ": its connections over networks", call->rank);
  comm->call = *call;
  os_mutex_init(&comm->names);
  snprintf(comm->name, sizeof comm->name, "%s", call->name != NULL ? call->name : "communicator");
  comm->idle_reported = true;
  ncclResult_t outcome = comm_choose_net(comm);
  if (outcome == ncclSuccess) proxy_device_choose(comm);
  if (outcome == ncclSuccess) outcome = comm_enlist(comm);
  if (outcome != ncclSuccess) {
    os_mutex_destroy(&comm->names);
    os_free(comm);
    return outcome;
  }
  *result = comm;
  return ncclSuccess;
}

static void comm_unlist(struct proxy_comm *comm) {
  struct proxy_comm **place = &engine.comms;
  while (*place != comm) place = &(*place)->next;
  *place = comm->next;
  engine.cursor = NULL;
}

static void conns_close(const struct net_ops *net, struct proxy_conn *first) {
  for (struct proxy_conn *conn = first, *next; conn != NULL; conn = next) {
    next = conn->next;
    proxy_conn_close(net, conn);
    os_free(conn);
  }
}

/* The engine finds none of them any more, and the communicator is as one without connections. */
void proxy_comm_release(struct proxy_comm *comm) {
  proxy_lock();
  proxy_ops_forget(comm);
  struct proxy_conn *first = comm->first;
  os_mutex_lock(&comm->names);
  map_clear(&comm->conns);
  os_mutex_unlock(&comm->names);
  comm->first = NULL;
  comm->busy.first = comm->busy.last = NULL;
  comm->live = comm->requests = 0;
  comm->connecting = 0;
  engine.cursor = NULL;
  proxy_unlock();
  conns_close(comm->net, first);
}

void proxy_comm_close(struct proxy_comm *comm) {
  if (comm == NULL) return;
  proxy_lock();
  comm->failed = comm->reported = true; /* unless a report is running */
  while (comm->reporting) os_cond_wait(&reported_cond, &engine_mutex);
  comm_unlist(comm);
  proxy_ops_forget(comm);
  proxy_unlock();
  conns_close(comm->net, comm->first);
  map_clear(&comm->conns);
  log_info(LOG_NET | LOG_PROXY,
           "comm %s: rank %" PRIu32 ": bytes over networks: sent %" PRIu64 " from users' memory, %" PRIu64
           " through slots; received %" PRIu64 " and %" PRIu64,
           comm->name, comm->call.rank, comm->bytes.sent_direct, comm->bytes.sent_staged,
           comm->bytes.received_direct, comm->bytes.received_staged);
  proxy_comm_forget_memory(comm);
  os_mutex_destroy(&comm->names);
  os_free(comm);
  const bool in_world = engine.service != NULL; /* stopping then takes the backend's lock */
  if (in_world) engine.ops->device->lock();
  os_mutex_lock(&life_mutex);
  engine.comm_count -= 1;
  if (engine.comm_count == 0) engine_stop();
  os_mutex_unlock(&life_mutex);
  if (in_world) engine.ops->device->unlock();
}

bool proxy_comm_idle(struct proxy_comm *comm) {
  proxy_lock();
  const bool idle = comm->failed || comm->live == 0;
  proxy_unlock();
  return idle;
}

/* ---- connections ---- */

static uint64_t conn_key(const struct device_conn_name *name) {
  return backend_conn_key(name->peer, name->channel_index, name->conn_index, name->sends);
}

struct proxy_conn *proxy_conn_find(struct proxy_comm *comm, const struct device_conn_name *name) {
  os_mutex_lock(&comm->names);
  struct proxy_conn *conn = (struct proxy_conn *)map_find(&comm->conns, conn_key(name));
  os_mutex_unlock(&comm->names);
  return conn;
}

static ncclResult_t conn_listen(struct proxy_conn *conn) {
  const struct proxy_comm *comm = conn->comm;
  const struct net_peer peer = proxy_conn_peer(conn);
  TRY(comm->net->listen(conn->net_device, &peer, &conn->listens_at, &conn->listener));
  return ncclSuccess;
}

/* One engine serves all NICs: sending next to another GPU means using the NIC there. */
static uint32_t conn_device(const struct proxy_comm *comm, const struct device_conn_name *name) {
  const uint32_t rank = comm->call.rank;
  uint32_t over = rank;
  const uint32_t device = comm->call.rails == NULL
                              ? net_device_of(comm->net_device_count, rank, name->channel_index)
                              : rails_device(comm->call.rails, rank, name, comm->net_device_count, &over);
  if (over != rank)
    log_info(LOG_NET | LOG_PROXY,
             "comm %s: channel %" PRIu32 ": %" PRIu32 " -> %" PRIu32 " goes by device %" PRIu32
             " at the side of rank %" PRIu32 " (PXN)",
             comm->name, name->channel_index, rank, name->peer, device, over);
  else if (comm->net_device_count > 1)
    log_info(LOG_NET | LOG_PROXY,
             "comm %s: channel %" PRIu32 ": rank %" PRIu32 " %s rank %" PRIu32 " by device %" PRIu32,
             comm->name, name->channel_index, rank, name->sends ? "sends to" : "receives from", name->peer,
             device);
  return device;
}

/* How a sender reaches the receiver. */
struct conn_route {
  const struct net_handle *handle;
  bool apart;                    /* proxy_takes_apart() of the receiver */
  const struct proxy_over *over; /* a rank of another process that sends; NULL: this process */
};

/* The end was made for LL; a later plan may ask for Simple's slots. */
static ncclResult_t conn_take_ll(struct proxy_conn *conn) {
  const struct device_net_end end = conn->end;
  conn->end.buffer = NULL;
  conn->end.step_bytes = 0;
  return proxy_ll_open(conn, &end);
}

/* A plan uses a protocol on the connection that no earlier plan has used. */
static ncclResult_t conn_add_proto(struct proxy_conn *conn, const struct device_conn_name *name) {
  const struct proxy_comm_call *call = &conn->comm->call;
  struct device_net_end end;
  const bool ll = name->proto == PROTO_LL;
  if (conn->pxn_client != NULL || (ll ? conn->ll != NULL : conn->end.step_bytes != 0)) return ncclSuccess;
  TRY(call->ops->network->conn_net(call->device_comm, name, &end));
  if (ll) return proxy_ll_open(conn, &end);
  proxy_lock();
  conn->end.buffer = end.buffer;
  conn->end.step_bytes = end.step_bytes;
  proxy_unlock();
  return ncclSuccess;
}

static ncclResult_t conn_make(struct proxy_comm *comm, const struct device_conn_name *name,
                              const struct conn_route *route, struct proxy_conn *conn) {
  conn->comm = comm;
  conn->name = *name;
  if (route->handle != NULL) conn->handle = *route->handle;
  if (route->over != NULL) {
    conn->over = route->over->rank;
    conn->net_device = route->over->device;
    return proxy_pxn_client_make(conn);
  }
  conn->net_device = conn_device(comm, name);
  TRY(comm->call.ops->network->conn_net(comm->call.device_comm, name, &conn->end));
  if (conn->end.slots > PROXY_SLICES_MAX)
    return log_fail(ncclInternalError,
                    "comm %s: connections of %" PRIu32 " slots; proxies support at most %d", comm->name,
                    conn->end.slots, PROXY_SLICES_MAX);
  conn->apart = name->sends ? route->apart : proxy_takes_apart(comm);
  if (conn->end.memory == POINTER_DEVICE && comm->net->splits_parts && !conn->apart)
    return log_fail(ncclInvalidUsage,
                    "comm %s: rank %" PRIu32
                    " sends from memory of its GPU over network %s, and rank %" PRIu32
                    " receives into none; set TUTTI_NET_DEVICE_SLOTS=0 everywhere",
                    comm->name, comm->call.rank, comm->net->name, name->peer);
  proxy_conn_begin(conn, conn->end.first_step);
  if (name->proto == PROTO_LL) TRY(conn_take_ll(conn));
  TRY(proxy_device_open(conn));
  return name->sends ? ncclSuccess : conn_listen(conn);
}

static bool conn_enlist(struct proxy_comm *comm, struct proxy_conn *conn) {
  proxy_lock();
  os_mutex_lock(&comm->names);
  const bool reserved = map_reserve(&comm->conns);
  if (reserved) {
    struct proxy_conn **place = &comm->first;
    while (*place != NULL && conn_key(&(*place)->name) < conn_key(&conn->name)) place = &(*place)->next;
    conn->next = *place;
    *place = conn;
    map_insert(&comm->conns, conn_key(&conn->name), conn);
    conn->record =
        recorder_proxy(&comm->call.live, conn->name.peer, (uint8_t)conn->name.channel_index, conn->name.proto,
                       (uint8_t)(conn->name.conn_index | (conn->name.sends ? RECORD_LINK_SENDS : 0)));
    if (conn->pxn_client == NULL)
      recorder_pace_open(&conn->pace, &comm->call.live, conn->name.peer, (uint8_t)conn->name.channel_index,
                         (uint8_t)conn->net_device,
                         (uint8_t)(conn->name.conn_index | (conn->name.sends ? RECORD_LINK_SENDS : 0)));
    comm->connecting += conn->pxn_client == NULL;
    proxy_conn_list(conn);
    proxy_attend();
  }
  os_mutex_unlock(&comm->names);
  proxy_unlock();
  return reserved;
}

static ncclResult_t conn_open(struct proxy_comm *comm, const struct device_conn_name *name,
                              const struct conn_route *route, struct proxy_conn **made) {
  struct proxy_conn *conn = (struct proxy_conn *)os_alloc(sizeof *conn);
  ncclResult_t result = conn == NULL ? ncclSystemError : ncclSuccess;
  if (result == ncclSuccess) result = conn_make(comm, name, route, conn);
  if (result == ncclSuccess && conn_enlist(comm, conn)) {
    *made = conn;
    return ncclSuccess;
  }
  if (result == ncclSuccess || conn == NULL)
    result = log_no_memory("comm %s: rank %" PRIu32 ": a connection with rank %" PRIu32, comm->name,
                           comm->call.rank, name->peer);
  if (conn != NULL) proxy_conn_close(comm->net, conn);
  os_free(conn);
  return result;
}

static ncclResult_t conn_get(struct proxy_comm *comm, const struct device_conn_name *name,
                             const struct conn_route *route, struct proxy_conn **conn) {
  os_mutex_lock(&open_mutex);
  *conn = proxy_conn_find(comm, name);
  const bool fresh = *conn == NULL;
  const ncclResult_t result = fresh ? conn_open(comm, name, route, conn) : conn_add_proto(*conn, name);
  os_mutex_unlock(&open_mutex);
  if (fresh && result == ncclSuccess) proxy_wake();
  return result;
}

ncclResult_t proxy_receive_open(struct proxy_comm *comm, const struct device_conn_name *name,
                                struct net_handle *handle) {
  const struct conn_route route = {NULL, false, NULL};
  struct proxy_conn *conn = NULL;
  TRY(conn_get(comm, name, &route, &conn));
  *handle = conn->listens_at;
  return ncclSuccess;
}

ncclResult_t proxy_send_open(struct proxy_comm *comm, const struct device_conn_name *name,
                             const struct net_handle *handle, bool apart) {
  const struct conn_route route = {handle, apart, NULL};
  struct proxy_conn *conn = NULL;
  return conn_get(comm, name, &route, &conn);
}

ncclResult_t proxy_send_over(struct proxy_comm *comm, const struct device_conn_name *name,
                             const struct proxy_over *over) {
  const struct conn_route route = {NULL, false, over};
  struct proxy_conn *conn = NULL;
  return conn_get(comm, name, &route, &conn);
}
