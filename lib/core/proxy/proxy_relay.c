/* proxy_relay.c: sends for ranks of other processes of the host (proxy_relay.h). All relays of the process
 * turn on one thread, beside the engine: it needs no world and no kernel of this process, since a rank may
 * wait for what goes by way of another that is through with everything. The thread spins while something
 * moves, naps while something is under way, because kernels of others move counters without a word, and
 * sleeps else until a sender rings; it ends with the last relay. What senders write is checked before it is
 * used. At its end the process waits for relays whose senders are still there: they cannot go on without. */
#include "core/proxy/proxy_relay.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "base/wake.h"
#include "core/proxy/net.h"

#define SPIN_NS 100000u   /* of looking on, once nothing moves */
#define YIELD_NS 300000u  /* and then of looking now and then */
#define NAP_US 100u       /* between looks while slices are under way */
#define NAP_LONG_US 1000u /* when they have stood still for long */
#define LONG_NS 50000000u
#define CONNECT_US 10000u            /* between looks while only connections are to be made */
#define IDLE_US 1000000u             /* between looks whether idle senders live */
#define LOOK_NS 1000000000u          /* the same, while there is much to do */
#define ACTIONS_MOST 32              /* of one relay in a row */
#define WORKS (PROXY_SLICES_MAX + 1) /* slices under way, and the one that comes next */

struct relay {
  struct proxy_comm comm; /* of this connection alone: in the sender's name, and known to nobody else */
  struct proxy_conn conn;
  struct relay_block *block;
  struct device_conn_card card;
  struct work works[WORKS]; /* what sentences say of an operation */
  uint64_t taken;           /* notes */
  uint64_t made_ns, looked_ns;
  uint32_t over;
  struct relay *next;
};

static struct {
  os_mutex lock; /* taken before a network's; never with the backend's */
  os_cond changed;
  struct relay *first;
  uint32_t count; /* of them, and of those that are being closed */
  uint64_t moves;
  int wake;
  bool running, waits_at_exit;
  uint32_t forks;
} house = {.lock = OS_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .wake = -1};

/* ---- notes ---- */

/* Slices follow one another; rounding to a whole chunk may skip less steps than there are slots. */
static bool note_is_sane(const struct proxy_conn *conn, const struct relay_note *note) {
  const uint64_t slots = conn->end.slots;
  return note->begin >= conn->steps.posted && note->begin - conn->steps.posted < slots &&
         note->end > note->begin && note->end - note->begin <= slots &&
         note->begin % slots + (note->end - note->begin) <= slots && note->func < FUNC_COUNT &&
         note->bytes <= (note->end - note->begin) * conn->end.step_bytes;
}

bool proxy_relay_take(struct proxy_conn *conn) {
  struct relay *relay = conn->relay;
  if (relay->taken >= __atomic_load_n(&relay->block->posted, __ATOMIC_SEQ_CST)) return false;
  const struct relay_note note = relay->block->notes[relay->taken % PROXY_SLICES_MAX];
  if (!note_is_sane(conn, &note)) {
    proxy_comm_fail(conn->comm, ncclInternalError,
                    "rank %" PRIu32 " describes a message to rank %" PRIu32 " that cannot be",
                    conn->comm->call.rank, conn->name.peer);
    return false;
  }
  struct work *work = &relay->works[relay->taken % WORKS];
  work->func = (uint8_t)note.func;
  work->op_sequence = note.operation;
  conn->next_slice = (struct proxy_slice){.begin = note.begin,
                                          .end = note.end,
                                          .bytes = note.bytes,
                                          .part = work,
                                          .agreed_bytes = note.agreed_bytes,
                                          .skipped = note.skipped != 0};
  relay->taken += 1;
  return true;
}

/* ---- turning ---- */

enum relay_state { RELAY_MOVED, RELAY_WAITS, RELAY_CONNECTS, RELAY_TENDS, RELAY_IDLE };

static bool relay_is_over(struct relay *relay, uint64_t now_ns) {
  const struct relay_block *block = relay->block;
  if (__atomic_load_n(&block->left, __ATOMIC_SEQ_CST) != 0) return true;
  if (now_ns - relay->looked_ns < LOOK_NS) return false;
  relay->looked_ns = now_ns;
  if (__atomic_load_n(&block->came, __ATOMIC_ACQUIRE) != 0) return os_process_gone(&block->sender);
  return now_ns - relay->made_ns > (uint64_t)param_int(PARAM_TUTTI_INIT_TIMEOUT_SECONDS) * 1000000000u;
}

