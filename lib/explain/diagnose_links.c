/* diagnose_links.c: a rank waits for something that its peer's rows show as done. Either a step counter
 * between them is stale or corrupt, or a message is in a network. */
#include <inttypes.h>
#include <string.h>

#include "explain/comm_ranks.h"

static const struct record_proxy *proxy_find(const struct rank_state *state, uint32_t peer, uint8_t channel,
                                             bool sends) {
  for (uint32_t row = 0; row < state->view->proxy_rows; row++) {
    const struct record_proxy *proxy = &state->view->proxies[row];
    if (proxy->used != 1 || proxy->peer != peer || proxy->channel != channel) continue;
    if (((proxy->conn & RECORD_LINK_SENDS) != 0) == sends) return proxy;
  }
  return NULL;
}

/* A wait, and both ends of its link. */
struct wait {
  const struct rank_state *state, *peer; /* the rank that waits, and the rank that it waits for */
  const struct record_lane *lane;
  const struct record_link *own, *theirs; /* NULL: not recorded */
  const struct record_proxy *sender,
      *receiver; /* proxies of both ends; NULL if there is no network between */
  bool sends;    /* `state` is the sender and waits for a free slot */
};

/* The lane may wait on this link. Over LL a lane counts the LL lines of a step, so its counts cannot be
 * compared with the link's. */
static bool link_fits(const struct wait *wait, const struct record_link *link) {
  const bool ll = wait->lane->wait == WAITS_LL;
  if (link->used != 1 || link->peer != wait->lane->peer || link->channel != wait->lane->channel) return false;
  if (((link->conn & RECORD_LINK_SENDS) != 0) != wait->sends) return false;
  if (ll) return link->proto != PROTO_SIMPLE;
  if (link->step >= wait->lane->need) return false;
  return wait->sends ? link->head <= wait->lane->have : link->tail == wait->lane->have;
}

/* The row of the link that the lane waits on. Several links may lead to one peer; over LL nothing tells them
 * apart, so the result is NULL unless there is only one. */
static const struct record_link *own_link(const struct wait *wait) {
  const struct record_link *found = NULL;
  for (uint32_t row = 0; row < wait->state->view->link_rows; row++) {
    const struct record_link *link = &wait->state->view->links[row];
    if (!link_fits(wait, link)) continue;
    if (wait->lane->wait != WAITS_LL) return link;
    if (found != NULL) return NULL;
    found = link;
  }
  return found;
}

static const struct record_link *other_end(const struct wait *wait) {
  const uint8_t conn = wait->own != NULL ? wait->own->conn ^ RECORD_LINK_SENDS : 0;
  for (uint32_t row = 0; wait->own != NULL && row < wait->peer->view->link_rows; row++) {
    const struct record_link *link = &wait->peer->view->links[row];
    if (link->used != 1 || link->peer != rank_number(wait->state) || link->channel != wait->lane->channel)
      continue;
    if (link->conn == conn && link->proto == wait->own->proto) return link;
  }
  return NULL;
}

static struct wait wait_read(const struct comm_ranks *ranks, const struct rank_state *state,
                             const struct record_lane *lane) {
  struct wait wait = {.state = state, .peer = ranks_find(ranks, lane->peer), .lane = lane};
  wait.sends = lane->wait == WAITS_SLOT;
  if (wait.peer == NULL || wait.peer == state) return wait;
  const struct rank_state *from = wait.sends ? state : wait.peer, *to = wait.sends ? wait.peer : state;
  wait.own = own_link(&wait);
  wait.theirs = other_end(&wait);
  wait.sender = proxy_find(from, rank_number(to), lane->channel, true);
  wait.receiver = proxy_find(to, rank_number(from), lane->channel, false);
  return wait;
}

/* ---- counters ---- */

/* The slots that a receiver may have freed before it knows that they were filled: a two-shot all-reduce reads
 * the inputs of others in place, and then waits for the next step. */
static uint64_t freed_ahead(const struct wait *wait) {
  const struct record_call *call = rank_find_call(wait->state, wait->lane->sequence);
  return call != NULL && call->func == FUNC_ALL_REDUCE && wait->own->proto == PROTO_SIMPLE;
}

/* Names the counter whose value is impossible: more slots freed than filled, or more filled than there are.
 */
