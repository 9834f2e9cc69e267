/* judge_channel.c: all ranks called it, and it stands: whom lanes wait for, from rank to rank, until one
 * waits for nobody. */
#include <inttypes.h>
#include <string.h>

#include "base/os.h"
#include "explain/crew.h"

const char *const wait_texts[] = {"nothing",  "an output to be offered by", "data of", "a free slot at",
                                  "lines of", "another list, number"};

/* Messages of networks that have not ended, beside the lanes that may wait for them. */
static void show_proxies(const struct crew *crew, const struct seat *seat) {
  for (uint32_t row = 0, lines = 0; row < seat->view->proxy_rows && lines < 2; row++) {
    const struct record_proxy *proxy = &seat->view->proxies[row];
    if (proxy->used != 1 || proxy->posted == proxy->done) continue;
    const bool sends = (proxy->conn & RECORD_LINK_SENDS) != 0;
    lines += 1;
    show(crew->verdict, "rank %u's proxy, channel %u, %s rank %u: posted %u, %s %u, done %u%s",
         seat_rank(seat), proxy->channel, sends ? "to" : "from", proxy->peer, proxy->posted,
         sends ? "transmitted" : "received", sends ? proxy->transmitted : proxy->received, proxy->done,
         proxy->connected ? "" : "; not connected");
  }
}

void show_waits(const struct crew *crew) {
  for (uint32_t i = 0; i < crew->count; i++) {
    const struct seat *seat = &crew->seats[i];
    const struct record_lane *lane = seat_first_wait(seat);
    if (lane == NULL) continue;
    show(crew->verdict,
         "rank %u, channel %u, operation #%u: stands at step %u and waits for %s rank %u (%" PRIu64
         " of %" PRIu64 ")",
         seat_rank(seat), lane->channel, lane->sequence, lane->step, wait_texts[lane->wait], lane->peer,
         lane->have, lane->need);
    show_proxies(crew, seat);
  }
}

static void channel_absent(struct crew *crew, const struct seat *waiter, const struct record_lane *lane) {
  char name[64];
  blame(crew, VERDICT_ABSENT, NULL, NULL);
  crew->verdict->rank = lane->peer;
  say(crew->verdict->sentence,
      "rank %u of comm %s left no file, and rank %u waits for it in operation #%u, on channel %u at step %u",
      lane->peer, crew_name(crew, name), seat_rank(waiter), lane->sequence, lane->channel, lane->step);
  say(crew->verdict->next, "find out what became of rank %u, and add its file if there is one", lane->peer);
}

/* A lane that could move, and does not; of the lane's operation. NULL: there is none on the channel. */
static const struct record_lane *seat_still(const struct seat *seat, uint8_t channel) {
  uint32_t row = 0;
  for (const struct record_lane *lane = seat_lane(seat, &row); lane != NULL;
       row++, lane = seat_lane(seat, &row))
    if (lane->wait == WAITS_NOT && lane->channel == channel) return lane;
  return NULL;
}

/* A rank that others wait for on a channel. */
struct place {
  uint32_t seat;
  uint8_t channel;
};

/* Where waits lead: to a rank whose lanes wait for nobody. */
struct chain {
  const struct crew *crew;
  bool *seen;          /* by seat */
  struct place *queue; /* that are still to be looked at */
  uint32_t first, end_of_queue;
  const struct seat *waiter, *end; /* end: NULL: the rank left no file */
  const struct record_lane *lane;  /* the waiter's */
};

/* How far an operation is: collectives before it, and half of one more for those themselves. */
static uint64_t lane_place(const struct seat *seat, const struct record_lane *lane) {
  const struct record_call *call = seat_call(seat, lane->sequence);
  return call != NULL ? 2 * (uint64_t)call->collective + !is_message(call->func) : 0;
}

static bool waits_on(const struct seat *seat, uint8_t channel) {
  uint32_t row = 0;
  for (const struct record_lane *lane = seat_wait(seat, &row); lane != NULL;
       row++, lane = seat_wait(seat, &row))
    if (lane->channel == channel) return true;
  return false;
}

static bool waits_before(const struct seat *seat, uint64_t place) {
  uint32_t row = 0;
  for (const struct record_lane *lane = seat_wait(seat, &row); lane != NULL;
       row++, lane = seat_wait(seat, &row))
    if (lane_place(seat, lane) < place) return true;
  return false;
}

static void chain_queue(struct chain *chain, uint32_t seat, uint8_t channel) {
  chain->seen[seat] = true;
  chain->queue[chain->end_of_queue++] = (struct place){seat, channel};
}

/* From one rank to those that it waits for: on the channel on which others wait for it; or, where it has not
 * come so far, wherever it stands. True when one of them waits for nobody. */