static void relay_tell(struct relay *relay) {
  struct relay_block *block = relay->block;
  const struct proxy_comm *comm = &relay->comm;
  __atomic_store_n(&block->transmitted, relay->conn.n_transmitted, __ATOMIC_RELAXED);
  __atomic_store_n(&block->connected, relay->conn.connection != NULL, __ATOMIC_RELAXED);
  if (!comm->failed || comm->told) return;
  relay->comm.told = true;
  snprintf(block->text, sizeof block->text, "%s", comm->text);
  __atomic_store_n(&block->failed, (uint32_t)comm->code, __ATOMIC_RELEASE);
}

static enum relay_state relay_turn(struct relay *relay) {
  struct proxy_conn *conn = &relay->conn;
  bool moved = false;
  if (relay->comm.failed && relay->comm.told) return RELAY_IDLE;
  for (uint32_t i = 0; i < ACTIONS_MOST && proxy_conn_advance(conn); i++) moved = true;
  const enum net_look tend = proxy_comm_tend(&relay->comm);
  relay_tell(relay);
  if (moved) return RELAY_MOVED;
  if (relay->comm.failed) return RELAY_IDLE;
  if (conn->connection == NULL) return RELAY_CONNECTS;
  if (conn->n_done != relay->taken || tend == NET_LOOK_SOON) return RELAY_WAITS;
  return tend == NET_LOOK_LATER ? RELAY_TENDS : RELAY_IDLE;
}

/* Turns all, and takes those that are over out of the list, into *over. Locked. */
static enum relay_state house_turn(struct relay **over) {
  enum relay_state state = RELAY_IDLE;
  const uint64_t now_ns = os_time_ns();
  for (struct relay **place = &house.first, *relay; (relay = *place) != NULL;) {
    if (relay_is_over(relay, now_ns)) {
      *place = relay->next;
      relay->next = *over;
      *over = relay;
      continue;
    }
    const enum relay_state found = relay_turn(relay);
    if (found < state) state = found;
    place = &relay->next;
  }
  if (state == RELAY_MOVED) house.moves += 1;
  return state;
}

/* ---- ending ---- */

/* Not locked: the backend may make it wait. */
static void relays_free(struct relay *relay) {
  uint32_t count = 0;
  for (struct relay *next; relay != NULL; relay = next, count++) {
    next = relay->next;
    const struct proxy_conn *conn = &relay->conn;
    log_info(LOG_NET | LOG_PROXY,
             "comm %s: channel %" PRIu32 ": %" PRIu32 " -> %" PRIu32 " by device %" PRIu32
             " at the side of rank %" PRIu32 " (PXN) ends after %" PRIu64 " slices",
             relay->comm.name, conn->name.channel_index, relay->comm.call.rank, conn->name.peer,
             conn->net_device, relay->over, conn->n_done);
    proxy_conn_close(relay->comm.net, &relay->conn);
    relay->comm.call.ops->relay_drop(conn->end.conn);
    os_free(relay);
  }
  if (count == 0) return;
  os_mutex_lock(&house.lock);
  house.count -= count;
  os_cond_broadcast(&house.changed);
  os_mutex_unlock(&house.lock);
}

/* Locked. */
static void house_close(void) {
  share_hear(-1);
  wake_close(house.wake);
  house.wake = -1;
  house.running = false;
  os_thread_note(-1);
}

/* ---- the thread ---- */

/* Locked. */
static void house_say_asleep(uint32_t asleep) {
  for (struct relay *relay = house.first; relay != NULL; relay = relay->next)
    __atomic_store_n(&relay->block->asleep, asleep, __ATOMIC_SEQ_CST);
}

static uint32_t house_descriptors(int *descriptors) {
  uint32_t count = 0;
  for (struct relay *relay = house.first; relay != NULL; relay = relay->next) {
    const struct net_ops *net = relay->comm.net;
    uint32_t more = 0;
    if (relay->conn.connection == NULL || relay->conn.n_done == relay->taken || relay->comm.failed ||
        net->wait_descriptors == NULL)
      continue;
    if (net->wait_descriptors(relay->conn.connection, descriptors + count, WAKE_DESCRIPTORS_MAX - count,
                              &more) == ncclSuccess)
      count += more;
  }
  return count;
}