static const char *wait_contradicts(const struct wait *wait) {
  const struct record_link *own = wait->own;
  if (own == NULL || wait->sender != NULL || wait->receiver != NULL) return NULL;
  if (wait->state->view->comm->counts == RECORD_COUNTS_SEEN) return NULL; /* read at different times */
  if (wait->lane->wait == WAITS_DATA)
    return own->tail != 0 && own->tail + freed_ahead(wait) < own->head ? "tail" : NULL; /* 0: not read yet */
  if (!wait->sends) return NULL; /* over LL a line carries its own flag, so there is no counter */
  const uint64_t slots = wait->lane->have - own->head;
  return own->head > own->tail || own->head + slots < own->tail ? "head" : NULL;
}

/* The operation that the lane is in has ended on the peer. */
static bool peer_has_ended(const struct wait *wait) {
  const struct record_call *call = rank_find_call(wait->state, wait->lane->sequence);
  if (call == NULL || !rank_knows_ends(wait->peer)) return false;
  if (wait->state->graph) { /* it ends once for each launch of the graph */
    const struct record_comm *own = wait->state->view->comm, *peer = wait->peer->view->comm;
    return own->graph_runs != 0 && !wait->peer->graph && (int32_t)(peer->graph_runs - own->graph_runs) >= 0;
  }
  if (!is_message(call->func)) return rank_has_ended(wait->peer, call->collective);
  if (call->peer != rank_number(wait->peer)) return false;
  const struct record_call *partner = message_partner(wait->state, wait->peer, call);
  return partner != NULL && widen(wait->peer->view->comm->calls, partner->sequence) < wait->peer->done;
}

/* The peer has done what the wait is for: its own row shows it, or its whole operation has ended. */
static bool wait_is_met(const struct wait *wait) {
  if (wait->lane->wait == WAITS_OFFER) return false;
  if (peer_has_ended(wait)) return true;
  if (wait->theirs == NULL || wait->own == NULL) return false;
  if (wait->lane->wait == WAITS_LL) return wait->sender != NULL && wait->theirs->tail > wait->own->step;
  if (!wait->sends) return wait->theirs->tail >= wait->lane->need;
  return wait->theirs->head + (wait->lane->have - wait->own->head) >= wait->lane->need;
}

static void report_counter(struct comm_ranks *ranks, const struct wait *wait, const char *wrong) {
  char name[64], place[160];
  const struct record_link *own = wait->own;
  const uint32_t rank = rank_number(wait->state), peer = rank_number(wait->peer);
  const char *counter = wait->sends ? "head" : "tail";
  blame(ranks, DIAGNOSIS_COUNTER, wrong != NULL ? "corrupted" : "stale", wait->peer);
  cite(ranks->diagnosis, wait->state, rank_find_call(wait->state, wait->lane->sequence));
  rank_place(wait->state, place);
  if (wrong != NULL)
    say(ranks->diagnosis->sentence,
        "operation #%u of comm %s hangs because a step counter is corrupted: on channel %u at step %u, %s "
        "sees "
        "%s %" PRIu64 " from rank %u, with %s %" PRIu64 " of its own",
        wait->lane->sequence, ranks_comm_name(ranks, name), wait->lane->channel, wait->lane->step, place,
        counter, wait->sends ? own->head : own->tail, peer, wait->sends ? "tail" : "head",
        wait->sends ? own->tail : own->head);
  else
    say(ranks->diagnosis->sentence,
        "operation #%u of comm %s hangs because a step counter is stale: on channel %u at step %u, %s waits "
        "for "
        "%s rank %u, and has %" PRIu64 " of %" PRIu64 ", which rank %u has %s",
        wait->lane->sequence, ranks_comm_name(ranks, name), wait->lane->channel, wait->lane->step, place,
        wait_texts[wait->lane->wait], peer, wait->lane->have, wait->lane->need, peer,
        wait->theirs != NULL && !rank_pends(wait->peer) ? "behind it" : "given");
  if (wait->theirs != NULL)
    show(ranks->diagnosis,
         "rank %u, channel %u, its end towards rank %u: step %" PRIu64 ", head %" PRIu64 ", tail %" PRIu64,
         peer, wait->lane->channel, rank, wait->theirs->step, wait->theirs->head, wait->theirs->tail);
  say(ranks->diagnosis->next,
      "what rank %u stores does not reach rank %u as it should: look at the link between their devices (Xid "
      "and ECC errors, peer access), and keep these files for a report",
      peer, rank);
}