static bool chain_step(struct chain *chain, struct place place) {
  const struct crew *crew = chain->crew;
  const struct seat *seat = &crew->seats[place.seat];
  const bool here = waits_on(seat, place.channel);
  uint32_t row = 0;
  for (const struct record_lane *lane = seat_wait(seat, &row); lane != NULL;
       row++, lane = seat_wait(seat, &row)) {
    const struct seat *next = crew_seat(crew, lane->peer);
    if (next == seat || (here && lane->channel != place.channel)) continue;
    if (next != NULL && chain->seen[next - crew->seats]) continue;
    chain->waiter = seat, chain->lane = lane, chain->end = next;
    if (next == NULL || seat_still(next, lane->channel) != NULL) return true;
    if (!waits_on(next, lane->channel) && !waits_before(next, lane_place(seat, lane))) return true;
    chain_queue(chain, (uint32_t)(next - crew->seats), lane->channel);
  }
  return false;
}

/* From the ranks that wait on the channel; true when an end was found. */
static bool chain_follow(struct chain *chain, uint8_t channel) {
  chain->first = chain->end_of_queue = 0;
  memset(chain->seen, 0, chain->crew->count * sizeof *chain->seen);
  for (uint32_t i = 0; i < chain->crew->count; i++) {
    if (chain->seen[i] || !waits_on(&chain->crew->seats[i], channel)) continue;
    chain_queue(chain, i, channel);
    while (chain->first < chain->end_of_queue)
      if (chain_step(chain, chain->queue[chain->first++])) return true;
  }
  return false;
}

static void tell_chain(struct crew *crew, const struct chain *chain, bool circle) {
  char place[160], name[64], why[200] = "which waits for nobody";
  const struct record_lane *lane = chain->lane;
  const struct record_lane *still = seat_still(chain->end, lane->channel);
  if (still != NULL)
    snprintf(why, sizeof why, "which stands at step %u of channel %u and waits for nobody", still->step,
             still->channel);
  seat_place(chain->end, place);
  blame(crew, VERDICT_CHANNEL, circle ? "circle" : lane->wait == WAITS_SLOT ? "slot" : "data", chain->end);
  if (circle)
    say(crew->verdict->sentence,
        "operation #%u of comm %s stands in a circle of waits through %s: rank %u waits at step %u of "
        "channel %u "
        "for %s rank %u",
        lane->sequence, crew_name(crew, name), place, seat_rank(chain->waiter), lane->step, lane->channel,
        wait_texts[lane->wait], lane->peer);
  else
    say(crew->verdict->sentence,
        "operation #%u of comm %s stands because of %s, %s: rank %u waits at step %u of channel %u for %s "
        "rank %u",
        lane->sequence, crew_name(crew, name), place, why, seat_rank(chain->waiter), lane->step,
        lane->channel, wait_texts[lane->wait], lane->peer);
  say(crew->verdict->next,
      "look at rank %u's device and at the link from it to rank %u; if the library is at fault, keep these "
      "files "
      "for a report",
      seat_rank(chain->end), seat_rank(chain->waiter));
}

/* Channels on which somebody waits. */
static uint64_t crew_channels(const struct crew *crew) {
  uint64_t channels = 0;
  for (uint32_t i = 0; i < crew->count; i++) {
    uint32_t row = 0;
    for (const struct record_lane *lane = seat_wait(&crew->seats[i], &row); lane != NULL;
         row++, lane = seat_wait(&crew->seats[i], &row))
      channels |= UINT64_C(1) << lane->channel % 64;
  }
  return channels;
}

bool judge_channel(struct crew *crew) {
  const uint64_t channels = crew_channels(crew);
  struct chain chain = {.crew = crew};
  bool found = false;
  chain.seen = (bool *)os_alloc(crew->count * sizeof *chain.seen);
  chain.queue = (struct place *)os_alloc(crew->count * sizeof *chain.queue);
  for (uint8_t channel = 0; channel < 64 && !found && chain.seen != NULL && chain.queue != NULL; channel++)
    if ((channels >> channel & 1) != 0) found = chain_follow(&chain, channel);
  os_free(chain.seen);
  os_free(chain.queue);
  if (chain.lane == NULL) return false;
  show_waits(crew);
  if (found && chain.end == NULL) channel_absent(crew, chain.waiter, chain.lane);
  else tell_chain(crew, &chain, !found);
  return true;
}

bool judge_frozen(struct crew *crew) {
  for (uint32_t i = 0; i < crew->count; i++) {
    const struct seat *seat = &crew->seats[i];
    char place[160], name[64];
    uint32_t row = 0;
    const struct record_lane *lane = seat_lane(seat, &row);
    while (lane != NULL && lane->wait != WAITS_NOT) row++, lane = seat_lane(seat, &row);
    if (lane == NULL) continue;
    seat_place(seat, place);
    blame(crew, VERDICT_CHANNEL, "kernel", seat);
    say(crew->verdict->sentence,
        "operation #%u of comm %s stands because of %s, whose kernel makes no move at step %u of channel %u, "
        "and "
        "waits for nobody",
        lane->sequence, crew_name(crew, name), place, lane->step, lane->channel);
    say(crew->verdict->next, "look at rank %u's device: its log, its Xid errors, what else runs on it",
        seat_rank(seat));
    return true;
  }
  return false;
}
