/* record.c: what recorders read about kernels. A running kernel writes nothing for them: the counts that
 * order launches show which kernels have ended, and the links of lanes that reported a wait (launch_wait)
 * show what they wait for. It is read on request, from device memory, on a stream that waits for no kernel.
 * The host does not know how often a graph was launched: of a graph's kernels it records only the waiting
 * one. */
#include <string.h>

#include "backends/cuda/device.h"
#include "base/hash.h"
#include "base/ticks.h"
#include "schedule/work.h"

#define LOOKS_APART_NS UINT64_C(100000000) /* minimum interval: each costs copies from the device */

/* A lane that reported a wait, and the counters of its work's links at the last look: the lane waits there as
 * long as they do not change. The time of its next report depends on how fast the device runs its kernels,
 * which may share the device. */
struct cuda_lane_seen {
  struct launch_wait wait; /* sequence 0: it is not known to wait */
  uint64_t counters;
};

struct cuda_launched {
  uint64_t blocks_after;   /* blocks launched up to and including it */
  uint64_t first_sequence; /* number of its first operation */
};

static_assert((RECORD_LAUNCHES & (RECORD_LAUNCHES - 1)) == 0, "numbers of launches wrap around in it");

void cuda_record_open(struct device_comm *comm, const struct recorder_live *live) {
  if (live == NULL || live->comm == NULL) return;
  comm->launches = (struct cuda_launched *)os_alloc(RECORD_LAUNCHES * sizeof *comm->launches);
  comm->lanes_seen = (struct cuda_lane_seen *)os_alloc(LAUNCH_WAITS * sizeof *comm->lanes_seen);
  if (comm->launches == NULL || comm->lanes_seen == NULL) return; /* then ends and waits are not recorded */
  comm->live = *live;
  live->comm->counts = RECORD_COUNTS_SEEN;
}

void cuda_record_close(struct device_comm *comm) {
  os_free(comm->launches);
  os_free(comm->lanes_seen);
}

static struct cuda_launched *launch_at(const struct device_comm *comm, uint64_t number) {
  return &comm->launches[number % RECORD_LAUNCHES];
}

void cuda_record_launch(struct device_comm *comm, uint64_t first_sequence) {
  struct record_comm *noted = comm->live.comm;
  if (noted == NULL) return;
  struct cuda_launched *launch = launch_at(comm, noted->launched);
  __atomic_store_n(&launch->blocks_after, comm->order.blocks_launched, __ATOMIC_RELAXED);
  __atomic_store_n(&launch->first_sequence, first_sequence, __ATOMIC_RELAXED);
  __atomic_store_n(&noted->launched, noted->launched + 1, __ATOMIC_RELEASE);
}

/* Launches end in order. If more have ended than are stored, only the total is known. */
void cuda_record_ended(struct device_comm *comm) {
  struct record_comm *noted = comm->live.comm;
  if (noted == NULL) return;
  const uint64_t blocks = __atomic_load_n(&comm->control->counts_seen.plain_ended, __ATOMIC_RELAXED);
  const uint64_t launched = __atomic_load_n(&noted->launched, __ATOMIC_ACQUIRE);
  uint64_t ended = __atomic_load_n(&noted->ended, __ATOMIC_RELAXED);
  const uint64_t before = ended;
  if (launched - ended > RECORD_LAUNCHES) ended = launched - RECORD_LAUNCHES;
  if (blocks < __atomic_load_n(&launch_at(comm, ended)->blocks_after, __ATOMIC_RELAXED)) return;
  while (ended < launched &&
         blocks >= __atomic_load_n(&launch_at(comm, ended)->blocks_after, __ATOMIC_RELAXED))
    ended++;
  if (ended == before) return;
  noted->started = ended;
  noted->moved_ticks = ticks_now();
  __atomic_store_n(&noted->ended, ended, __ATOMIC_RELEASE);
}

/* ---- lanes that wait ---- */

