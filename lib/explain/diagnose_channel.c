/* diagnose_channel.c: all ranks launched the operation and it hangs. Follows the waits of lanes from rank to
 * rank, until it reaches a rank that waits for no other. */
#include <inttypes.h>
#include <string.h>

#include "base/os.h"
#include "explain/comm_ranks.h"

const char *const wait_texts[] = {"nothing",     "an output to be offered by", "data of", "a free slot at",
                                  "LL lines of", "another list, number"};

/* Adds a line of evidence for each network message of the rank's proxies that has not ended. */
static void show_proxies(const struct comm_ranks *ranks, const struct rank_state *state) {
  for (uint32_t row = 0, lines = 0; row < state->view->proxy_rows && lines < 2; row++) {
    const struct record_proxy *proxy = &state->view->proxies[row];
    if (proxy->used != 1 || proxy->posted == proxy->done) continue;
    const bool sends = (proxy->conn & RECORD_LINK_SENDS) != 0;
    lines += 1;
    show(ranks->diagnosis, "rank %u's proxy, channel %u, %s rank %u: posted %u, %s %u, done %u%s",
         rank_number(state), proxy->channel, sends ? "to" : "from", proxy->peer, proxy->posted,
         sends ? "transmitted" : "received", sends ? proxy->transmitted : proxy->received, proxy->done,
         proxy->connected ? "" : "; not connected");
  }
}

void show_waits(const struct comm_ranks *ranks) {
  for (uint32_t i = 0; i < ranks->count; i++) {
    const struct rank_state *state = &ranks->states[i];
    const struct record_lane *lane = rank_first_wait(state);
    if (lane == NULL) continue;
    show(ranks->diagnosis,
         "rank %u, channel %u, operation #%u: is at step %u and waits for %s rank %u (%" PRIu64 " of %" PRIu64
         ")",
         rank_number(state), lane->channel, lane->sequence, lane->step, wait_texts[lane->wait], lane->peer,
         lane->have, lane->need);
    show_proxies(ranks, state);
  }
}

static void channel_absent(struct comm_ranks *ranks, const struct rank_state *waiter,
                           const struct record_lane *lane) {
  char name[64];
  blame(ranks, DIAGNOSIS_ABSENT, NULL, NULL);
  cite(ranks->diagnosis, waiter, rank_find_call(waiter, lane->sequence));
  ranks->diagnosis->rank = lane->peer;
  say(ranks->diagnosis->sentence,
      "rank %u of comm %s left no file, and rank %u waits for it in operation #%u, on channel %u at step %u",
      lane->peer, ranks_comm_name(ranks, name), rank_number(waiter), lane->sequence, lane->channel,
      lane->step);
  say(ranks->diagnosis->next, "find out what became of rank %u, and add its file if there is one",
      lane->peer);
}

/* A lane on this channel that waits for nothing and yet makes no progress; NULL if there is none. */
static const struct record_lane *rank_still(const struct rank_state *state, uint8_t channel) {
  uint32_t row = 0;
  for (const struct record_lane *lane = rank_next_lane(state, &row); lane != NULL;
       row++, lane = rank_next_lane(state, &row))
    if (lane->wait == WAITS_NOT && lane->channel == channel) return lane;
  return NULL;
}

/* A rank that others wait for on a channel. */
struct place {
  uint32_t state;
  uint8_t channel;
};

/* The search for the end of a chain of waits: a rank whose lanes wait for no other rank. */
struct chain {
  const struct comm_ranks *ranks;
  bool *seen;          /* by rank */
  struct place *queue; /* places still to visit */
  uint32_t first, end_of_queue;
  const struct rank_state *waiter, *end; /* the last two of the chain; end is NULL if the rank left no file */
  const struct record_lane *lane;        /* the waiter's */
};

/* The position of an operation among the rank's collectives: 2 for each collective before it, and 1 if it is
 * a collective itself. A message between two collectives lies between their positions. */
static uint64_t lane_place(const struct rank_state *state, const struct record_lane *lane) {
  const struct record_call *call = rank_find_call(state, lane->sequence);
  return call != NULL ? 2 * (uint64_t)call->collective + !is_message(call->func) : 0;
}

static bool waits_on(const struct rank_state *state, uint8_t channel) {
  uint32_t row = 0;
  for (const struct record_lane *lane = rank_next_wait(state, &row); lane != NULL;
       row++, lane = rank_next_wait(state, &row))
    if (lane->channel == channel) return true;
  return false;
}

static bool waits_before(const struct rank_state *state, uint64_t place) {
  uint32_t row = 0;
  for (const struct record_lane *lane = rank_next_wait(state, &row); lane != NULL;
       row++, lane = rank_next_wait(state, &row))
    if (lane_place(state, lane) < place) return true;
  return false;
}

static void chain_queue(struct chain *chain, uint32_t state, uint8_t channel) {
  chain->seen[state] = true;
  chain->queue[chain->end_of_queue++] = (struct place){state, channel};
}

/* From one rank to those that it waits for: on the channel on which others wait for it or, if it is still in
 * an earlier operation, on any channel. True if one of them waits for no other. */
