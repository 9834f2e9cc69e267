/* replay_script.c: makes a script from records: which operations must run again, on which communicators and
 * devices, and how far each rank was. Does not trust any number in the files. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "core/topology/layout.h"
#include "kernels/kernels.h"
#include "replay/replay.h"
#include "trace/record_text.h"

#define COMMS_MOST 64u
#define RANKS_MOST 1024u
#define DEVICES_MOST 1024u
#define OPS_MOST 65536u /* of all ranks */
#define WHOLE_OPS 64u   /* of a rank: with at most this many, replay begins at the first */
#define BUFFER_BYTES_MOST ((size_t)1 << 31)

void replay_say(char out[REPLAY_TEXT_BYTES], const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(out, REPLAY_TEXT_BYTES, format, arguments);
  va_end(arguments);
}

void replay_remark(struct replay *replay, const char *format, ...) {
  char text[REPLAY_TEXT_BYTES];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  for (uint32_t i = 0; i < replay->remark_count; i++)
    if (strcmp(replay->remarks[i], text) == 0) return;
  if (replay->remark_count == sizeof replay->remarks / sizeof replay->remarks[0]) return;
  memcpy(replay->remarks[replay->remark_count++], text, sizeof text);
}

static ncclResult_t no_memory(void) { return log_no_memory("what these files ask to be replayed"); }

/* ---- calls that agree ---- */

bool replay_calls_agree(const struct record_call *left, const struct record_call *right) {
  const bool reduces = func_reduces(left->func);
  return left->func == right->func && left->dtype == right->dtype && left->count == right->count &&
         left->peer == right->peer && (!reduces || left->op == right->op);
}

const struct record_call *replay_find(const struct replay_rank *rank, uint32_t collective) {
  for (uint32_t i = 0; i < rank->op_count; i++)
    if (!is_message(rank->ops[i].call.func) && rank->ops[i].call.collective == collective)
      return &rank->ops[i].call;
  return NULL;
}

const struct record_call *replay_majority(const struct replay_comm *comm, uint32_t collective,
                                          const struct replay_rank **of) {
  const struct record_call *best = NULL;
  uint32_t best_votes = 0;
  for (uint32_t i = 0; i < comm->rank_count && best_votes * 2 <= comm->rank_count; i++) {
    const struct record_call *call = replay_find(&comm->ranks[i], collective);
    uint32_t votes = 0;
    for (uint32_t k = 0; call != NULL && k < comm->rank_count; k++) {
      const struct record_call *other = replay_find(&comm->ranks[k], collective);
      votes += other != NULL && replay_calls_agree(call, other);
    }
    if (votes <= best_votes) continue;
    best_votes = votes;
    best = call;
    *of = &comm->ranks[i];
  }
  return best;
}

/* ---- where to begin ---- */

/* The number of the first collective that has not ended here, or of the one after the message that has not.
 */
static uint32_t rank_first(const struct rank_state *state) {
  struct record_iter iter = record_iter_begin(state);
  uint32_t first = state->collectives;
  for (const union record *record = record_iter_back(&iter); record != NULL;
       record = record_iter_back(&iter)) {
    if (record->kind != RECORD_CALL) continue;
    if (widen(state->view->comm->calls, record->call.sequence) < state->done) break;
    first = record->call.collective;
  }
  return first;
}

/* If ended operations are not counted, operations that all ranks called and launched are taken as ended. */
static uint32_t comm_first(const struct replay_comm *comm) {
  uint32_t first = UINT32_MAX, common = UINT32_MAX;
  bool counts = true;
  for (uint32_t i = 0; i < comm->rank_count; i++) {
    const struct rank_state *state = comm->ranks[i].state;
    if (state == NULL) continue;
    const uint32_t own = rank_first(state);
    counts = counts && rank_knows_ends(state);
    if (rank_knows_ends(state) && own < first) first = own;
    if (state->collectives < common) common = state->collectives;
  }
  return !counts && common < first ? common : first;
}

