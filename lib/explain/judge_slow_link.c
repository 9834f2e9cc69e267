/* judge_slow_link.c: messages come, and those of one connection take long. Sender and receiver both note how
 * long they wait for the network between them; of a rank that is late only its sender waits, or only its
 * receiver. So a connection is as slow as the end of it that waits less, and is compared with all others.
 * Knows nothing of connections whose other end left no file. */
#include <inttypes.h>
#include <string.h>

#include "base/os.h"
#include "explain/crew.h"

#define MESSAGES_LEAST 8u
#define MESSAGE_NS_LEAST 100000.0 /* nobody calls what takes less slow */
#define SHARE_LEAST 0.05          /* of the time that is counted */
#define APART 3.0                 /* the others are more than so many times as fast */
#define STILL_MESSAGES 16.0       /* who waits longer than for so many messages waits for one that is lost */
#define STILL_NS 1e9

/* A connection that both ends know. */
struct way {
  const struct seat *from, *to;
  const struct record_pace *out, *in;
  double share;      /* of the time, that it kept both */
  double message_ns; /* that it took for one */
};

struct ways {
  struct way *items;
  uint32_t count, slow;          /* slow ones come first */
  double message_ns;             /* of the slowest */
  double rest_ns, rest_messages; /* of all others */
  uint32_t rank, peer; /* that the slow ones have in common; peer: if they have two, else the same */
};

/* When the file was last written to, as far as that is noted. */
static uint64_t seat_now(const struct seat *seat) {
  uint64_t now = seat->file->header.last_ticks;
  if (seat->view->comm->moved_ticks > now) now = seat->view->comm->moved_ticks;
  for (uint32_t row = 0; row < seat->view->pace_rows; row++)
    if (seat->view->paces[row].since > now) now = seat->view->paces[row].since;
  return now;
}

static double waited_ticks(const struct record_pace *pace) { return (double)pace->waited * RECORD_PACE_UNIT; }

static double pace_share(const struct seat *seat, const struct record_pace *pace) {
  const uint64_t now = seat_now(seat);
  return now > pace->begin ? waited_ticks(pace) / (double)(now - pace->begin) : 0;
}

static double ticks_ns(const struct seat *seat, double ticks) {
  const struct record_header *header = &seat->file->header;
  return record_elapsed_ns(header, header->first_ticks + (uint64_t)ticks);
}

static double message_ns(const struct seat *seat, const struct record_pace *pace) {
  return pace->count > 0 ? ticks_ns(seat, waited_ticks(pace)) / pace->count : 0;
}

static const struct record_pace *other_end(const struct seat *seat, uint32_t peer,
                                           const struct record_pace *pace) {
  for (uint32_t row = 0; row < seat->view->pace_rows; row++) {
    const struct record_pace *other = &seat->view->paces[row];
    if (other->used == 1 && other->peer == peer && other->channel == pace->channel &&
        other->conn == (pace->conn ^ RECORD_LINK_SENDS))
      return other;
  }
  return NULL;
}

static bool way_read(const struct crew *crew, const struct seat *from, const struct record_pace *out,
                     struct way *way) {
  if (out->used != 1 || (out->conn & RECORD_LINK_SENDS) == 0) return false;
  *way = (struct way){.from = from, .to = crew_seat(crew, out->peer), .out = out};
  if (way->to == NULL) return false;
  way->in = other_end(way->to, seat_rank(from), out);
  if (way->in == NULL || out->count == 0) return false;
  const double sender = pace_share(from, out), receiver = pace_share(way->to, way->in);
  const double sent_ns = message_ns(from, out), received_ns = message_ns(way->to, way->in);
  way->share = sender < receiver ? sender : receiver;
  way->message_ns = sent_ns < received_ns ? sent_ns : received_ns;
  return true;
}

static void ways_read(const struct crew *crew, struct ways *ways) {
  for (uint32_t i = 0; i < crew->count; i++)
    for (uint32_t row = 0; row < crew->seats[i].view->pace_rows; row++) {
      struct way *way = &ways->items[ways->count];
      if (!way_read(crew, &crew->seats[i], &crew->seats[i].view->paces[row], way)) continue;
      if (way->message_ns > ways->message_ns) ways->message_ns = way->message_ns;
      ways->count += 1;
    }
}

