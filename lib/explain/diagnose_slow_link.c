/* diagnose_slow_link.c: messages arrive, but those of one connection take long. Sender and receiver both
 * record how long they wait for the network. If a rank is late, only one end of its connections waits; if the
 * network is slow, both do. So a connection counts as slow as the end that waits less, and is compared with
 * all others. Connections whose other end left no file are ignored. */
#include <inttypes.h>
#include <string.h>

#include "base/os.h"
#include "explain/comm_ranks.h"

#define MESSAGES_LEAST 8u
#define MESSAGE_NS_LEAST 100000.0 /* a message that takes less is never slow */
#define SHARE_LEAST 0.05          /* part of the measured time that both ends waited */
#define APART 3.0                 /* the other connections are at least this many times as fast */
/* A wait longer than this many messages take, and longer than this time, is for a lost message. */
#define STILL_MESSAGES 16.0
#define STILL_NS 1e9

/* A connection that both ends have recorded. */
struct conn {
  const struct rank_state *from, *to;
  const struct record_pace *out, *in;
  double share;      /* part of the time that both ends waited for the network */
  double message_ns; /* mean wait per message */
};

struct conns {
  struct conn *items;
  uint32_t count, slow;          /* items, of which the first `slow` are slow */
  double message_ns;             /* of the slowest connection */
  double rest_ns, rest_messages; /* sums over the connections that are not slow */
  uint32_t rank, peer; /* the rank, or both ranks, that all slow connections have; peer == rank if one */
};

/* The latest time in the file. */
static uint64_t rank_now(const struct rank_state *state) {
  uint64_t now = state->file->header.last_ticks;
  if (state->view->comm->moved_ticks > now) now = state->view->comm->moved_ticks;
  for (uint32_t row = 0; row < state->view->pace_rows; row++)
    if (state->view->paces[row].since > now) now = state->view->paces[row].since;
  return now;
}

static double waited_ticks(const struct record_pace *pace) { return (double)pace->waited * RECORD_PACE_UNIT; }

static double pace_share(const struct rank_state *state, const struct record_pace *pace) {
  const uint64_t now = rank_now(state);
  return now > pace->begin ? waited_ticks(pace) / (double)(now - pace->begin) : 0;
}

static double ticks_ns(const struct rank_state *state, double ticks) {
  const struct record_header *header = &state->file->header;
  return record_elapsed_ns(header, header->first_ticks + (uint64_t)ticks);
}

static double message_ns(const struct rank_state *state, const struct record_pace *pace) {
  return pace->count > 0 ? ticks_ns(state, waited_ticks(pace)) / pace->count : 0;
}

static const struct record_pace *other_end(const struct rank_state *state, uint32_t peer,
                                           const struct record_pace *pace) {
  for (uint32_t row = 0; row < state->view->pace_rows; row++) {
    const struct record_pace *other = &state->view->paces[row];
    if (other->used == 1 && other->peer == peer && other->channel == pace->channel &&
        other->conn == (pace->conn ^ RECORD_LINK_SENDS))
      return other;
  }
  return NULL;
}

static bool conn_read(const struct comm_ranks *ranks, const struct rank_state *from,
                      const struct record_pace *out, struct conn *conn) {
  if (out->used != 1 || (out->conn & RECORD_LINK_SENDS) == 0) return false;
  *conn = (struct conn){.from = from, .to = ranks_find(ranks, out->peer), .out = out};
  if (conn->to == NULL) return false;
  conn->in = other_end(conn->to, rank_number(from), out);
  if (conn->in == NULL || out->count == 0) return false;
  const double sender = pace_share(from, out), receiver = pace_share(conn->to, conn->in);
  const double sent_ns = message_ns(from, out), received_ns = message_ns(conn->to, conn->in);
  conn->share = sender < receiver ? sender : receiver;
  conn->message_ns = sent_ns < received_ns ? sent_ns : received_ns;
  return true;
}

static void conns_read(const struct comm_ranks *ranks, struct conns *conns) {
  for (uint32_t i = 0; i < ranks->count; i++)
    for (uint32_t row = 0; row < ranks->states[i].view->pace_rows; row++) {
      struct conn *conn = &conns->items[conns->count];
      if (!conn_read(ranks, &ranks->states[i], &ranks->states[i].view->paces[row], conn)) continue;
      if (conn->message_ns > conns->message_ns) conns->message_ns = conn->message_ns;
      conns->count += 1;
    }
}

