/* meeting.c: the table of meetings, who sits in them, and what happens when the last seat fills, or when it
 * cannot. Promises that everybody who joined learns the outcome, with a sentence that names the rank at
 * fault, and that a meeting leaves nothing behind. All of its state changes under the backend's lock. Does
 * not know groups nor operations. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "core/bootstrap/bootstrap.h"
#include "core/bootstrap/meeting_impl.h"

#define REMIND_MS 5000
#define NS_PER_MS 1000000ull
#define PATHS_LOGGED_RANKS 64
#define MEETINGS_OVER 64 /* meetings whose late comers get an answer at once */

/* All under the backend's lock. */
static struct meeting *meetings;
static struct meeting *ended; /* unlinked; their roots are still to end */
static struct {
  enum meeting_kind kind;
  uint64_t key[2];
} over[MEETINGS_OVER];
static uint32_t over_count;

static bool meeting_was(const struct meeting_call *call) {
  if (call->id.lasting) return false;
  for (uint32_t i = 0; i < MEETINGS_OVER; i++) {
    if (over[i].kind == call->kind && over[i].key[0] == call->key[0] && over[i].key[1] == call->key[1])
      return true;
  }
  return false;
}

static void meeting_note_over(const struct meeting_call *call) {
  over[over_count % MEETINGS_OVER].kind = call->kind;
  over[over_count % MEETINGS_OVER].key[0] = call->key[0];
  over[over_count % MEETINGS_OVER].key[1] = call->key[1];
  over_count += 1;
}

bool meeting_any(void) { return meetings != NULL; }

/* ---- Meetings; from here to the waiting, the lock is held unless said otherwise ---- */

static struct meeting *meeting_find(const struct meeting_call *call) {
  for (struct meeting *meeting = meetings; meeting; meeting = meeting->next) {
    const struct meeting_call *first = &meeting->first;
    if (first->kind == call->kind && first->key[0] == call->key[0] && first->key[1] == call->key[1])
      return meeting;
  }
  return NULL;
}

struct meeting *meeting_find_nonce(uint64_t nonce) {
  for (struct meeting *meeting = meetings; meeting; meeting = meeting->next)
    if (meeting->first.kind == MEETING_INIT && meeting->first.key[1] == nonce) return meeting;
  return NULL;
}

/* An id that survived the counter's restart may meet its number again; live communicators must differ. */
static uint64_t meeting_comm_id(uint64_t number) {
  for (bool taken = true; taken;) {
    taken = team_id_taken(number);
    for (const struct meeting *meeting = meetings; meeting; meeting = meeting->next) {
      taken = taken || (meeting->first.kind == MEETING_INIT && meeting->first.comm_id == number);
    }
    if (taken) number += 1ull << 32;
  }
  return number;
}

static void meeting_free(struct meeting *meeting) {
  team_free(meeting->team);
  for (uint32_t i = 0; meeting->seats && i < meeting->first.seat_count; i++) os_free(meeting->seats[i].card);
  os_free(meeting->roots);
  os_free(meeting->comms);
  os_free(meeting->device_seats);
  os_free(meeting->seats);
  os_free(meeting);
}

static bool meeting_fill(struct meeting *meeting, const struct device_ops *ops, uint32_t device_count) {
  const struct meeting_call *first = &meeting->first;
  meeting->seats = (struct seat *)os_alloc(first->seat_count * sizeof *meeting->seats);
  meeting->roots = (struct sock_address *)os_alloc(first->root_count * sizeof *meeting->roots);
  if (!meeting->seats || !meeting->roots) return false;
  for (uint32_t i = 0; i < first->root_count; i++) meeting->roots[i] = first->roots[i];
  meeting->first.roots = meeting->roots;
  if (first->kind == MEETING_SPLIT) return true;
  meeting->device_count = device_count;
  meeting->device_seats = (uint32_t *)os_alloc(device_count * sizeof *meeting->device_seats);
  meeting->comms = (struct ncclComm **)os_alloc(first->seat_count * sizeof *meeting->comms);
  meeting->team = team_create(ops, first->comm_id, first->seat_count);
  return meeting->device_seats && meeting->comms && meeting->team;
}

/* Ranks of other processes may be missing: who made a unique id cannot know where it went. */
static bool meeting_may_be_far(const struct meeting *meeting) {
  return meeting->first.kind == MEETING_INIT || meeting->wire_key != 0;
}