/* Slow ones to the front; false unless all others are faster by far, taken together. */
static bool ways_part(struct ways *ways) {
  for (uint32_t i = 0; i < ways->count; i++) {
    const struct way way = ways->items[i];
    if (way.message_ns * 3 < ways->message_ns * 2) {
      ways->rest_ns += way.message_ns * way.out->count;
      ways->rest_messages += way.out->count;
      continue;
    }
    ways->items[i] = ways->items[ways->slow];
    ways->items[ways->slow++] = way;
  }
  return ways->rest_messages > 0 && ways->rest_ns / ways->rest_messages * APART < ways->message_ns;
}

static bool way_touches(const struct way *way, uint32_t rank) {
  return seat_rank(way->from) == rank || seat_rank(way->to) == rank;
}

static bool all_touch(const struct ways *ways, uint32_t rank) {
  for (uint32_t i = 0; i < ways->slow; i++)
    if (!way_touches(&ways->items[i], rank)) return false;
  return true;
}

/* One pair of ranks, or all of them of one rank. */
static bool ways_meet(struct ways *ways) {
  const uint32_t from = seat_rank(ways->items[0].from), to = seat_rank(ways->items[0].to);
  const bool has_from = all_touch(ways, from), has_to = all_touch(ways, to);
  ways->rank = has_from ? from : to;
  ways->peer = has_from && has_to ? to : ways->rank;
  return has_from || has_to;
}

/* A wait that takes longer than those before is not one for a link that is slow. */
static bool way_stands(const struct way *way) {
  const uint64_t since = way->out->since, now = seat_now(way->from);
  if (since == 0 || now <= since) return false;
  const double still_ns = ticks_ns(way->from, (double)(now - since));
  return still_ns > STILL_NS && still_ns > STILL_MESSAGES * way->message_ns;
}

static bool way_is_slow(const struct way *way) {
  return way->out->count >= MESSAGES_LEAST && way->message_ns >= MESSAGE_NS_LEAST &&
         way->share >= SHARE_LEAST && !way_stands(way);
}

static void show_ways(struct verdict *verdict, const struct ways *ways) {
  for (uint32_t i = 0; i < ways->slow && i < 8; i++) {
    const struct way *way = &ways->items[i];
    show(verdict,
         "channel %u, from rank %u (network device %u) to rank %u (%u): %.3f ms for each of the last %u "
         "messages; both ends waited for it %.0f %% of the time",
         way->out->channel, seat_rank(way->from), way->out->device, seat_rank(way->to), way->in->device,
         way->message_ns / 1e6, way->out->count, 100 * way->share);
  }
  show(verdict, "other connections over networks, %u of them: %.3f ms a message", ways->count - ways->slow,
       ways->rest_ns / ways->rest_messages / 1e6);
}

static void tell_ways(struct crew *crew, const struct ways *ways) {
  const struct way *way = &ways->items[0];
  const struct seat *at = crew_seat(crew, ways->rank);
  char place[160], name[64], link[96];
  const bool pair = ways->peer != ways->rank;
  if (pair)
    snprintf(link, sizeof link, "the link from rank %u to rank %u", seat_rank(way->from), seat_rank(way->to));
  else snprintf(link, sizeof link, "what leads to and from rank %u", ways->rank);
  blame(crew, VERDICT_SLOW, "link", at);
  seat_place(at, place);
  say(crew->verdict->sentence,
      "%s of comm %s is slow, not hung: on channel %u, network device %u of %s, a message takes %.3f ms",
      link, crew_name(crew, name), way->out->channel, at == way->from ? way->out->device : way->in->device,
      place, way->message_ns / 1e6);
  show_ways(crew->verdict, ways);
  say(crew->verdict->next,
      "look at the network from rank %u to rank %u: speed and error counters of both ports and of the "
      "switches between them, what else uses them",
      seat_rank(way->from), seat_rank(way->to));
}

bool judge_slow_link(struct crew *crew) {
  struct ways ways = {.count = 0};
  uint32_t rows = 0;
  for (uint32_t i = 0; i < crew->count; i++) rows += crew->seats[i].view->pace_rows;
  if (rows == 0) return false;
  ways.items = (struct way *)os_alloc(rows * sizeof *ways.items);
  if (ways.items == NULL) return false;
  ways_read(crew, &ways);
  const bool slow = ways_part(&ways) && way_is_slow(&ways.items[0]) && ways_meet(&ways);
  if (slow) tell_ways(crew, &ways);
  os_free(ways.items);
  return slow;
}