/* Its connections are new ones since. */
static bool rank_was_suspended(const struct rank_state *state) {
  struct record_iter iter = record_iter_begin(state);
  for (const union record *record = record_iter_back(&iter); record != NULL; record = record_iter_back(&iter))
    if (record->kind == RECORD_LIFE && record->life.life == LIFE_SUSPEND) return true;
  return false;
}

static bool comm_is_whole(const struct replay_comm *comm) {
  for (uint32_t i = 0; i < comm->rank_count; i++) {
    const struct rank_state *state = comm->ranks[i].state;
    if (state == NULL || state->view->first != 0 || state->view->ring_records == 0 ||
        state->called > WHOLE_OPS || rank_was_suspended(state))
      return false;
  }
  return true;
}

/* ---- plans ---- */

static bool plan_is_sane(const struct record_plan *row) {
  return row->func < FUNC_COUNT && row->algo < ALGO_COUNT && row->proto < PROTO_COUNT && row->slots >= 1 &&
         row->slots <= 8 && row->step_bytes >= 16 && row->step_bytes <= 1u << 26 &&
         row->step_bytes % 16 == 0 && (row->proto != PROTO_LL128 || row->step_bytes % 128 == 0);
}

/* All connections of a communicator have slots of one size per protocol. */
static ncclResult_t comm_take_plans(struct replay_comm *comm, const struct replay_rank *rank) {
  const struct record_view *view = rank->state->view;
  for (uint32_t i = 0; i < view->plan_rows; i++) {
    const struct record_plan *row = &view->plans[i];
    if (row->used != 1) continue;
    if (!plan_is_sane(row))
      return log_fail(ncclInvalidArgument,
                      "rank %u of comm '%s': plan %u is none that can be made (algorithm %u, protocol %u, %u "
                      "slots of %u bytes): this file is damaged",
                      rank->rank, comm->name, row->number, row->algo, row->proto, row->slots,
                      row->step_bytes);
    if (row->channels > comm->channels) comm->channels = row->channels;
    if (is_message(row->func) && row->proto == PROTO_SIMPLE && row->chunk_elements <= row->step_bytes)
      comm->message_chunk_bytes = row->chunk_elements;
    if (comm->slots == 0) comm->slots = row->slots;
    if (comm->step_bytes[row->proto] == 0) comm->step_bytes[row->proto] = row->step_bytes;
    if (comm->slots == row->slots && comm->step_bytes[row->proto] == row->step_bytes) continue;
    return log_fail(
        ncclInvalidArgument,
        "rank %u of comm '%s': plan %u is for %u slots of %u bytes, others are for %u of %u: these "
        "files are not of one job",
        rank->rank, comm->name, row->number, row->slots, row->step_bytes, comm->slots,
        comm->step_bytes[row->proto]);
  }
  return ncclSuccess;
}

/* ---- a rank's operations ---- */

static bool call_is_sane(const struct replay_comm *comm, const struct record_call *call) {
  return call->func < FUNC_COPY && call->func != FUNC_SEND_RECV && call->dtype < ncclNumTypes &&
         call->peer < comm->rank_count;
}

static size_t call_bytes(const struct replay_comm *comm, const struct record_call *call) {
  const size_t unit = kernel_type_bytes(call->dtype) * (size_t)comm->rank_count;
  return call->count > BUFFER_BYTES_MOST / unit ? SIZE_MAX : (size_t)call->count * unit;
}

static ncclResult_t rank_add_op(struct replay *replay, const struct replay_comm *comm,
                                struct replay_rank *rank, const struct record_call *call,
                                const struct record_place *place) {
  const size_t bytes = call_is_sane(comm, call) ? call_bytes(comm, call) : 0;
  if (!call_is_sane(comm, call))
    return log_fail(ncclInvalidArgument,
                    "rank %u of comm '%s': operation #%u is no call that can be made (function %u, type %u, "
                    "peer %u): this file is damaged",
                    rank->rank, comm->name, call->sequence, call->func, call->dtype, call->peer);
  if (bytes > BUFFER_BYTES_MOST)
    return log_fail(ncclInvalidArgument,
                    "rank %u of comm '%s': operation #%u moves %" PRIu64
                    " elements a rank; a replay takes 2 GiB at most",
                    rank->rank, comm->name, call->sequence, call->count);
  if (bytes > replay->buffer_bytes) replay->buffer_bytes = bytes;
  rank->ops[rank->op_count++] =
      (struct replay_op){*call, *place, widen(rank->state->view->comm->calls, call->sequence)};
  return ncclSuccess;
}

