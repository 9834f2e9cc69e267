/* meeting_far.c: a meeting with ranks of other processes. A thread of its own checks this process's seats in
 * with the root, waits for everybody's cards, makes the teams that this process has ranks in, and agrees with
 * the others on how that went. Promises that all processes come to the same outcome, and that the thread ends
 * with the meeting. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"
#include "core/bootstrap/bootstrap.h"
#include "core/bootstrap/meeting_impl.h"
#include "core/far/reach.h"

/* What one meeting's thread works with. */
struct conduct {
  struct meeting *meeting;
  const struct device_ops *ops;
  struct gather *gather;
  struct team **teams; /* those that this process has ranks in, with their communicators open */
  uint32_t team_count;
  struct far_member *members; /* all seats with a communicator, by team */
  uint32_t *seats;            /* of the team in work, by rank */
  struct ncclComm **comms;    /* the same; NULL for ranks of other processes */
  struct reach reach;         /* whose memory is mapped */
  char reason[COMM_REASON_BYTES];
};

struct far_member {
  int color, key_order;
  uint32_t seat;
};

bool meeting_is_far(const struct meeting_call *call) {
  const struct far *far = call->parent ? call->parent->team->far : NULL;
  if (call->kind == MEETING_SPLIT) return far && far->party_count > 1;
  return !call->id.own;
}

void meeting_root_end(const struct meeting_call *call) {
  if (call->kind == MEETING_INIT && (call->id.own || call->id.fixed)) bootstrap_id_over(call->id.nonce);
}

/* A child's meeting, and each child, is named by its parent and the number of its split: no id is needed. */
uint64_t meeting_wire_key(uint64_t parent_key, uint64_t number) {
  return hash_mix(parent_key, number * 2 + 1);
}

/* ---- Checking in ---- */

/* A rank without color brings no communicator, and has nothing to say. A child's device-side half is not open
 * yet: its parent's speaks for it. */
static ncclResult_t seat_card(const struct meeting_call *call, struct far_card *card) {
  memset(card, 0, sizeof *card);
  if (!call->comm) return ncclSuccess;
  const bool child = call->kind == MEETING_SPLIT;
  TRY(far_card_fill(call->comm, child ? call->parent->device_comm : call->comm->device_comm, card));
  card->color = call->color;
  card->key_order = call->key_order;
  return ncclSuccess;
}

ncclResult_t meeting_fill_card(const struct meeting_call *call, struct far_card **out) {
  struct far_card *card = (struct far_card *)os_alloc(sizeof *card);
  if (!card) return log_fail(ncclSystemError, "%s: no memory to describe rank %u", call->call, call->seat);
  const ncclResult_t result = seat_card(call, card);
  if (result == ncclSuccess) *out = card;
  else os_free(card);
  return result;
}

/* A seat that arrived while the root was not reached yet. */
static ncclResult_t conduct_check_in(struct conduct *conduct, uint32_t index) {
  struct meeting *meeting = conduct->meeting;
  struct seat *seat = &meeting->seats[index];
  if (!seat->card) { /* the first rank of another process came after this one: an id of our own */
    struct meeting_call call = meeting->first;
    call.seat = index;
    call.comm = seat->comm;
    TRY(meeting_fill_card(&call, &seat->card));
  }
  return gather_check_in(conduct->gather, index, seat->card, sizeof *seat->card);
}

/* From now on ranks that arrive check themselves in. */
static ncclResult_t conduct_check_in_all(struct conduct *conduct) {
  struct meeting *meeting = conduct->meeting;
  ncclResult_t result = ncclSuccess;
  conduct->ops->lock();
  meeting->gather = conduct->gather;
  if (meeting->cancel_code != ncclSuccess)
    gather_cancel(conduct->gather, meeting->cancel_code, meeting->cancel_reason);
  for (uint32_t i = 0; i < meeting->first.seat_count; i++) {
    struct seat *seat = &meeting->seats[i];
    if (!seat->arrived || seat->checked_in) continue;
    seat->checked_in = true;
    conduct->ops->unlock();
    if (result == ncclSuccess) result = conduct_check_in(conduct, i);
    conduct->ops->lock();
  }
  conduct->ops->unlock();
  return result;
}