static struct meeting *meeting_create(const struct meeting_call *call, const struct device_ops *ops,
                                      uint32_t device_count) {
  struct meeting *meeting = (struct meeting *)os_alloc(sizeof *meeting);
  if (!meeting) return NULL;
  meeting->first = *call;
  meeting->first.comm = meeting->first.parent = NULL;
  if (call->kind == MEETING_INIT) meeting->first.comm_id = meeting_comm_id(call->comm_id);
  if (call->kind == MEETING_INIT) meeting->wire_key = call->key[1];
  else if (call->parent->team->far)
    meeting->wire_key = meeting_wire_key(call->parent->team->far->wire_key, call->key[1]);
  if (!meeting_fill(meeting, ops, device_count)) {
    meeting_free(meeting);
    return NULL;
  }
  meeting->begin_ns = os_time_ns();
  meeting->next_reminder_ns = meeting->begin_ns + REMIND_MS * NS_PER_MS;
  meeting->next = meetings;
  meetings = meeting;
  if (meeting_may_be_far(meeting)) ops->outside_wait(1);
  return meeting;
}

static void meeting_unlink(struct meeting *meeting) {
  struct meeting **link = &meetings;
  while (*link != meeting) link = &(*link)->next;
  *link = meeting->next;
  if (meeting_may_be_far(meeting)) backend_device_ops()->outside_wait(-1);
  meeting_note_over(&meeting->first);
}

/* Ends the root and frees the meeting: where a thread conducted it, that has ended the root already; else
 * later, without the lock: the server's thread may be waiting for it. */
static void meeting_drop(struct meeting *meeting) {
  meeting_unlink(meeting);
  if (meeting->first.kind == MEETING_SPLIT || meeting->conducted) {
    meeting_free(meeting);
    return;
  }
  meeting->next = ended;
  ended = meeting;
}

void meeting_unlock(const struct device_ops *ops) {
  struct meeting *meeting = ended;
  ended = NULL;
  ops->unlock();
  for (struct meeting *next; meeting; meeting = next) {
    next = meeting->next;
    meeting_root_end(&meeting->first);
    meeting_free(meeting);
  }
}

/* A rank's part in the meeting is over, for better or worse. */
static void seat_leave(struct seat *seat, enum comm_state state) {
  struct ncclComm *comm = seat->comm;
  if (!comm) return;
  if (comm->parent) __atomic_sub_fetch(&comm->parent->children_meeting, 1, __ATOMIC_ACQ_REL);
  comm->parent = NULL;
  comm->meeting = NULL;
  __atomic_store_n(&comm->state, state, __ATOMIC_RELEASE);
}

/* The thread that meets the others will end it, and tell them why. */
static void meeting_cancel(struct meeting *meeting, ncclResult_t code, const char *reason) {
  if (meeting->cancel_code != ncclSuccess) return;
  meeting->cancel_code = code;
  snprintf(meeting->cancel_reason, sizeof meeting->cancel_reason, "%s", reason);
  if (meeting->gather) gather_cancel(meeting->gather, code, reason);
}

void meeting_end(struct meeting *meeting, ncclResult_t code, const char *reason) {
  for (uint32_t i = 0; i < meeting->first.seat_count; i++) {
    struct seat *seat = &meeting->seats[i];
    if (!seat->comm) continue;
    snprintf(seat->comm->reason, sizeof seat->comm->reason, "%s", reason);
    __atomic_store_n(&seat->comm->async_error, code, __ATOMIC_RELEASE);
    seat_leave(seat, COMM_FAILED);
  }
  meeting_drop(meeting);
}

/* Ends the meeting for everybody with one code and one sentence. */
static void meeting_fail(struct meeting *meeting, ncclResult_t code, const char *reason) {
  if (meeting->conducted) meeting_cancel(meeting, code, reason);
  else meeting_end(meeting, code, reason);
}

static void meeting_fail_with(struct meeting *meeting, ncclResult_t code, const char *format, ...)
    LOG_FORMAT(3, 4);
static void meeting_fail_with(struct meeting *meeting, ncclResult_t code, const char *format, ...) {
  char reason[COMM_REASON_BYTES];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(reason, sizeof reason, format, arguments);
  va_end(arguments);
  log_warn("%s: %s", meeting->first.call, reason);
  meeting_fail(meeting, code, reason);
}