/* A work's link, from both ends. */
struct link_seen {
  uint32_t peer;
  uint64_t step, head, tail; /* start of the operation; slots freed, filled */
  uint64_t announced;        /* start of the last operation that the sender announced */
};

/* An end of a connection, in the layout of launch.h. */
struct end_seen {
  uint64_t counter; /* head, or tail */
  uint64_t rest[LAUNCH_ANNOUNCED_OFFSET / 8 - 1];
  uint64_t announced[(LAUNCH_STEP_OFFSET - LAUNCH_ANNOUNCED_OFFSET) / 16][2];
  uint64_t step;
  uint64_t own[(LAUNCH_END_BYTES - LAUNCH_STEP_OFFSET) / 8 - 1];
};
static_assert(sizeof(struct end_seen) == LAUNCH_END_BYTES, "one of either kind");
#define END_TAGGED_WORDS ((LAUNCH_STEP_OFFSET - LAUNCH_ANNOUNCED_OFFSET) / 16)

static uint8_t work_conn(const struct work *work) {
  return work->func == FUNC_SEND || work->func == FUNC_RECV ? CONN_MESSAGE : CONN_COLLECTIVE;
}

/* Start of the last announced operation up to `step`; UINT64_MAX: none. */
static uint64_t end_announced(const struct end_seen *receiver, uint64_t step) {
  uint32_t least = UINT32_MAX;
  for (uint32_t i = 0; i < END_TAGGED_WORDS; i++) {
    const uint32_t tag = (uint32_t)(receiver->announced[i][0] >> 32), ago = (uint32_t)step + 1 - tag;
    if (tag != 0 && ago < least) least = ago;
  }
  return least <= step ? step - least : UINT64_MAX;
}

static bool link_see(struct device_comm *comm, const struct work *work, uint32_t peer, bool sends,
                     struct link_seen *seen) {
  struct end_seen sender, receiver;
  const struct cuda_conn *conn = cuda_conn_find(comm, peer, work->channel_index, work_conn(work), sends);
  if (conn == NULL || conn->sender == NULL || conn->receiver == NULL) return false;
  if (cuda_memory_fetch(&sender, conn->sender, sizeof sender) != ncclSuccess ||
      cuda_memory_fetch(&receiver, conn->receiver, sizeof receiver) != ncclSuccess)
    return false;
  const uint64_t step = sends ? sender.step : receiver.step;
  *seen = (struct link_seen){peer, step, sender.counter, receiver.counter, end_announced(&receiver, step)};
  return true;
}

/* Steps by which the counters of both links with a peer are ahead of the operation's start: kernels of direct
 * collectives save the start of the next operation as soon as they have posted all heads and sizes
 * (kernels/direct.h). NULL: there is no such link. */
static uint64_t links_ahead(const struct work *work, const struct link_seen *to,
                            const struct link_seen *from) {
  if (work->algo != ALGO_DIRECT && work->algo != ALGO_TWO_SHOT) return 0;
  const bool ahead = from != NULL ? from->head < from->step
                                  : to != NULL && work->proto == PROTO_SIMPLE && to->tail < to->step;
  if (!ahead) return 0;
  if (to == NULL) return from->step - from->head; /* receives only: use the posted head */
  return to->announced < to->step ? to->step - to->announced : 0;
}

/* Moves `step` back from the link's saved counter to the operation's start. Operations over LL do not change
 * the tail. */
static void link_settle(struct link_seen *seen, uint64_t ahead) {
  seen->step -= ahead < seen->step ? ahead : seen->step;
  if (seen->tail < seen->step) seen->tail = seen->step;
}

static void link_note(const struct device_comm *comm, const struct work *work, bool sends,
                      const struct link_seen *seen) {
  const uint8_t conn = (uint8_t)(work_conn(work) | (sends ? RECORD_LINK_SENDS : 0));
  struct record_link *row =
      recorder_link(&comm->live, seen->peer, (uint8_t)work->channel_index, work->proto, conn);
  if (row == NULL) return;
  row->step = seen->step;
  row->head = seen->head;
  row->tail = seen->tail;
}