static uint64_t nap_us(enum relay_state state, uint64_t still_ns) {
  if (state == RELAY_IDLE) return IDLE_US;
  if (state == RELAY_TENDS) return PROXY_TEND_US;
  if (state == RELAY_CONNECTS) return still_ns < LONG_NS ? NAP_LONG_US : CONNECT_US;
  return still_ns < LONG_NS ? NAP_US : NAP_LONG_US;
}

/* Who notes something from here on either is seen by the last turn, or sees that it has to ring. */
static void house_sleep(uint64_t since_ns) {
  int descriptors[WAKE_DESCRIPTORS_MAX];
  struct relay *over = NULL;
  os_mutex_lock(&house.lock);
  house_say_asleep(1);
  const enum relay_state state = house_turn(&over);
  const uint32_t count = house_descriptors(descriptors);
  if (state == RELAY_WAITS) house_say_asleep(0); /* it looks again soon enough */
  const bool rests = state != RELAY_MOVED && over == NULL && house.first != NULL;
  os_mutex_unlock(&house.lock);
  relays_free(over);
  if (rests) wake_wait(house.wake, descriptors, count, nap_us(state, os_time_ns() - since_ns));
  os_mutex_lock(&house.lock);
  house_say_asleep(0);
  os_mutex_unlock(&house.lock);
}

static void *house_body(void *unused) {
  uint64_t since_ns = os_time_ns();
  (void)unused;
  while (true) {
    struct relay *over = NULL;
    os_mutex_lock(&house.lock);
    const enum relay_state state = house_turn(&over);
    os_mutex_unlock(&house.lock);
    relays_free(over);
    os_mutex_lock(&house.lock);
    const bool ends = house.first == NULL;
    if (ends) house_close();
    os_mutex_unlock(&house.lock);
    if (ends) return NULL;
    const uint64_t now_ns = os_time_ns(), still_ns = now_ns - since_ns;
    if (state == RELAY_MOVED) since_ns = now_ns;
    else if (still_ns > (state == RELAY_WAITS ? SPIN_NS + YIELD_NS : SPIN_NS)) house_sleep(since_ns);
    else if (still_ns > SPIN_NS) os_yield();
  }
}

/* ---- the end of the process ---- */

/* Longest time that nothing moves, until nobody waits for the senders any more. */
static uint64_t exit_patience_ns(void) {
  const int64_t seconds = param_int(PARAM_TUTTI_PEER_TIMEOUT_SECONDS);
  return (uint64_t)(seconds > 0 ? seconds : 60) * UINT64_C(1000000000);
}

/* Senders that have failed wait for nothing more. */
static bool house_is_needed(void) {
  for (const struct relay *relay = house.first; relay != NULL; relay = relay->next)
    if (!relay->comm.failed) return true;
  return house.first == NULL && house.count > 0;
}

static void house_at_exit(void) {
  if (house.forks != os_fork_count()) return;
  proxy_pass_leave();
  os_mutex_lock(&house.lock);
  uint64_t moves = house.moves, since_ns = os_time_ns();
  while (house_is_needed()) {
    const uint64_t now_ns = os_time_ns();
    if (house.moves != moves) since_ns = now_ns;
    moves = house.moves;
    if (now_ns - since_ns > exit_patience_ns()) break;
    os_cond_wait_until(&house.changed, &house.lock, now_ns + 100000000u);
  }
  os_mutex_unlock(&house.lock);
}

/* ---- opening ---- */

/* A forked child has neither relays nor the thread. Locked. */
static void house_forget(void) {
  if (house.forks == os_fork_count()) return;
  house.forks = os_fork_count();
  if (house.wake >= 0) wake_close(house.wake);
  house.wake = -1;
  house.first = NULL;
  house.count = 0;
  house.running = false;
}

/* Locked. */
static ncclResult_t house_start(void) {
  os_thread thread;
  if (house.running) {
    wake_signal(house.wake);
    return ncclSuccess;
  }
  TRY(wake_open(&house.wake));
  if (os_thread_start(&thread, house_body, NULL)) {
    os_thread_detach(thread);
    os_thread_note(1);
    house.running = true;
    share_hear(house.wake);
    return ncclSuccess;
  }
  wake_close(house.wake);
  house.wake = -1;
  return log_fail(ncclSystemError, "no thread to send for ranks of other processes; raise ulimit -u");
}

static bool same_name(const struct device_conn_name *a, const struct device_conn_name *b) {
  return a->peer == b->peer && a->channel_index == b->channel_index && a->conn_index == b->conn_index;
}