/* A rank that contradicts the others ends the meeting. */
static ncclResult_t meeting_agree(struct meeting *meeting, const struct meeting_call *call) {
  const struct meeting_call *first = &meeting->first;
  if (first->seat_count != call->seat_count) {
    meeting_fail_with(meeting, ncclInvalidArgument,
                      "rank %u says %u ranks, rank %u says %u; pass the same number on "
                      "every rank",
                      call->seat, call->seat_count, first->seat, first->seat_count);
    return ncclInvalidArgument;
  }
  if (first->signature != call->signature) {
    meeting_fail_with(meeting, ncclInvalidArgument,
                      "rank %u and rank %u pass different lists (of ids, or of ranks to "
                      "exclude); pass the same on every rank",
                      call->seat, first->seat);
    return ncclInvalidArgument;
  }
  if (meeting->seats[call->seat].taken) {
    meeting_fail_with(meeting, ncclInvalidUsage, "rank %u came twice; give every rank a number of its own",
                      call->seat);
    return ncclInvalidUsage;
  }
  return ncclSuccess;
}

static ncclResult_t meeting_take_device(struct meeting *meeting, const struct meeting_call *call) {
  const uint32_t device = call->comm->device_index;
  if (device >= meeting->device_count) {
    meeting_fail_with(meeting, ncclInvalidArgument, "rank %u is on device %u of %u", call->seat, device,
                      meeting->device_count);
    return ncclInvalidArgument;
  }
  if (meeting->device_seats[device] != 0 && param_int(PARAM_MULTI_RANK_GPU_ENABLE) == 0) {
    meeting_fail_with(meeting, ncclInvalidUsage,
                      "rank %u and rank %u are both on device %u; select another device "
                      "before the call, or set NCCL_MULTI_RANK_GPU_ENABLE=1",
                      meeting->device_seats[device] - 1, call->seat, device);
    return ncclInvalidUsage;
  }
  meeting->device_seats[device] = call->seat + 1;
  return ncclSuccess;
}

static void seat_take(struct meeting *meeting, const struct meeting_call *call) {
  struct seat *seat = &meeting->seats[call->seat];
  struct ncclComm *comm = call->comm;
  seat->taken = true;
  seat->color = call->color;
  seat->key_order = call->key_order;
  seat->comm = comm;
  meeting->joined_count += 1;
  if (!comm) return;
  comm->meeting = meeting;
  comm->met_ns = os_time_ns();
  comm->parent = call->parent;
  if (call->parent) __atomic_add_fetch(&call->parent->children_meeting, 1, __ATOMIC_ACQ_REL);
  if (call->kind == MEETING_SPLIT) return;
  comm->comm_id = meeting->first.comm_id;
  comm->rank = call->seat;
  comm->rank_count = call->seat_count;
  meeting->comms[call->seat] = comm;
}

static ncclResult_t join_locked(const struct meeting_call *call, const struct device_ops *ops,
                                uint32_t device_count) {
  struct meeting *meeting = meeting_find(call);
  if (!meeting && meeting_was(call)) {
    return log_fail(ncclInvalidUsage, "%s: rank %u: %s", call->call, call->seat,
                    call->kind == MEETING_INIT
                        ? "this unique id has made a communicator, or failed to, before; get a new one with "
                          "ncclGetUniqueId"
                        : "it failed on another rank before; see the warnings before this one");
  }
  if (!meeting) {
    meeting = meeting_create(call, ops, device_count);
    const bool called = call->kind == MEETING_INIT && call->id.own && bootstrap_id_called(call->key[1]);
    if (meeting && (called || meeting_is_far(call))) TRY(meeting_conduct(meeting));
  }
  if (!meeting) {
    meeting_note_over(call); /* those who come later need not wait for this rank */
    return log_fail(ncclSystemError, "%s: rank %u: no memory to meet %u ranks; free some and try again",
                    call->call, call->seat, call->seat_count);
  }
  TRY(meeting_agree(meeting, call));
  if (call->kind == MEETING_INIT) TRY(meeting_take_device(meeting, call));
  seat_take(meeting, call);
  return ncclSuccess;
}

ncclResult_t meeting_join(const struct meeting_call *call) {
  const struct device_ops *ops = backend_device_ops();
  if (!ops) return ncclInvalidUsage;
  uint32_t device_count = 0;
  TRY(ops->device_count(&device_count));
  if (call->kind == MEETING_INIT && call->seat == 0) TRY(bootstrap_root_open(&call->id));
  ops->lock();
  const ncclResult_t result = join_locked(call, ops, device_count);
  meeting_unlock(ops);
  if (result != ncclSuccess && call->seat == 0 && call->id.fixed) meeting_root_end(call);
  return result;
}