/* Steps of the operation that have arrived, as far as known; over LL, those that were freed, possibly
 * late. */
static uint64_t link_progress(const struct work *work, const struct link_seen *seen) {
  const uint64_t counter = work->proto == PROTO_SIMPLE ? seen->tail : seen->head;
  return counter > seen->step ? counter - seen->step : 0;
}

/* Of two links that a lane may wait for, the more likely one: the one whose sender has not begun, or else has
 * sent less. */
static bool link_is_behind(const struct work *work, const struct link_seen *seen,
                           const struct link_seen *than) {
  const bool begun = seen->announced == seen->step;
  if (begun != (than->announced == than->step)) return !begun;
  return link_progress(work, seen) < link_progress(work, than);
}

/* A side's links: the last one read, and the one that is furthest behind. */
struct side_seen {
  struct link_seen last, first;
  bool there, any;
};

static void side_look(struct device_comm *comm, const struct work *work, const struct launch_wait *wait,
                      uint32_t peer, bool sends, struct side_seen *side) {
  const bool many = work->recv_count > 1 || work->send_count > 1;
  const uint32_t one = sends ? wait->send_peer : wait->recv_peer;
  side->there = (sends ? work->send_count : work->recv_count) > 0 &&
                (many ? peer != comm->config.rank : peer == one) &&
                link_see(comm, work, peer, sends, &side->last);
}

static void side_note(struct device_comm *comm, const struct work *work, bool sends, uint64_t ahead,
                      struct side_seen *side) {
  if (!side->there) return;
  link_settle(&side->last, ahead);
  link_note(comm, work, sends, &side->last);
  if (!side->any || link_is_behind(work, &side->last, &side->first)) side->first = side->last;
  side->any = true;
}

/* What a lane of the work waits for at this link: data if it receives; if it only sends, a slot, or, if there
 * is a free one, the output's address. */
static void wait_note(const struct device_comm *comm, const struct work *work, const struct link_seen *link,
                      bool receives, struct record_lane *row) {
  const uint64_t slots = comm->config.limits.slots, next = link->step + link_progress(work, link) + 1;
  row->peer = link->peer;
  row->step = (uint32_t)link_progress(work, link);
  if (!receives && link->head + slots >= next) {
    row->wait = WAITS_OFFER;
    return;
  }
  row->wait = !receives ? WAITS_SLOT : work->proto == PROTO_SIMPLE ? WAITS_DATA : WAITS_LL;
  row->have = receives ? link->tail : link->head + slots;
  row->need = next;
}

static uint64_t side_mix(uint64_t hash, const struct side_seen *side) {
  const struct link_seen *link = &side->last;
  if (!side->there) return hash_mix(hash, 0);
  return hash_mix(hash_mix(hash_mix(hash_mix(hash, link->step), link->head), link->tail), link->announced);
}

/* A hash of the counters of all links of the work, which changes when one of them does. */
static uint64_t lane_note(struct device_comm *comm, const struct work *work, const struct launch_wait *wait,
                          struct record_lane *row) {
  struct side_seen to = {.any = false}, from = {.any = false};
  uint64_t counters = HASH_SEED;
  for (uint32_t peer = 0; peer < comm->config.rank_count; peer++) {
    side_look(comm, work, wait, peer, true, &to);
    side_look(comm, work, wait, peer, false, &from);
    counters = side_mix(side_mix(counters, &to), &from);
    const uint64_t ahead = links_ahead(work, to.there ? &to.last : NULL, from.there ? &from.last : NULL);
    side_note(comm, work, true, ahead, &to);
    side_note(comm, work, false, ahead, &from);
  }
  row->used = to.any || from.any;
  if (row->used) wait_note(comm, work, from.any ? &from.first : &to.first, from.any, row);
  return counters;
}