/* With a user's schedule no plans are recorded: all have number 0, and one row describes the first. */
static void rank_add_launch(const struct replay *replay, struct replay_rank *rank,
                            const struct record_launch *said) {
  const struct record_view *view = rank->state->view;
  struct replay_launch launch = {.ticks = said->ticks, .launched = true, .borrowed = said->plan == 0};
  if (view->plan_rows > 0) {
    const struct record_plan *plan = &view->plans[said->plan % view->plan_rows];
    const bool named = said->plan != 0 || plan->algo == ALGO_CUSTOM || replay->custom != NULL;
    if (plan->used == 1 && plan->number == said->plan && named) launch.plan = plan;
  }
  launch.first_op = said->sequence; /* until they are placed */
  launch.op_count = said->operations;
  rank->launches[rank->launch_count++] = launch;
}

static void ops_reverse(struct replay_rank *rank) {
  for (uint32_t i = 0, k = rank->op_count; i + 1 < k; i++) {
    const struct replay_op op = rank->ops[i];
    rank->ops[i] = rank->ops[--k];
    rank->ops[k] = op;
  }
  for (uint32_t i = 0, k = rank->launch_count; i + 1 < k; i++) {
    const struct replay_launch launch = rank->launches[i];
    rank->launches[i] = rank->launches[--k];
    rank->launches[k] = launch;
  }
}

/* Converts sequence numbers to places in the list; operations without a launch follow, one launch per group.
 */
static void launches_place(struct replay_rank *rank) {
  uint32_t kept = 0, next = 0;
  for (uint32_t i = 0; i < rank->launch_count; i++) {
    struct replay_launch launch = rank->launches[i];
    const uint32_t first = launch.first_op, count = launch.op_count;
    while (next < rank->op_count && (int32_t)((uint32_t)rank->ops[next].sequence - first) < 0) next++;
    launch.first_op = next;
    while (next < rank->op_count && (uint32_t)rank->ops[next].sequence - first < count) next++;
    launch.op_count = next - launch.first_op;
    if (launch.op_count == 0) continue;
    if (launch.borrowed && launch.plan != NULL && launch.plan->func != rank->ops[launch.first_op].call.func)
      launch.plan = NULL;
    rank->launches[kept++] = launch;
  }
  rank->launched_count = kept;
  while (next < rank->op_count) {
    struct replay_launch launch = {.first_op = next, .ticks = rank->ops[next].call.ticks};
    const uint32_t group = rank->ops[next].place.group;
    do next++;
    while (next < rank->op_count && group != 0 && rank->ops[next].place.group == group);
    launch.op_count = next - launch.first_op;
    rank->launches[kept++] = launch;
  }
  rank->launch_count = kept;
}

static bool call_is_operation(const struct record_call *call) {
  return call->count != 0 || is_message(call->func);
}

/* Whether a launch is replayed here, by graphs or by calls. Other launches, and in backward iteration their
 * calls, are left out. */
static bool launch_is_ours(struct replay *replay, const struct replay_comm *comm,
                           const struct replay_rank *rank, const struct record_launch *launch) {
  const bool pends = launch->captured || launch->number >= rank->state->view->comm->ended;
  if (comm->captured == (launch->captured != 0)) return true;
  if (pends)
    replay_remark(replay,
                  comm->captured ? "rank %u of comm '%s': operations that wait behind a graph are left out"
                                 : "rank %u of comm '%s': operations that a graph has captured are left out",
                  rank->rank, comm->name);
  return false;
}

/* For graphs the operations of one launch, from the first to the last collective that ranks are in; else all.
 */
