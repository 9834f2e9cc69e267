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
  if (used == comm->proxy_rows) {
    comm->links_refused += 1;
    return NULL;
  }
  live->proxies[used] = (struct record_proxy){1, channel, proto, conn, peer, 0, 0, 0, 0, 0, 0};
  __atomic_store_n(&comm->proxies_used, used + 1, __ATOMIC_RELEASE);
  return &live->proxies[used];
}

struct record_pace *recorder_pace(const struct recorder_live *live, uint32_t peer, uint8_t channel,
                                  uint8_t device, uint8_t conn) {
  struct record_comm *comm = live->comm;
  if (comm == NULL || comm->paces_used == comm->pace_rows) return NULL;
  struct record_pace *pace = &live->paces[comm->paces_used];
  *pace = (struct record_pace){1, channel, device, conn, peer, ticks_now(), 0, 0, 0};
  __atomic_store_n(&comm->paces_used, comm->paces_used + 1, __ATOMIC_RELEASE);
  return pace;
}

void recorder_pace_turn(struct record_pace *pace, bool waits, uint32_t given) {
  const uint64_t now = ticks_now();
  const uint64_t more = pace->since != 0 ? (now - pace->since) / RECORD_PACE_UNIT : 0;
  pace->waited = more < UINT32_MAX - pace->waited ? pace->waited + (uint32_t)more : UINT32_MAX;
  pace->since = waits ? now : 0;
  pace->count += given;
  if (now - pace->begin < RECORD_PACE_TICKS) return;
  pace->begin += (now - pace->begin) / 2;
  pace->waited /= 2;
  pace->count /= 2;
}

void recorder_break(struct record_comm *comm, uint32_t error, const char *reason) {
  uint32_t none = 0;
  if (comm == NULL) return;
  if (!__atomic_compare_exchange_n(&comm->error, &none, error, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
    return;
  snprintf(comm->reason, sizeof comm->reason, "%s", reason);
}