/* Moves the slow connections to the front; true if the others are faster by the factor APART on average. */
static bool conns_part(struct conns *conns) {
  for (uint32_t i = 0; i < conns->count; i++) {
    const struct conn conn = conns->items[i];
    if (conn.message_ns * 3 < conns->message_ns * 2) {
      conns->rest_ns += conn.message_ns * conn.out->count;
      conns->rest_messages += conn.out->count;
      continue;
    }
    conns->items[i] = conns->items[conns->slow];
    conns->items[conns->slow++] = conn;
  }
  return conns->rest_messages > 0 && conns->rest_ns / conns->rest_messages * APART < conns->message_ns;
}

static bool conn_touches(const struct conn *conn, uint32_t rank) {
  return rank_number(conn->from) == rank || rank_number(conn->to) == rank;
}

static bool all_touch(const struct conns *conns, uint32_t rank) {
  for (uint32_t i = 0; i < conns->slow; i++)
    if (!conn_touches(&conns->items[i], rank)) return false;
  return true;
}

/* All slow connections join one pair of ranks, or have one rank in common. */
static bool conns_meet(struct conns *conns) {
  const uint32_t from = rank_number(conns->items[0].from), to = rank_number(conns->items[0].to);
  const bool has_from = all_touch(conns, from), has_to = all_touch(conns, to);
  conns->rank = has_from ? from : to;
  conns->peer = has_from && has_to ? to : conns->rank;
  return has_from || has_to;
}

/* A wait much longer than the earlier ones is for a lost message, not for a slow link. */
static bool conn_is_stuck(const struct conn *conn) {
  const uint64_t since = conn->out->since, now = rank_now(conn->from);
  if (since == 0 || now <= since) return false;
  const double still_ns = ticks_ns(conn->from, (double)(now - since));
  return still_ns > STILL_NS && still_ns > STILL_MESSAGES * conn->message_ns;
}

static bool conn_is_slow(const struct conn *conn) {
  return conn->out->count >= MESSAGES_LEAST && conn->message_ns >= MESSAGE_NS_LEAST &&
         conn->share >= SHARE_LEAST && !conn_is_stuck(conn);
}

static void show_conns(struct diagnosis *diagnosis, const struct conns *conns) {
  for (uint32_t i = 0; i < conns->slow && i < 8; i++) {
    const struct conn *conn = &conns->items[i];
    show(diagnosis,
         "channel %u, from rank %u (network device %u) to rank %u (%u): %.3f ms for each of the last %u "
         "messages; both ends waited for it %.0f %% of the time",
         conn->out->channel, rank_number(conn->from), conn->out->device, rank_number(conn->to),
         conn->in->device, conn->message_ns / 1e6, conn->out->count, 100 * conn->share);
  }
  show(diagnosis, "other connections over networks, %u of them: %.3f ms a message",
       conns->count - conns->slow, conns->rest_ns / conns->rest_messages / 1e6);
}

static void report_conns(struct comm_ranks *ranks, const struct conns *conns) {
  const struct conn *conn = &conns->items[0];
  const struct rank_state *at = ranks_find(ranks, conns->rank);
  char place[160], name[64], link[96];
  const bool pair = conns->peer != conns->rank;
  if (pair)
    snprintf(link, sizeof link, "the link from rank %u to rank %u", rank_number(conn->from),
             rank_number(conn->to));
  else snprintf(link, sizeof link, "what leads to and from rank %u", conns->rank);
  blame(ranks, DIAGNOSIS_SLOW, "link", at);
  rank_place(at, place);
  say(ranks->diagnosis->sentence,
      "%s of comm %s is slow, not hung: on channel %u, network device %u of %s, a message takes %.3f ms",
      link, ranks_comm_name(ranks, name), conn->out->channel,
      at == conn->from ? conn->out->device : conn->in->device, place, conn->message_ns / 1e6);
  show_conns(ranks->diagnosis, conns);
  say(ranks->diagnosis->next,
      "look at the network from rank %u to rank %u: speed and error counters of both ports and of the "
      "switches between them, what else uses them",
      rank_number(conn->from), rank_number(conn->to));
}

bool diagnose_slow_link(struct comm_ranks *ranks) {
  struct conns conns = {.count = 0};
  uint32_t rows = 0;
  if (ranks_are_deadlocked(ranks)) return false; /* a slow machine makes the waits before a deadlock long */
  for (uint32_t i = 0; i < ranks->count; i++) rows += ranks->states[i].view->pace_rows;
  if (rows == 0) return false;
  conns.items = (struct conn *)os_alloc(rows * sizeof *conns.items);
  if (conns.items == NULL) return false;
  conns_read(ranks, &conns);
  const bool slow = conns_part(&conns) && conn_is_slow(&conns.items[0]) && conns_meet(&conns);
  if (slow) report_conns(ranks, &conns);
  os_free(conns.items);
  return slow;
}