static bool call_is_ours(const struct replay_comm *comm, const struct replay_rank *rank,
                         const struct record_call *call) {
  if (!call_is_operation(call)) return false;
  if (!comm->captured) return true;
  if (rank->launch_count == 0) return false;
  const struct replay_launch *launch = &rank->launches[rank->launch_count - 1];
  return call->sequence - launch->first_op < launch->op_count &&
         (int32_t)(call->collective - comm->last_collective) <= 0;
}

/* Iterates backwards from the end of its records to the communicator's creation. */
static ncclResult_t rank_read_back(struct replay *replay, const struct replay_comm *comm,
                                   struct replay_rank *rank) {
  struct record_iter iter = record_iter_begin(rank->state);
  struct record_place place;
  memset(&place, 0, sizeof place);
  replay->graph = replay->graph || (!comm->captured && (rank->state->graph || rank->state->graph_queued));
  for (const union record *record = record_iter_back(&iter); record != NULL;
       record = record_iter_back(&iter)) {
    if (record->kind == RECORD_PLACE) memcpy(&place, &record->place, sizeof place);
    if (record->kind == RECORD_LAUNCH && launch_is_ours(replay, comm, rank, &record->launch))
      rank_add_launch(replay, rank, &record->launch);
    else if (record->kind == RECORD_LAUNCH)
      iter.limit = widen(rank->state->view->comm->calls, record->launch.sequence);
    if (record->kind != RECORD_CALL || !call_is_ours(comm, rank, &record->call)) continue;
    if ((int32_t)(record->call.collective - comm->first_collective) < 0) break;
    TRY(rank_add_op(replay, comm, rank, &record->call, &place));
  }
  return ncclSuccess;
}

/* The launch whose lanes have rows; REPLAY_NONE: there is none. */
static uint32_t rank_find_running(const struct replay_rank *rank) {
  const struct record_view *view = rank->state->view;
  for (uint32_t i = 0; i < rank->launched_count; i++) {
    const struct replay_launch *launch = &rank->launches[i];
    for (uint32_t row = 0; row < view->lane_rows; row++) {
      const uint32_t ahead = view->lanes[row].sequence - (uint32_t)rank->ops[launch->first_op].sequence;
      if (view->lanes[row].used == 1 && ahead < launch->op_count) return i;
    }
  }
  return REPLAY_NONE;
}

/* How many of the launches in the list have started, and ended, there. A rank's kernels run one after
 * another; if it failed, the later ones were ended, and the state of its lanes decides. */
static void rank_count_kernels(struct replay_rank *rank) {
  const struct record_comm *said = rank->state->view->comm;
  const uint64_t known = said->launched < rank->launched_count ? said->launched : rank->launched_count;
  const uint64_t skipped = said->launched - known;
  const uint32_t running = rank_find_running(rank);
  rank->started = UINT64_MAX;
  if (said->counts == 0) return;
  rank->started = said->started > skipped ? said->started - skipped : 0;
  rank->ended = said->ended > skipped ? said->ended - skipped : 0;
  if (rank->started > rank->launched_count) rank->started = rank->launched_count;
  if ((said->error != 0 || said->counts == RECORD_COUNTS_SEEN) && running != REPLAY_NONE) {
    rank->ended = running;
    rank->started = running + 1;
  }
  if (said->error == 0 && said->counts == RECORD_COUNTS_TRUE && rank->started > 0 &&
      rank->ended < rank->started - 1)
    rank->ended = rank->started - 1;
}

static ncclResult_t rank_read(struct replay *replay, const struct replay_comm *comm,
                              struct replay_rank *rank) {
  const uint64_t records = rank->state->view->end - rank->state->view->first;
  rank->ops = (struct replay_op *)os_alloc((records + 1) * sizeof *rank->ops);
  rank->launches = (struct replay_launch *)os_alloc((records + 1) * sizeof *rank->launches);
  if (rank->ops == NULL || rank->launches == NULL) return no_memory();
  TRY(rank_read_back(replay, comm, rank));
  ops_reverse(rank);
  launches_place(rank);
  rank_count_kernels(rank);
  if (rank->ended < rank->started && rank->started != UINT64_MAX && rank_find_running(rank) == REPLAY_NONE)
    replay_remark(
        replay,
        "kernels of comm '%s' had started and not ended, and nothing records where they were: they go "
        "as far as they can",
        comm->name);
  rank->collectives = rank->state->collectives;
  return ncclSuccess;
}