/* Clears the lane's report, so that the next look shows whether it reported again. */
static struct launch_wait wait_take(struct launch_wait *word) {
  const struct launch_wait wait = *word;
  word->sequence = 0;
  return wait;
}

/* Which reports are of kernels that may be running: those of operations from `first` on. */
struct reports_live {
  bool running;
  uint64_t first;
};

/* A kernel may end after its lane's last report; another kernel of the rank may be launched by then. A
 * graph's kernels have the numbers of the operations that were captured. */
static struct reports_live reports_live(const struct device_comm *comm, bool graph) {
  const struct record_comm *noted = comm->live.comm;
  const uint64_t launched = __atomic_load_n(&noted->launched, __ATOMIC_ACQUIRE);
  struct reports_live live = {graph || launched > noted->ended, 0};
  if (!graph && live.running && launched - noted->ended <= RECORD_LAUNCHES)
    live.first = __atomic_load_n(&launch_at(comm, noted->ended)->first_sequence, __ATOMIC_RELAXED);
  return live;
}

/* False if the lane at this index does not wait. */
static bool lane_look(struct device_comm *comm, uint32_t place, struct cuda_lane_seen *seen,
                      const struct reports_live *live) {
  const struct launch_wait said = wait_take(&comm->control->waits[place]);
  struct record_lane row = {.lane = (uint8_t)(place % PLAN_BATCH_WORKS_MAX)};
  struct work work;
  comm->live.lanes[place].used = 0;
  if (said.sequence != 0) seen->wait = said;
  if (!live->running || seen->wait.sequence <= live->first) seen->wait.sequence = 0;
  memset(&work, 0, sizeof work);
  memcpy(&work, seen->wait.work, sizeof seen->wait.work);
  if (seen->wait.sequence == 0 || work.channel_index != place / PLAN_BATCH_WORKS_MAX) return false;
  row.channel = (uint8_t)work.channel_index;
  row.sequence = (uint32_t)(seen->wait.sequence - 1);
  const uint64_t counters = lane_note(comm, &work, &seen->wait, &row);
  const bool moved = said.sequence == 0 && counters != seen->counters;
  seen->counters = counters;
  if (moved) seen->wait.sequence = 0;
  else comm->live.lanes[place] = row;
  return !moved;
}

/* Called under conns_mutex. */
static void lanes_look(struct device_comm *comm) {
  struct record_comm *noted = comm->live.comm;
  const struct launch_counts *counts = &comm->control->counts_seen;
  const bool graph = counts->graph_started != counts->graph_ended; /* no other kernel of the rank runs then */
  const struct reports_live live = reports_live(comm, graph);
  noted->graph_operation = 0;
  for (uint32_t i = 0; i < LAUNCH_WAITS && i < noted->lane_rows; i++) {
    struct cuda_lane_seen *seen = &comm->lanes_seen[i];
    if (!lane_look(comm, i, seen, &live)) continue;
    if (graph) noted->graph_operation = (uint32_t)seen->wait.sequence;
    else if (noted->launched > noted->ended) noted->started = noted->ended + 1;
  }
}

static void comm_record_look(struct device_comm *comm) {
  if (comm->live.comm == NULL || cuda_comm_lost(comm)) return;
  cuda_comm_idle(comm); /* reads the counts of ended blocks */
  cuda_conns_lock(comm);
  const struct cuda_scope scope = cuda_scope_enter(comm->config.device_index);
  lanes_look(comm);
  cuda_scope_leave(&scope);
  cuda_conns_unlock(comm);
}

void cuda_records_look(void) {
  static uint64_t looked_ns;
  if (!cuda_look_begin()) return;
  cuda_lock();
  const uint64_t now_ns = os_time_ns();
  const bool due = now_ns - looked_ns >= LOOKS_APART_NS;
  if (due) looked_ns = now_ns;
  for (struct device_comm *comm = cuda_comms(); due && comm != NULL; comm = comm->next)
    comm_record_look(comm);
  cuda_unlock();
  cuda_look_end();
}