void meeting_check_in(const struct meeting_call *call, struct meeting *meeting) {
  struct far_card **card = &meeting->seats[call->seat].card;
  /* Without one, the first rank of another process came while this one was on its way here. */
  ncclResult_t result = *card ? ncclSuccess : meeting_fill_card(call, card);
  if (result == ncclSuccess) result = gather_check_in(meeting->gather, call->seat, *card, sizeof **card);
  backend_device_ops()->lock();
  if (result != ncclSuccess && meeting->cancel_code == ncclSuccess) {
    meeting->cancel_code = result;
    snprintf(meeting->cancel_reason, sizeof meeting->cancel_reason, "rank %u could not check in", call->seat);
    gather_cancel(meeting->gather, result, meeting->cancel_reason);
  }
  meeting->checking_in -= 1;
  backend_device_ops()->unlock();
}

/* ---- Teams ---- */

static int member_compare(const void *left, const void *right) {
  const struct far_member *a = (const struct far_member *)left, *b = (const struct far_member *)right;
  if (a->color != b->color) return a->color < b->color ? -1 : 1;
  if (a->key_order != b->key_order) return a->key_order < b->key_order ? -1 : 1;
  return a->seat < b->seat ? -1 : a->seat > b->seat;
}

/* All seats that get a communicator: those of one team lie together, in the order of their ranks. */
static ncclResult_t conduct_sort(struct conduct *conduct, uint32_t *member_count) {
  const uint32_t seat_count = conduct->meeting->first.seat_count;
  const struct gather_seat *said = gather_seats(conduct->gather);
  *member_count = 0;
  for (uint32_t i = 0; i < seat_count; i++) {
    const struct far_card *card = (const struct far_card *)said[i].card;
    if (said[i].card_bytes != sizeof *card)
      return log_fail(ncclInvalidUsage,
                      "rank %u described itself with %u bytes, this library does with %zu; load the same "
                      "library everywhere",
                      i, said[i].card_bytes, sizeof *card);
    struct far_card copy;
    memcpy(&copy, card, sizeof copy);
    if (!copy.present) continue;
    const struct far_member member = {copy.color, copy.key_order, i};
    conduct->members[(*member_count)++] = member;
  }
  qsort(conduct->members, *member_count, sizeof *conduct->members, member_compare);
  return ncclSuccess;
}

static ncclResult_t team_settle(struct team *team, struct ncclComm *const *comms) {
  const struct settings *any = NULL;
  for (uint32_t rank = 0; rank < team->rank_count; rank++) {
    if (!comms[rank]) continue;
    far_settle(team->far, &comms[rank]->settings);
    any = &comms[rank]->settings;
  }
  return far_lay_out(team->far, any->limits.channel_count, &team->graph);
}

static ncclResult_t team_open_comms(struct team *team, struct ncclComm *const *comms, bool child) {
  for (uint32_t rank = 0; rank < team->rank_count; rank++) {
    struct ncclComm *comm = comms[rank];
    if (!comm) continue;
    if (child) {
      comm->comm_id = team->comm_id;
      comm->rank = rank;
      comm->rank_count = team->rank_count;
      TRY(comm_open(comm));
    } else {
      comm->ops->comm_settle(comm->device_comm, &comm->settings.limits);
    }
    team->device_comms[rank] = comm->device_comm;
  }
  return far_open(team->far, comms);
}

/* The team of members [begin, end), if this process has ranks in it. It is noted before it is filled, so that
 * a failure finds what to undo. */
static ncclResult_t conduct_team(struct conduct *conduct, uint32_t begin, uint32_t end, uint64_t comm_id,
                                 uint64_t wire_key) {
  struct meeting *meeting = conduct->meeting;
  const bool child = meeting->first.kind == MEETING_SPLIT;
  bool ours = false;
  for (uint32_t i = begin; i < end; i++) {
    conduct->seats[i - begin] = conduct->members[i].seat;
    conduct->comms[i - begin] = meeting->seats[conduct->members[i].seat].comm;
    ours = ours || conduct->comms[i - begin];
  }
  if (!ours) return ncclSuccess;
  struct team *team = child ? team_create(conduct->ops, comm_id, end - begin) : meeting->team;
  if (!team) return log_fail(ncclSystemError, "%s: no memory for %u ranks", meeting->first.call, end - begin);
  meeting->team = child ? meeting->team : NULL;
  conduct->teams[conduct->team_count++] = team;
  TRY(far_create(team, wire_key, conduct->gather, conduct->seats, conduct->reach.apart, &team->far));
  TRY(team_settle(team, conduct->comms));
  return team_open_comms(team, conduct->comms, child);
}