/* ---- graphs ---- */

static uint64_t comm_digest(const struct replay_comm *comm) {
  for (uint32_t i = 0; i < comm->rank_count; i++)
    if (comm->ranks[i].state != NULL && comm->ranks[i].state->view->comm->topology_digest != 0)
      return comm->ranks[i].state->view->comm->topology_digest;
  return 0;
}

/* The release that wrote the records. */
static const char *comm_library(const struct replay_comm *comm) {
  for (uint32_t i = 0; i < comm->rank_count; i++)
    if (comm->ranks[i].state != NULL) return comm->ranks[i].state->file->header.library;
  return "?";
}

/* By host. The host of ranks without a file is unknown: they are assumed to be on the previous rank's. */
static uint32_t places_by_host(const struct replay_comm *comm, struct graph_place *places) {
  uint32_t nodes = 0, first = 0;
  while (first + 1 < comm->rank_count && comm->ranks[first].state == NULL) first++;
  for (uint32_t i = 0; i < comm->rank_count; i++) {
    const struct rank_state *state = comm->ranks[i].state;
    places[i] = (struct graph_place){i > 0 ? places[i - 1].node : 0, 0, false};
    if (state != NULL && i > first) places[i].node = nodes;
    for (uint32_t k = first; k < i && state != NULL; k++)
      if (comm->ranks[k].state != NULL &&
          strncmp(comm->ranks[k].state->file->header.host, state->file->header.host, 64) == 0) {
        places[i].node = places[k].node;
        break;
      }
    if (places[i].node >= nodes) nodes = places[i].node + 1;
    for (uint32_t k = 0; k < i; k++) places[i].gpu += places[k].node == places[i].node;
  }
  return nodes;
}

static bool graph_fits(struct replay_comm *comm, const struct graph_place *places, uint32_t nodes,
                       uint32_t channels, uint64_t digest) {
  graph_free(&comm->graph);
  if (layout_graph_places(places, comm->rank_count, nodes, channels, &comm->graph) != ncclSuccess) {
    memset(&comm->graph, 0, sizeof comm->graph);
    return false;
  }
  return digest == 0 || graph_digest(&comm->graph) == digest;
}

static bool graph_find(struct replay_comm *comm, struct graph_place *places, uint64_t digest) {
  static const uint8_t channels[] = {2, 1, 4, 8, 16, 24, 32, 64, 3, 6, 12};
  const uint32_t hosts = places_by_host(comm, places);
  if (graph_fits(comm, places, hosts, channels[0], digest)) return true;
  for (size_t i = 1; hosts > 1 && i < sizeof channels; i++)
    if (graph_fits(comm, places, hosts, channels[i], digest)) return true;
  for (uint32_t nodes = 2; hosts == 1 && nodes <= comm->rank_count && nodes <= 16; nodes++) {
    const uint32_t each = comm->rank_count / nodes;
    for (uint32_t i = 0; i < comm->rank_count; i++)
      places[i] = (struct graph_place){i / each, i % each, false};
    for (size_t i = 0; comm->rank_count % nodes == 0 && i < sizeof channels; i++)
      if (graph_fits(comm, places, nodes, channels[i], digest)) return true;
  }
  return false;
}

/* The inputs of plans, which are equal on all ranks. Records of earlier releases have none. */
static ncclResult_t comm_take_inputs(struct replay_comm *comm) {
  for (uint32_t i = 0; i < comm->rank_count; i++) {
    const struct rank_state *state = comm->ranks[i].state;
    if (state == NULL || state->view->input_rows == 0 || state->view->comm->topology_digest == 0) continue;
    const char *wrong =
        plan_inputs_read(state->view->inputs, state->view->input_rows, comm->rank_count, &comm->inputs);
    if (wrong != NULL)
      return log_fail(ncclInvalidArgument,
                      "rank %u of comm '%s': the records do not hold all that its plans were made from: %s",
                      i, comm->name, wrong);
    comm->known = true;
    return ncclSuccess;
  }
  return ncclSuccess;
}