/* ---- networks ---- */

struct gap {
  const char *detail, *text;
  const struct rank_state *at;
  const struct record_proxy *proxy;
  uint32_t before, after;
};

/* The first two successive counters, from the sender's kernel to the receiver's, that differ. */
static bool gap_find(const struct wait *wait, bool met, struct gap *gap) {
  const struct record_proxy *s = wait->sender, *r = wait->receiver;
  const struct rank_state *from = wait->sends ? wait->state : wait->peer,
                          *to = wait->sends ? wait->peer : wait->state;
  /* A message that the receiver has not posted a buffer for is not missing. */
  const uint32_t sent = (int32_t)(r->posted - s->transmitted) < 0 ? r->posted : s->transmitted;
  const uint32_t arrived = (int32_t)(r->received - s->transmitted) < 0 ? r->received : s->transmitted;
  const struct gap gaps[] = {
      {"posted, transmitted", "has not handed it to the network", from, s, s->posted, s->transmitted},
      {"transmitted, received", "has handed it to the network, which has not brought it", from, s, sent,
       r->received},
      {"received, flushed", "has received it, and its flush has not ended", to, r, r->received, r->flushed},
      {"flushed, transmitted", "has flushed it, and not told its kernel", to, r, r->flushed, r->transmitted},
      {"transmitted, done", "has handed it to the network, where it has arrived, and which does not say so",
       from, s, arrived, s->done}};
  const uint32_t first = met ? 0 : 1, end = wait->sends ? 5 : 4;
  for (uint32_t i = first; i < end; i++) {
    *gap = gaps[i];
    if ((int32_t)(gap->before - gap->after) > 0) return true;
  }
  return false;
}

static void report_gap(struct comm_ranks *ranks, const struct wait *wait, const struct gap *gap) {
  char name[64], place[160];
  const struct rank_state *from = wait->sends ? wait->state : wait->peer,
                          *to = wait->sends ? wait->peer : wait->state;
  const char *comma = strchr(gap->detail, ',');
  rank_place(gap->at, place);
  blame(ranks, DIAGNOSIS_PROXY, gap->detail, gap->at);
  cite(ranks->diagnosis, wait->state, rank_find_call(wait->state, wait->lane->sequence));
  say(ranks->diagnosis->sentence,
      "operation #%u of comm %s hangs because of a message of channel %u from rank %u to rank %u: the proxy "
      "of %s %s; %.*s %u, %s %u",
      wait->lane->sequence, ranks_comm_name(ranks, name), wait->lane->channel, rank_number(from),
      rank_number(to), place, gap->text, (int)(comma - gap->detail), gap->detail, gap->before, comma + 2,
      gap->after);
  say(ranks->diagnosis->next,
      "look at the network from rank %u to rank %u: its ports' counters, its plugin's log", rank_number(from),
      rank_number(to));
}

static bool diagnose_wait(struct comm_ranks *ranks, const struct wait *wait) {
  struct gap gap;
  if (wait->peer == NULL || wait->peer == wait->state || wait->lane->wait == WAITS_OFFER) return false;
  const char *wrong = wait_contradicts(wait);
  const bool met = wrong != NULL || wait_is_met(wait);
  if (wait->sender != NULL && wait->receiver != NULL) {
    if (!gap_find(wait, met, &gap)) return false;
    show_waits(ranks);
    report_gap(ranks, wait, &gap);
    return true;
  }
  if (!met) return false;
  show_waits(ranks);
  report_counter(ranks, wait, wrong);
  return true;
}

/* Counters with impossible values come first: they may cause the contradictions between the two ends. */
bool diagnose_links(struct comm_ranks *ranks) {
  for (int pass = 0; pass < 2; pass++)
    for (uint32_t i = 0; i < ranks->count; i++) {
      uint32_t row = 0;
      for (const struct record_lane *lane = rank_next_wait(&ranks->states[i], &row); lane != NULL;
           row++, lane = rank_next_wait(&ranks->states[i], &row)) {
        const struct wait wait = wait_read(ranks, &ranks->states[i], lane);
        if (pass == 0 && wait.peer != NULL && wait_contradicts(&wait) == NULL) continue;
        if (diagnose_wait(ranks, &wait)) return true;
      }
    }
  return false;
}