static ncclResult_t conduct_teams(struct conduct *conduct) {
  const struct meeting_call *first = &conduct->meeting->first;
  uint32_t member_count = 0;
  TRY(conduct_sort(conduct, &member_count));
  for (uint32_t begin = 0, end; begin < member_count; begin = end) {
    const int color = conduct->members[begin].color;
    for (end = begin + 1; end < member_count && conduct->members[end].color == color;) end += 1;
    const bool child = first->kind == MEETING_SPLIT;
    TRY(conduct_team(conduct, begin, end, child ? meeting_child_id(first, color) : first->comm_id,
                     child ? meeting_wire_key(conduct->meeting->wire_key, (uint32_t)color + 1ull)
                           : conduct->meeting->wire_key));
  }
  return ncclSuccess;
}

/* What conduct_teams() opened is closed again; communicators of an INIT keep the half that they came with. */
static void conduct_undo(struct conduct *conduct) {
  const bool child = conduct->meeting->first.kind == MEETING_SPLIT;
  for (uint32_t i = 0; i < conduct->team_count; i++) {
    struct team *team = conduct->teams[i];
    if (team->far) far_watch_leave(team->far);
    far_free(team->far);
    team->far = NULL;
    for (uint32_t rank = 0; child && rank < team->rank_count; rank++)
      if (team->device_comms[rank]) conduct->ops->comm_close(team->device_comms[rank]);
    team_free(team);
  }
  for (uint32_t i = 0; child && i < conduct->meeting->first.seat_count; i++)
    if (conduct->meeting->seats[i].comm) conduct->meeting->seats[i].comm->device_comm = NULL;
}

/* ---- The thread ---- */

static ncclResult_t conduct_alloc(struct conduct *conduct) {
  const uint32_t count = conduct->meeting->first.seat_count;
  conduct->teams = (struct team **)os_alloc(count * sizeof *conduct->teams);
  conduct->members = (struct far_member *)os_alloc(count * sizeof *conduct->members);
  conduct->seats = (uint32_t *)os_alloc(count * sizeof *conduct->seats);
  conduct->comms = (struct ncclComm **)os_alloc(count * sizeof *conduct->comms);
  if (conduct->teams && conduct->members && conduct->seats && conduct->comms) return ncclSuccess;
  return log_fail(ncclSystemError, "no memory to meet %u ranks", count);
}

static ncclResult_t conduct_watch(struct conduct *conduct) {
  struct far_watch *watch;
  TRY(far_watch_open(conduct->gather, &watch));
  for (uint32_t i = 0; i < conduct->team_count; i++) far_watch_join(watch, conduct->teams[i]->far);
  far_watch_drop(watch);
  return ncclSuccess;
}

/* A failure of this process's own has its sentence in the log; the others are told it. */
static ncclResult_t conduct_note(struct conduct *conduct, ncclResult_t result) {
  if (result != ncclSuccess) snprintf(conduct->reason, sizeof conduct->reason, "%s", log_own_error());
  return result;
}

/* A child's device-side half is not there yet, and its parent's may go. */
static ncclResult_t conduct_reach(struct conduct *conduct) {
  const struct meeting_call *first = &conduct->meeting->first;
  struct device_comm *model = NULL;
  for (uint32_t i = 0; !model && first->kind == MEETING_INIT && i < first->seat_count; i++)
    if (conduct->meeting->seats[i].comm) model = conduct->meeting->seats[i].comm->device_comm;
  return reach_try(conduct->gather, first->call, conduct->ops, model, first->seat_count, &conduct->reach,
                   conduct->reason, sizeof conduct->reason);
}

/* Where the network was to replace memory that cannot be mapped, both sentences say what is wrong. */
static ncclResult_t conduct_make(struct conduct *conduct) {
  const ncclResult_t result = conduct_note(conduct, conduct_teams(conduct));
  char why[COMM_REASON_BYTES];
  if (result == ncclSuccess || conduct->reach.why[0] == '\0') return result;
  snprintf(why, sizeof why, "%s", conduct->reason);
  snprintf(conduct->reason, sizeof conduct->reason, "%.255s; and instead: %.239s", conduct->reach.why, why);
  return result;
}

/* Where the time went, and what it cost; as told in bench/bootstrap.c, for a run of one's own. */
static void conduct_report(const struct conduct *conduct, uint64_t begin_ns, uint64_t opened_ns) {
  const struct gather_cost cost = gather_costs(conduct->gather);
  log_info(
      LOG_INIT,
      "%s: Init timings: %u ranks in %u processes: total %.2f ms (check-in %.2f, cards in %u rounds %.2f, "
      "communicators %.2f, agreement %.2f), %llu bytes sent, %llu received, %llu through the root here",
      conduct->meeting->first.call, conduct->meeting->first.seat_count, gather_party_count(conduct->gather),
      (double)(os_time_ns() - begin_ns) * 1e-6, (double)cost.check_in_ns * 1e-6, cost.rounds,
      (double)cost.exchange_ns * 1e-6, (double)opened_ns * 1e-6, (double)cost.agree_ns * 1e-6,
      (unsigned long long)cost.sent_bytes, (unsigned long long)cost.received_bytes,
      (unsigned long long)cost.root_bytes);
}