static ncclResult_t comm_lay_out_known(struct replay_comm *comm) {
  const ncclResult_t result =
      layout_graph_of_origin(&comm->inputs.origin, comm->inputs.places, comm->rank_count, &comm->graph);
  if (result == ncclSystemError) return result;
  if (result != ncclSuccess) {
    char why[REPLAY_TEXT_BYTES];
    replay_say(why, "%s", log_own_error());
    return log_fail(ncclInvalidArgument, "the topology of comm '%s' cannot be made again: %s", comm->name,
                    why);
  }
  if (comm_digest(comm) == graph_digest(&comm->graph)) return ncclSuccess;
  return log_fail(ncclInvalidArgument,
                  "the rings of comm '%s' come out different from the job's: this release of tutti orders "
                  "them differently; use the one that wrote the records (\"%.32s\")",
                  comm->name, comm_library(comm));
}

/* The record has a digest of rings and nodes: tries hosts, and nodes that divide the ranks evenly. */
static ncclResult_t comm_lay_out(struct replay *replay, struct replay_comm *comm) {
  if (comm->known) return comm_lay_out_known(comm);
  struct graph_place *places = (struct graph_place *)os_alloc(comm->rank_count * sizeof *places);
  if (places == NULL) return no_memory();
  ncclResult_t result = ncclSuccess;
  if (!graph_find(comm, places, comm_digest(comm))) {
    replay_remark(replay,
                  "the rings of comm '%s' are not known here: its topology was another one than its hosts "
                  "tell; give its NCCL_TOPO_FILE",
                  comm->name);
    graph_free(&comm->graph);
    const uint32_t hosts = places_by_host(comm, places);
    result = layout_graph_places(places, comm->rank_count, hosts, 32, &comm->graph);
  }
  os_free(places);
  return result;
}

/* ---- communicators ---- */

static bool comm_pends(const struct rank_state *states, uint32_t count) {
  for (uint32_t i = 0; i < count; i++)
    if (states[i].view->comm->state == RECORD_OPEN || states[i].view->comm->error != 0 ||
        rank_pends(&states[i]))
      return true;
  return false;
}

static uint32_t device_of(struct replay *replay, const struct rank_state *state) {
  for (uint32_t c = 0; c < replay->comm_count; c++)
    for (uint32_t r = 0; r < replay->comms[c].rank_count; r++) {
      const struct replay_rank *other = &replay->comms[c].ranks[r];
      if (other->state == NULL || other->device == REPLAY_NONE) continue;
      if (rank_states_same_device(other->state, state)) return other->device;
    }
  return replay->device_count++;
}

static ncclResult_t comm_read(struct replay *replay, struct replay_comm *comm,
                              const struct rank_state *states, uint32_t count) {
  const struct record_comm *said = states[0].view->comm;
  if (said->rank_count == 0 || said->rank_count > RANKS_MOST)
    return log_fail(ncclInvalidArgument, "comm '%.40s' has %u ranks; a replay takes %u at most", said->name,
                    said->rank_count, RANKS_MOST);
  comm->name = memchr(said->name, 0, sizeof said->name) != NULL ? said->name : "?";
  comm->ranks = (struct replay_rank *)os_alloc(said->rank_count * sizeof *comm->ranks);
  if (comm->ranks == NULL) return no_memory();
  comm->rank_count = said->rank_count;
  for (uint32_t i = 0; i < comm->rank_count; i++) comm->ranks[i].rank = i;
  for (uint32_t i = 0; i < count; i++) {
    const uint32_t rank = rank_number(&states[i]);
    if (rank < comm->rank_count) comm->ranks[rank].state = &states[i];
    comm->net = comm->net || states[i].view->comm->proxies_used > 0;
  }
  for (uint32_t i = 0; i < comm->rank_count; i++)
    comm->ranks[i].device = comm->ranks[i].state != NULL ? REPLAY_NONE : replay->device_count++;
  for (uint32_t i = 0; i < comm->rank_count; i++)
    if (comm->ranks[i].state != NULL) comm->ranks[i].device = device_of(replay, comm->ranks[i].state);
  TRY(comm_take_inputs(comm));
  replay_graph_find(comm);
  comm->whole = !comm->captured && comm_is_whole(comm);
  if (!comm->captured) comm->first_collective = comm->whole ? 0 : comm_first(comm);
  uint32_t op_count = 0;
  for (uint32_t i = 0; i < comm->rank_count; i++) {
    if (comm->ranks[i].state == NULL) continue;
    TRY(comm_take_plans(comm, &comm->ranks[i]));
    TRY(rank_read(replay, comm, &comm->ranks[i]));
    op_count += comm->ranks[i].op_count;
  }
  if (comm->captured) replay_graph_count(replay, comm);
  if (op_count > OPS_MOST)
    return log_fail(ncclInvalidArgument,
                    "%u operations of comm '%s' have not ended; a replay takes %u at most", op_count,
                    comm->name, OPS_MOST);
  return comm_lay_out(replay, comm);
}