/* Locked. */
static struct relay *house_find(const struct proxy_relay_call *call) {
  for (struct relay *relay = house.first; relay != NULL; relay = relay->next)
    if (relay->comm.call.comm_key == call->comm_key && relay->comm.call.rank == call->rank &&
        same_name(&relay->conn.name, &call->name) &&
        __atomic_load_n(&relay->block->left, __ATOMIC_ACQUIRE) == 0)
      return relay;
  return NULL;
}

/* Locked. */
static ncclResult_t house_add(struct relay *relay) {
  TRY(house_start());
  relay->next = house.first;
  house.first = relay;
  house.count += 1;
  return ncclSuccess;
}

static ncclResult_t relay_choose_net(const struct proxy_relay_call *call, struct proxy_comm *comm) {
  comm->net = call->net;
  comm->net_device_count = call->net_device + 1;
  if (comm->net == NULL) TRY(net_choose(&comm->net, &comm->net_device_count));
  if (call->net_device < comm->net_device_count) return ncclSuccess;
  return log_fail(ncclInvalidUsage, "network %s has no device %" PRIu32 " here", comm->net->name,
                  call->net_device);
}

static void relay_fill(const struct proxy_relay_call *call, const struct device_relay *made,
                       struct relay *relay) {
  struct proxy_comm *comm = &relay->comm;
  struct proxy_conn *conn = &relay->conn;
  comm->call.ops = call->ops;
  comm->call.comm_key = call->comm_key;
  comm->call.rank = call->rank;
  comm->call.rank_count = call->rank_count;
  snprintf(comm->name, sizeof comm->name, "%s", call->comm_name);
  comm->connecting = 1;
  conn->comm = comm;
  comm->first = conn;
  conn->name = call->name;
  conn->end = made->end;
  conn->net_device = call->net_device;
  conn->handle = call->handle;
  conn->relay = relay;
  proxy_conn_begin(conn, made->first_step);
  relay->over = call->over;
  relay->made_ns = relay->looked_ns = os_time_ns();
  relay->block = (struct relay_block *)made->block;
  relay->block->device = call->net_device;
  os_process_self(&relay->block->relay);
}

static ncclResult_t relay_make(const struct proxy_relay_call *call, struct relay *relay) {
  struct device_relay made;
  TRY(relay_choose_net(call, &relay->comm));
  TRY(call->ops->relay_make(call->device_comm, call->rank, &call->name, sizeof(struct relay_block), &made,
                            &relay->card));
  relay_fill(call, &made, relay);
  ncclResult_t result = ncclSuccess;
  if (made.end.slots > PROXY_SLICES_MAX || !share_bell(&relay->block->bell))
    result = log_fail(ncclInternalError, "rank %" PRIu32 " cannot be rung up by others", call->over);
  if (result == ncclSuccess) {
    os_mutex_lock(&house.lock);
    result = house_add(relay);
    os_mutex_unlock(&house.lock);
  }
  if (result != ncclSuccess) call->ops->relay_drop(made.end.conn);
  return result;
}

static bool house_enter(const struct proxy_relay_call *call, struct device_conn_card *card) {
  os_mutex_lock(&house.lock);
  house_forget();
  const struct relay *found = house_find(call);
  if (found != NULL) *card = found->card;
  if (!house.waits_at_exit) os_at_exit(house_at_exit);
  house.waits_at_exit = true;
  os_mutex_unlock(&house.lock);
  return found != NULL;
}

ncclResult_t proxy_relay_open(const struct proxy_relay_call *call, struct device_conn_card *card) {
  if (house_enter(call, card)) return ncclSuccess;
  struct relay *relay = (struct relay *)os_alloc(sizeof *relay);
  if (relay == NULL)
    return log_fail(ncclSystemError, "rank %" PRIu32 ": no memory to send for rank %" PRIu32, call->over,
                    call->rank);
  const ncclResult_t result = relay_make(call, relay);
  if (result == ncclSuccess) *card = relay->card;
  else os_free(relay);
  return result;
}

void proxy_relay_break(uint64_t comm_key, uint32_t over, const char *text) {
  os_mutex_lock(&house.lock);
  for (struct relay *relay = house.first; relay != NULL; relay = relay->next) {
    if (relay->comm.call.comm_key != comm_key || relay->over != over) continue;
    proxy_comm_fail(&relay->comm, ncclRemoteError, "%s", text);
    relay_tell(relay);
  }
  os_mutex_unlock(&house.lock);
}

uint32_t proxy_relay_count(void) {
  os_mutex_lock(&house.lock);
  const uint32_t count = house.count;
  os_mutex_unlock(&house.lock);
  return count;
}