void meeting_refuse(const struct meeting_call *call, const char *why) {
  const struct device_ops *ops = backend_device_ops();
  char reason[COMM_REASON_BYTES];
  snprintf(reason, sizeof reason, "rank %u %s", call->seat, why);
  ops->lock();
  struct meeting *meeting = meeting_find(call);
  if (meeting) meeting_fail(meeting, ncclRemoteError, reason);
  else meeting_note_over(call);
  meeting_unlock(ops);
  if (!meeting) meeting_root_end(call);
}

/* ---- Completion ---- */

/* "GPU 0 (0000:18:00.0) <-> GPU 1 (0000:2a:00.0): NVL, 18 links, 478 GB/s". */
static void path_log(const struct device_ops *ops, uint32_t from, uint32_t to) {
  struct device_path_info path;
  struct device_info from_info, to_info;
  char links[32] = "", rate[32] = "";
  if (ops->device_info(from, &from_info) != ncclSuccess || ops->device_info(to, &to_info) != ncclSuccess ||
      ops->device_path(from, to, &path) != ncclSuccess)
    return;
  if (path.link_count > 0) snprintf(links, sizeof links, ", %u links", path.link_count);
  if (path.gbps > 0) snprintf(rate, sizeof rate, ", %.0f GB/s", path.gbps);
  log_info(LOG_GRAPH, "GPU %u (%s) <-> GPU %u (%s): %s%s%s%s", from, from_info.bus_id, to, to_info.bus_id,
           path.name, links, rate, path.peer_access ? "" : ", no peer access: through memory of the host");
}

static void paths_log(struct ncclComm *const *comms, uint32_t count) {
  if (count > PATHS_LOGGED_RANKS || !log_enabled(LOG_INFO, LOG_GRAPH)) return;
  for (uint32_t i = 0; i < count; i++)
    for (uint32_t j = i + 1; j < count; j++)
      path_log(comms[0]->ops, comms[i]->device_index, comms[j]->device_index);
}

static void lines128_warn(uint32_t rank_count) {
  static bool said;
  if (__atomic_exchange_n(&said, true, __ATOMIC_RELAXED)) return;
  log_warn(
      "NCCL_PROTO asks for LL128, but not all of a communicator's %u GPUs are joined by NVLink, and "
      "elsewhere stores of 128 bytes may arrive in pieces: results may be wrong; take LL128 out of "
      "NCCL_PROTO",
      rank_count);
}

/* All ranks see the same paths, so all come to the same protocols. */
static void paths_settle(struct ncclComm *const *comms, uint32_t count) {
  struct settings_paths paths = {true, true};
  bool kept = false;
  for (uint32_t i = 0; i < count; i++)
    for (uint32_t j = 0; j < count; j++)
      if (i != j) settings_add_path(comms[0]->ops, comms[i]->device_index, comms[j]->device_index, &paths);
  for (uint32_t i = 0; i < count; i++) kept = settings_take_paths(&comms[i]->settings, &paths) || kept;
  if (kept) lines128_warn(count);
  paths_log(comms, count);
}

/* The ranks' channel counts may be configured differently; all take the smallest. */
static void settings_settle(struct ncclComm *const *comms, uint32_t count) {
  struct settings agreed = comms[0]->settings;
  for (uint32_t i = 1; i < count; i++) settings_agree(&agreed, &comms[i]->settings);
  for (uint32_t i = 0; i < count; i++) settings_agree(&comms[i]->settings, &agreed);
  paths_settle(comms, count);
}

void comm_join_team(struct ncclComm *comm, struct team *team) {
  team->device_comms[comm->rank] = comm->device_comm;
  team->live_count += 1;
  comm->team = team;
}

void meeting_publish(struct meeting *meeting) {
  for (uint32_t i = 0; i < meeting->first.seat_count; i++) seat_leave(&meeting->seats[i], COMM_READY);
  meeting_drop(meeting);
}

/* Ranks of this process on nodes that a network joins: their device-side halves are open. */
static ncclResult_t team_open_here(struct team *team, struct ncclComm *const *comms) {
  if (!team->far) return ncclSuccess;
  for (uint32_t i = 0; i < team->rank_count; i++) {
    team->device_comms[i] = comms[i]->device_comm;
    comms[i]->ops->comm_settle(comms[i]->device_comm, &comms[i]->settings.limits);
  }
  return far_open(team->far, comms);
}

