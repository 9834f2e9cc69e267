/* gid.h: chooses the GID of a port that a connection uses, from the port's table and the settings alone, and
 * gives the reason as text. A wrong GID is the most common cause of timeouts. */
#ifndef TUTTI_IBV_GID_H
#define TUTTI_IBV_GID_H

#include <stddef.h>

#include "backends/ibv/verbs.h"
#include "base/err.h"

#define GID_ENTRIES_MAX 256
#define GID_TEXT_BYTES 48 /* of gid_text() */
#define GID_WHY_BYTES 256

struct gid_entry {
  union ibv_gid gid;
  enum gid_kind kind; /* GID_NONE: the entry is empty */
};
struct gid_wishes {
  int index;        /* -1: any */
  int roce_version; /* 1 or 2 */
  int family;       /* 4 or 6 */
  uint8_t range[16];
  uint32_t range_bits; /* 0: any address; IPv4 addresses are taken as mapped into IPv6 */
};

/* Reads the settings; ncclInvalidUsage if they are invalid. */
ncclResult_t gid_wishes_read(struct gid_wishes *wishes);
/* The index of the chosen GID, or -1 if none can be used; `why` gets the reason in both cases. */
int gid_choose(const struct gid_entry *entries, int count, bool ethernet, const struct gid_wishes *wishes,
               char why[GID_WHY_BYTES]);
/* "::ffff:10.0.0.1", or "fe80::1". Returns `out`. */
const char *gid_text(const union ibv_gid *gid, char out[GID_TEXT_BYTES]);

#endif