static bool same_process(const struct record_header *a, const struct record_header *b) {
  return a->process == b->process && a->process_born == b->process_born &&
         a->process_realm == b->process_realm && strncmp(a->host, b->host, sizeof a->host) == 0;
}

/* Another process has this rank, too: it belongs to another job. */
static ncclResult_t rank_alone(const struct records *records, const struct rank_state *state) {
  const struct record_comm *said = state->view->comm;
  for (uint32_t i = 0; i < records->count; i++) {
    const struct record_file *file = &records->files[i];
    for (uint32_t k = 0; k < file->view_count && !same_process(&file->header, &state->file->header); k++) {
      const struct record_comm *other = file->views[k].comm;
      if (other->comm_id != said->comm_id || other->rank_count != said->rank_count ||
          other->rank != said->rank)
        continue;
      return log_fail(ncclInvalidArgument,
                      "%.200s and %.200s both have rank %u of comm '%.40s': they are of two jobs, or of two "
                      "attempts at one; give the files of one",
                      state->file->name, file->name, said->rank, said->name);
    }
  }
  return ncclSuccess;
}

ncclResult_t replay_read(const struct records *records, struct replay *replay) {
  uint32_t count = 0;
  *replay = (struct replay){.custom = replay->custom};
  replay->states = rank_states_gather(records->files, records->count, &count);
  replay->comms = (struct replay_comm *)os_alloc((COMMS_MOST + 1) * sizeof *replay->comms);
  if (replay->states == NULL || replay->comms == NULL) return no_memory();
  for (uint32_t begin = 0, end; begin < count; begin = end) {
    end = begin + 1;
    while (end < count && rank_states_same_comm(&replay->states[begin], &replay->states[end])) end++;
    if (!comm_pends(&replay->states[begin], end - begin)) continue;
    for (uint32_t i = begin; i < end; i++) TRY(rank_alone(records, &replay->states[i]));
    if (replay->comm_count == COMMS_MOST)
      return log_fail(ncclInvalidArgument, "more than %u communicators have not ended; give fewer files",
                      COMMS_MOST);
    replay->comm_count += 1;
    TRY(comm_read(replay, &replay->comms[replay->comm_count - 1], &replay->states[begin], end - begin));
  }
  replay_find_overtaken(replay);
  if (replay->device_count > DEVICES_MOST)
    return log_fail(ncclInvalidArgument, "these files are of %u devices; a replay takes %u at most",
                    replay->device_count, DEVICES_MOST);
  return ncclSuccess;
}

void replay_free(struct replay *replay) {
  for (uint32_t c = 0; c < replay->comm_count; c++) {
    struct replay_comm *comm = &replay->comms[c];
    for (uint32_t r = 0; comm->ranks != NULL && r < comm->rank_count; r++) {
      os_free(comm->ranks[r].ops);
      os_free(comm->ranks[r].launches);
    }
    graph_free(&comm->graph);
    plan_inputs_free(&comm->inputs);
    os_free(comm->ranks);
  }
  custom_free(replay->custom);
  os_free(replay->comms);
  os_free(replay->states);
  memset(replay, 0, sizeof *replay);
}