/* The team's graph, and what all of its ranks agree on. */
static ncclResult_t team_settle_here(struct team *team, struct ncclComm *const *comms) {
  settings_settle(comms, team->rank_count);
  TRY(far_create_here(team, comms, &team->far));
  for (uint32_t i = 0; team->far && i < team->rank_count; i++) far_settle(team->far, &comms[i]->settings);
  return team_lay_out(team, comms);
}

static void complete_init(struct meeting *meeting) {
  const uint32_t count = meeting->first.seat_count;
  ncclResult_t result = team_settle_here(meeting->team, meeting->comms);
  if (result == ncclSuccess) result = team_open_here(meeting->team, meeting->comms);
  if (result != ncclSuccess) {
    meeting_fail(meeting, result, log_own_error());
    return;
  }
  team_enlist(meeting->team);
  for (uint32_t i = 0; i < count; i++) comm_join_team(meeting->seats[i].comm, meeting->team);
  meeting->team = NULL;
  meeting_publish(meeting);
}

/* What the last to arrive at a split works on without the lock. */
struct split_work {
  const struct device_ops *ops;
  struct ncclComm **comms;   /* those with a color, by (color, key, parent rank) */
  const struct seat **seats; /* the same order */
  struct team **teams;       /* one for each color, in order of color */
  uint32_t comm_count, team_count, opened_count;
};

uint64_t meeting_child_id(const struct meeting_call *call, int color) {
  const uint64_t mixed = hash_mix(hash_mix(3, call->comm_id), call->key[1]);
  return hash_mix(mixed, (uint32_t)color) | 1ull << 63;
}

static int seat_compare(const void *left, const void *right) {
  const struct seat *a = *(const struct seat *const *)left, *b = *(const struct seat *const *)right;
  if (a->color != b->color) return a->color < b->color ? -1 : 1;
  if (a->key_order != b->key_order) return a->key_order < b->key_order ? -1 : 1;
  return a < b ? -1 : a > b; /* seats lie in the order of parent ranks */
}

static bool split_sort(struct split_work *split, const struct meeting *meeting) {
  const uint32_t seat_count = meeting->first.seat_count;
  split->comms = (struct ncclComm **)os_alloc(seat_count * sizeof *split->comms);
  split->seats = (const struct seat **)os_alloc(seat_count * sizeof *split->seats);
  split->teams = (struct team **)os_alloc(seat_count * sizeof *split->teams);
  if (!split->comms || !split->seats || !split->teams) return false;
  for (uint32_t i = 0; i < seat_count; i++) {
    if (meeting->seats[i].comm) split->seats[split->comm_count++] = &meeting->seats[i];
  }
  qsort(split->seats, split->comm_count, sizeof *split->seats, seat_compare);
  for (uint32_t i = 0; i < split->comm_count; i++) split->comms[i] = split->seats[i]->comm;
  return true;
}

/* Opens the ranks of one color, comms[begin, end). */
static ncclResult_t split_open_team(struct split_work *split, const struct meeting_call *first,
                                    uint32_t begin, uint32_t end) {
  const uint64_t comm_id = meeting_child_id(first, split->seats[begin]->color);
  struct team *team = team_create(split->ops, comm_id, end - begin);
  if (!team) return log_fail(ncclSystemError, "%s: no memory for %u ranks", first->call, end - begin);
  split->teams[split->team_count++] = team;
  TRY(team_settle_here(team, split->comms + begin));
  for (uint32_t i = begin; i < end; i++) {
    struct ncclComm *comm = split->comms[i];
    comm->comm_id = comm_id;
    comm->rank = i - begin;
    comm->rank_count = end - begin;
    TRY(comm_open(comm));
    split->opened_count += 1;
  }
  return team_open_here(team, split->comms + begin);
}

static ncclResult_t split_open(struct split_work *split, struct meeting *meeting) {
  if (!split_sort(split, meeting)) {
    return log_fail(ncclSystemError, "%s: no memory to sort %u ranks", meeting->first.call,
                    meeting->first.seat_count);
  }
  for (uint32_t begin = 0, end; begin < split->comm_count; begin = end) {
    end = begin + 1;
    while (end < split->comm_count && split->seats[end]->color == split->seats[begin]->color) end += 1;
    TRY(split_open_team(split, &meeting->first, begin, end));
  }
  return ncclSuccess;
}