static bool chain_step(struct chain *chain, struct place place) {
  const struct comm_ranks *ranks = chain->ranks;
  const struct rank_state *state = &ranks->states[place.state];
  const bool here = waits_on(state, place.channel);
  uint32_t row = 0;
  for (const struct record_lane *lane = rank_next_wait(state, &row); lane != NULL;
       row++, lane = rank_next_wait(state, &row)) {
    const struct rank_state *next = ranks_find(ranks, lane->peer);
    if (next == state || (here && lane->channel != place.channel)) continue;
    if (next != NULL && chain->seen[next - ranks->states]) continue;
    chain->waiter = state, chain->lane = lane, chain->end = next;
    if (next == NULL || rank_still(next, lane->channel) != NULL) return true;
    if (!waits_on(next, lane->channel) && !waits_before(next, lane_place(state, lane))) return true;
    chain_queue(chain, (uint32_t)(next - ranks->states), lane->channel);
  }
  return false;
}

/* Starts from every rank that waits on the channel; true if a chain has an end. */
static bool chain_follow(struct chain *chain, uint8_t channel) {
  chain->first = chain->end_of_queue = 0;
  memset(chain->seen, 0, chain->ranks->count * sizeof *chain->seen);
  for (uint32_t i = 0; i < chain->ranks->count; i++) {
    if (chain->seen[i] || !waits_on(&chain->ranks->states[i], channel)) continue;
    chain_queue(chain, i, channel);
    while (chain->first < chain->end_of_queue)
      if (chain_step(chain, chain->queue[chain->first++])) return true;
  }
  return false;
}

static void report_chain(struct comm_ranks *ranks, const struct chain *chain, bool cycle) {
  char place[160], name[64], why[200] = "which waits for nobody";
  const struct record_lane *lane = chain->lane;
  const struct record_lane *still = rank_still(chain->end, lane->channel);
  if (still != NULL)
    snprintf(why, sizeof why, "which is stuck at step %u of channel %u and waits for nobody", still->step,
             still->channel);
  rank_place(chain->end, place);
  blame(ranks, DIAGNOSIS_CHANNEL, cycle ? "cycle" : lane->wait == WAITS_SLOT ? "slot" : "data", chain->end);
  cite(ranks->diagnosis, chain->waiter, rank_find_call(chain->waiter, lane->sequence));
  if (cycle)
    say(ranks->diagnosis->sentence,
        "operation #%u of comm %s hangs in a cycle of waits through %s: rank %u waits at step %u of channel "
        "%u for %s rank %u",
        lane->sequence, ranks_comm_name(ranks, name), place, rank_number(chain->waiter), lane->step,
        lane->channel, wait_texts[lane->wait], lane->peer);
  else
    say(ranks->diagnosis->sentence,
        "operation #%u of comm %s hangs because of %s, %s: rank %u waits at step %u of channel %u for %s "
        "rank %u",
        lane->sequence, ranks_comm_name(ranks, name), place, why, rank_number(chain->waiter), lane->step,
        lane->channel, wait_texts[lane->wait], lane->peer);
  say(ranks->diagnosis->next,
      "look at rank %u's device and at the link from it to rank %u; if the library is at fault, keep these "
      "files for a report",
      rank_number(chain->end), rank_number(chain->waiter));
}

/* A bit for each channel on which a rank waits. */
static uint64_t ranks_channels(const struct comm_ranks *ranks) {
  uint64_t channels = 0;
  for (uint32_t i = 0; i < ranks->count; i++) {
    uint32_t row = 0;
    for (const struct record_lane *lane = rank_next_wait(&ranks->states[i], &row); lane != NULL;
         row++, lane = rank_next_wait(&ranks->states[i], &row))
      channels |= UINT64_C(1) << lane->channel % 64;
  }
  return channels;
}

bool diagnose_channel(struct comm_ranks *ranks) {
  const uint64_t channels = ranks_channels(ranks);
  struct chain chain = {.ranks = ranks};
  bool found = false;
  chain.seen = (bool *)os_alloc(ranks->count * sizeof *chain.seen);
  chain.queue = (struct place *)os_alloc(ranks->count * sizeof *chain.queue);
  for (uint8_t channel = 0; channel < 64 && !found && chain.seen != NULL && chain.queue != NULL; channel++)
    if ((channels >> channel & 1) != 0) found = chain_follow(&chain, channel);
  os_free(chain.seen);
  os_free(chain.queue);
  if (chain.lane == NULL) return false;
  show_waits(ranks);
  if (found && chain.end == NULL) channel_absent(ranks, chain.waiter, chain.lane);
  else report_chain(ranks, &chain, !found);
  return true;
}

bool diagnose_frozen(struct comm_ranks *ranks) {
  for (uint32_t i = 0; i < ranks->count; i++) {
    const struct rank_state *state = &ranks->states[i];
    char place[160], name[64];
    uint32_t row = 0;
    const struct record_lane *lane = rank_next_lane(state, &row);
    while (lane != NULL && lane->wait != WAITS_NOT) row++, lane = rank_next_lane(state, &row);
    if (lane == NULL) continue;
    rank_place(state, place);
    blame(ranks, DIAGNOSIS_CHANNEL, "kernel", state);
    cite(ranks->diagnosis, state, rank_find_call(state, lane->sequence));
    say(ranks->diagnosis->sentence,
        "operation #%u of comm %s hangs because of %s, whose kernel makes no progress at step %u of channel "
        "%u, and waits for nobody",
        lane->sequence, ranks_comm_name(ranks, name), place, lane->step, lane->channel);
    say(ranks->diagnosis->next, "look at rank %u's device: its log, its Xid errors, what else runs on it",
        rank_number(state));
    return true;
  }
  return false;
}