static ncclResult_t conduct_meet(struct conduct *conduct) {
  const uint64_t begin_ns = os_time_ns();
  const struct meeting *meeting = conduct->meeting;
  const struct gather_call call = {meeting->first.call,
                                   meeting->wire_key,
                                   meeting->first.roots,
                                   meeting->first.root_count,
                                   meeting->first.kind == MEETING_SPLIT,
                                   meeting->first.seat_count,
                                   meeting->first.signature,
                                   meeting->first.id.fixed,
                                   meeting->first.id.lasting};
  TRY(conduct_note(conduct, conduct_alloc(conduct)));
  TRY(conduct_note(conduct, gather_open(&call, &conduct->gather)));
  const ncclResult_t checked_in = conduct_check_in_all(conduct);
  if (checked_in != ncclSuccess) gather_cancel(conduct->gather, checked_in, log_own_error());
  TRY(gather_wait(conduct->gather, conduct->reason, sizeof conduct->reason));
  TRY(conduct_reach(conduct));
  const uint64_t met_ns = os_time_ns();
  const ncclResult_t made = conduct_make(conduct);
  const uint64_t opened_ns = os_time_ns() - met_ns;
  TRY(gather_agree(conduct->gather, made, conduct->reason, sizeof conduct->reason));
  conduct_report(conduct, begin_ns, opened_ns);
  return conduct_note(conduct, conduct_watch(conduct));
}

/* Nobody enters the gather any more. */
static void conduct_leave_gather(struct conduct *conduct) {
  bool busy = true;
  while (busy) {
    conduct->ops->lock();
    busy = conduct->meeting->checking_in > 0;
    if (!busy) conduct->meeting->gather = NULL;
    conduct->ops->unlock();
    if (busy) os_sleep_ms(1);
  }
  gather_close(conduct->gather);
}

static void conduct_publish(struct conduct *conduct) {
  for (uint32_t i = 0; i < conduct->team_count; i++) {
    struct team *team = conduct->teams[i];
    team_enlist(team);
    for (uint32_t rank = 0; rank < team->rank_count; rank++)
      if (team->far->comms[rank]) comm_join_team(team->far->comms[rank], team);
  }
  meeting_publish(conduct->meeting);
}

static void *conduct_body(void *argument) {
  struct conduct conduct;
  memset(&conduct, 0, sizeof conduct);
  conduct.meeting = (struct meeting *)argument;
  conduct.ops = backend_device_ops();
  const ncclResult_t result = conduct_meet(&conduct);
  if (result != ncclSuccess) conduct_undo(&conduct);
  conduct_leave_gather(&conduct);
  meeting_root_end(&conduct.meeting->first); /* before the next communicator of the same place can begin */
  if (result != ncclSuccess) log_warn("%s: %s", conduct.meeting->first.call, conduct.reason);
  conduct.ops->lock();
  if (result == ncclSuccess) conduct_publish(&conduct);
  else meeting_end(conduct.meeting, result, conduct.reason);
  meeting_unlock(conduct.ops);
  os_free(conduct.reach.apart);
  os_free(conduct.teams);
  os_free(conduct.members);
  os_free(conduct.seats);
  os_free(conduct.comms);
  return NULL;
}

ncclResult_t meeting_conduct(struct meeting *meeting) {
  static const char failed[] = "no thread could be started to meet ranks of other processes";
  os_thread thread;
  meeting->conducted = true;
  if (os_thread_start(&thread, conduct_body, meeting)) {
    os_thread_detach(thread);
    return ncclSuccess;
  }
  meeting->conducted = false;
  const ncclResult_t result =
      log_fail(ncclSystemError, "%s: %s; raise ulimit -u", meeting->first.call, failed);
  meeting_end(meeting, result, failed);
  return result;
}

/* On the control server's thread: a rank of another process has checked in with a root of this one. */
void meeting_called(uint64_t nonce) {
  const struct device_ops *ops = backend_device_ops();
  ops->lock();
  struct meeting *meeting = meeting_find_nonce(nonce);
  if (meeting && !meeting->conducted) meeting_conduct(meeting); /* else the first to join sees it */
  ops->unlock();
}