static void split_publish(struct split_work *split, struct meeting *meeting) {
  uint32_t team_index = 0;
  for (uint32_t i = 0; i < split->comm_count; i++) {
    struct ncclComm *comm = split->comms[i];
    if (i > 0 && comm->rank == 0) team_index += 1;
    if (comm->rank == 0) team_enlist(split->teams[team_index]);
    comm_join_team(comm, split->teams[team_index]);
  }
  meeting_publish(meeting);
}

/* Not locked. */
static void complete_split(struct meeting *meeting, const struct device_ops *ops) {
  struct split_work split = {ops, NULL, NULL, NULL, 0, 0, 0};
  const ncclResult_t result = split_open(&split, meeting);
  for (uint32_t i = 0; result != ncclSuccess && i < split.opened_count; i++) {
    ops->comm_close(split.comms[i]->device_comm);
    split.comms[i]->device_comm = NULL;
  }
  ops->lock();
  if (result == ncclSuccess) split_publish(&split, meeting);
  else meeting_fail(meeting, result, log_own_error());
  meeting_unlock(ops);
  for (uint32_t i = 0; result != ncclSuccess && i < split.team_count; i++) team_free(split.teams[i]);
  os_free(split.comms);
  os_free(split.seats);
  os_free(split.teams);
}

/* Locked. Who has to carry on once this rank has arrived: nobody, this thread (*split), or the root, which
 * has to hear of it (*far). */
static void arrive_locked(const struct meeting_call *call, struct far_card **card, struct meeting **split,
                          struct meeting **far) {
  struct meeting *meeting = meeting_find(call);
  if (!meeting) return;
  struct seat *seat = &meeting->seats[call->seat];
  seat->arrived = true;
  seat->card = *card;
  *card = NULL;
  meeting->arrived_count += 1;
  if (meeting->conducted) {
    if (!meeting->gather) return; /* the meeting's thread checks it in */
    seat->checked_in = true;
    meeting->checking_in += 1;
    *far = meeting;
  } else if (meeting->arrived_count == call->seat_count) {
    if (call->kind == MEETING_INIT) complete_init(meeting);
    else *split = meeting;
  }
  if (*split) (*split)->resolving = true;
}

ncclResult_t meeting_arrive(const struct meeting_call *call) {
  const struct device_ops *ops = backend_device_ops();
  struct meeting *split = NULL, *far = NULL;
  struct far_card *card = NULL;
  if (meeting_is_far(call)) {
    const ncclResult_t filled = meeting_fill_card(call, &card);
    if (filled != ncclSuccess) meeting_refuse(call, "cannot describe itself");
    TRY(filled);
  }
  ops->lock();
  arrive_locked(call, &card, &split, &far);
  meeting_unlock(ops);
  if (far) meeting_check_in(call, far);
  if (split) complete_split(split, ops);
  os_free(card);
  return ncclSuccess;
}

/* ---- Waiting ---- */

/* "2, 5-7 and 12 more": the seats that nobody took. */
static void missing_describe(const struct meeting *meeting, char *text, size_t text_bytes) {
  uint32_t shown = 0, left = 0;
  size_t used = 0;
  text[0] = '\0';
  for (uint32_t i = 0; i < meeting->first.seat_count; i++) {
    const uint32_t begin = i;
    if (meeting->seats[i].arrived) continue;
    while (i + 1 < meeting->first.seat_count && !meeting->seats[i + 1].arrived) i += 1;
    if (shown == 6 || used + 32 > text_bytes) {
      left += i - begin + 1;
      continue;
    }
    used += (size_t)snprintf(text + used, text_bytes - used, "%s%u", shown > 0 ? ", " : "", begin);
    if (i > begin) used += (size_t)snprintf(text + used, text_bytes - used, "-%u", i);
    shown += 1;
  }
  if (left > 0) snprintf(text + used, text_bytes - used, " and %u more", left);
}

