/* rows.c: finds and adds rows of the recorder's tables, and records why a communicator failed. Separate from
 * recorder.c, because backends that are libraries of their own link it, too. */
#include <stdio.h>

#include "trace/recorder.h"

struct record_link *recorder_link(const struct recorder_live *live, uint32_t peer, uint8_t channel,
                                  uint8_t proto, uint8_t conn) {
  struct record_comm *comm = live->comm;
  const uint64_t used = comm->links_used;
  for (uint64_t i = 0; i < used; i++) {
    struct record_link *link = &live->links[i];
    if (link->peer == peer && link->channel == channel && link->proto == proto && link->conn == conn)
      return link;
  }
  if (used == comm->link_rows) {
    comm->links_refused += 1;
    return NULL;
  }
  struct record_link *link = &live->links[used];
  *link = (struct record_link){1, channel, proto, conn, peer, 0, 0, 0};
  __atomic_store_n(&comm->links_used, used + 1, __ATOMIC_RELEASE);
  return link;
}

struct record_proxy *recorder_proxy(const struct recorder_live *live, uint32_t peer, uint8_t channel,
                                    uint8_t proto, uint8_t conn) {
  struct record_comm *comm = live->comm;
  if (comm == NULL) return NULL;
  const uint64_t used = comm->proxies_used;
  uint64_t row = 0;
  while (row < used && (live->proxies[row].peer != peer || live->proxies[row].channel != channel ||
                        live->proxies[row].conn != conn))
    row++;
  if (row == comm->proxy_rows) {
    comm->links_refused += 1;
    return NULL;
  }
  live->proxies[row] = (struct record_proxy){1, channel, proto, conn, peer, 0, 0, 0, 0, 0, 0};
  if (row == used) __atomic_store_n(&comm->proxies_used, used + 1, __ATOMIC_RELEASE);
  return &live->proxies[row];
}

void recorder_pace_open(struct recorder_pace *pace, const struct recorder_live *live, uint32_t peer,
                        uint8_t channel, uint8_t device, uint8_t conn) {
  struct record_comm *comm = live->comm;
  *pace = (struct recorder_pace){.row = NULL};
  if (comm == NULL) return;
  const uint64_t used = comm->paces_used;
  uint64_t row = 0;
  while (row < used && (live->paces[row].peer != peer || live->paces[row].channel != channel ||
                        live->paces[row].device != device || live->paces[row].conn != conn))
    row++;
  if (row == comm->pace_rows) return;
  pace->row = &live->paces[row];
  *pace->row = (struct record_pace){1, channel, device, conn, peer, ticks_now(), 0, 0, 0};
  if (row == used) __atomic_store_n(&comm->paces_used, used + 1, __ATOMIC_RELEASE);
}

static void pace_add(struct recorder_pace *pace, uint64_t wait) {
  pace->waited += wait;
  if (wait > pace->longest[0]) {
    pace->longest[1] = pace->longest[0];
    pace->longest[0] = wait;
  } else if (wait > pace->longest[1]) pace->longest[1] = wait;
}

static void pace_fade(struct recorder_pace *pace, uint64_t now) {
  pace->row->begin += (now - pace->row->begin) / 2;
  pace->row->count /= 2;
  pace->waited /= 2;
  pace->longest[0] /= 2;
  pace->longest[1] /= 2;
}

void recorder_pace_turn(struct recorder_pace *pace, bool waits, uint32_t given) {
  struct record_pace *row = pace->row;
  const uint64_t now = ticks_now();
  if (row->since != 0) pace_add(pace, (now - row->since) / RECORD_PACE_UNIT);
  row->count += given;
  if (now - row->begin >= RECORD_PACE_TICKS) pace_fade(pace, now);
  const uint64_t waited = pace->waited - pace->longest[0] - pace->longest[1];
  row->waited = waited < UINT32_MAX ? (uint32_t)waited : UINT32_MAX;
  row->since = waits ? now : 0;
}

void recorder_break(struct record_comm *comm, uint32_t error, const char *reason) {
  uint32_t none = 0;
  if (comm == NULL) return;
  if (!__atomic_compare_exchange_n(&comm->error, &none, error, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
    return;
  snprintf(comm->reason, sizeof comm->reason, "%s", reason);
}