/* Reminds of absent ranks now and then; ends the meeting when its time is up. */
static void meeting_check_time(struct meeting *meeting) {
  const uint64_t now = os_time_ns();
  const uint64_t limit_seconds = (uint64_t)param_int(PARAM_TUTTI_INIT_TIMEOUT_SECONDS);
  const uint64_t waited_seconds = (now - meeting->begin_ns) / 1000000000u;
  char missing[96];
  if (meeting->conducted) return; /* the root has the clock */
  if (meeting->resolving || now < meeting->next_reminder_ns) {
    if (meeting->resolving || waited_seconds < limit_seconds) return;
  }
  missing_describe(meeting, missing, sizeof missing);
  if (waited_seconds >= limit_seconds) {
    meeting_fail_with(meeting, ncclRemoteError,
                      "%u of %u ranks came within %llu seconds; missing: rank %s; look there "
                      "first, or raise TUTTI_INIT_TIMEOUT_SECONDS",
                      meeting->arrived_count, meeting->first.seat_count, (unsigned long long)limit_seconds,
                      missing);
    return;
  }
  meeting->next_reminder_ns = now + REMIND_MS * NS_PER_MS;
  log_warn("%s: for %llu seconds %u of %u ranks have come; missing: rank %s", meeting->first.call,
           (unsigned long long)waited_seconds, meeting->arrived_count, meeting->first.seat_count, missing);
}

void meeting_poll(struct ncclComm *comm) {
  comm->ops->lock();
  if (comm->meeting) meeting_check_time(comm->meeting);
  meeting_unlock(comm->ops);
}

/* Milliseconds until somebody must look at the clock again. */
static uint64_t wait_slice_ms(struct ncclComm *comm) {
  const uint64_t limit_ns = (uint64_t)param_int(PARAM_TUTTI_INIT_TIMEOUT_SECONDS) * 1000 * NS_PER_MS;
  uint64_t slice_ms = 1;
  comm->ops->lock();
  if (comm->meeting) {
    const uint64_t now = os_time_ns(), end = comm->meeting->begin_ns + limit_ns;
    slice_ms = end > now ? (end - now) / NS_PER_MS + 1 : 1;
  }
  comm->ops->unlock();
  return slice_ms < REMIND_MS ? slice_ms : REMIND_MS;
}

/* done() of wait_until: runs under the lock. */
static bool comm_has_met(void *argument) {
  return comm_state((const struct ncclComm *)argument) != COMM_MEETING;
}

ncclResult_t meeting_wait(struct ncclComm *comm, const char *call) {
  while (comm_state(comm) == COMM_MEETING) {
    const ncclResult_t result = comm->ops->wait_until(comm_has_met, comm, wait_slice_ms(comm));
    if (result == ncclInProgress) meeting_poll(comm);
    else if (result != ncclSuccess) {
      meeting_withdraw(comm, "cannot wait any longer: nothing in the process can move");
      break;
    }
  }
  if (comm_state(comm) != COMM_FAILED) return ncclSuccess;
  comm->ops->lock();
  meeting_unlock(comm->ops); /* the server's thread may have left something to end */
  return log_fail(comm_async_error(comm), "%s: rank on device %u: %s", call, comm->device_index,
                  comm->reason);
}

/* Not locked. False when the meeting is past withdrawing: its outcome is then awaited. */
static bool withdraw_try(struct ncclComm *comm, const char *why) {
  comm->ops->lock();
  struct meeting *meeting = comm->meeting;
  const bool wait = meeting && (meeting->resolving || meeting->conducted);
  if (meeting && !meeting->resolving) {
    uint32_t seat = 0;
    while (meeting->seats[seat].comm != comm) seat += 1;
    char reason[COMM_REASON_BYTES];
    snprintf(reason, sizeof reason, "rank %u %s before all %u ranks had come", seat, why,
             meeting->first.seat_count);
    meeting_fail(meeting, ncclRemoteError, reason);
  }
  meeting_unlock(comm->ops);
  return !wait;
}

void meeting_withdraw(struct ncclComm *comm, const char *why) {
  while (!withdraw_try(comm, why)) comm->ops->wait_until(comm_has_met, comm, REMIND_MS);
}

void meeting_forget_parent(struct ncclComm *parent) {
  if (__atomic_load_n(&parent->children_meeting, __ATOMIC_ACQUIRE) == 0) return;
  parent->ops->lock();
  for (struct meeting *meeting = meetings; meeting; meeting = meeting->next) {
    for (uint32_t i = 0; i < meeting->first.seat_count; i++) {
      struct ncclComm *comm = meeting->seats[i].comm;
      if (comm && comm->parent == parent) comm->parent = NULL;
    }
  }
  parent->ops->unlock();
}
