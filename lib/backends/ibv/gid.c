/* gid.c: chooses a GID. On InfiniBand it takes the first one. On Ethernet the table has several entries for
 * each address of the interface: RoCE v1 and v2, link-local and routable. It takes the entry that matches
 * most of the settings, and the first of equals. */
#include "backends/ibv/gid.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/param.h"

static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

static bool gid_is_four(const union ibv_gid *gid) { return memcmp(gid->raw, mapped, sizeof mapped) == 0; }

static bool gid_is_local(const union ibv_gid *gid) {
  return gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80;
}

static bool gid_in_range(const union ibv_gid *gid, const struct gid_wishes *wishes) {
  const uint32_t bytes = wishes->range_bits / 8, bits = wishes->range_bits % 8;
  const uint8_t mask = (uint8_t)(0xff00 >> bits);
  if (memcmp(gid->raw, wishes->range, bytes) != 0) return false;
  return bits == 0 || ((gid->raw[bytes] ^ wishes->range[bytes]) & mask) == 0;
}

const char *gid_text(const union ibv_gid *gid, char out[GID_TEXT_BYTES]) {
  if (inet_ntop(AF_INET6, gid->raw, out, GID_TEXT_BYTES) == NULL) out[0] = '\0';
  return out;
}

ncclResult_t gid_wishes_read(struct gid_wishes *wishes) {
  const char *family = param_text(PARAM_IB_ADDR_FAMILY), *range = param_text(PARAM_IB_ADDR_RANGE);
  char address[64];
  memset(wishes, 0, sizeof *wishes);
  wishes->index = (int)param_int(PARAM_IB_GID_INDEX);
  wishes->roce_version = (int)param_int(PARAM_IB_ROCE_VERSION_NUM);
  wishes->family = strcmp(family, "AF_INET6") == 0 ? 6 : 4;
  if (range[0] == '\0') return ncclSuccess;
  const char *slash = strchr(range, '/');
  const size_t length = slash != NULL ? (size_t)(slash - range) : strlen(range);
  if (length >= sizeof address) return log_fail(ncclInvalidUsage, "NCCL_IB_ADDR_RANGE=%s: too long", range);
  snprintf(address, sizeof address, "%.*s", (int)length, range);
  const bool four = strchr(address, ':') == NULL;
  const long most = four ? 32 : 128, bits = slash != NULL ? strtol(slash + 1, NULL, 10) : most;
  memcpy(wishes->range, mapped, sizeof mapped);
  if (bits < 1 || bits > most ||
      inet_pton(four ? AF_INET : AF_INET6, address, wishes->range + (four ? 12 : 0)) != 1)
    return log_fail(ncclInvalidUsage, "NCCL_IB_ADDR_RANGE=%s is no range of addresses: write 10.1.0.0/16",
                    range);
  wishes->range_bits = (uint32_t)bits + (four ? 96 : 0);
  return ncclSuccess;
}

/* The rank of an entry by the settings that it matches, the more important ones first; -1 if it cannot be
 * used. */
static int entry_worth(const struct gid_entry *entry, const struct gid_wishes *wishes) {
  if (entry->kind == GID_NONE) return -1;
  const enum gid_kind wanted = wishes->roce_version == 1 ? GID_ROCE1 : GID_ROCE2;
  const bool four = gid_is_four(&entry->gid);
  int worth = 0;
  if (wishes->range_bits > 0 && gid_in_range(&entry->gid, wishes)) worth += 8;
  if (entry->kind == wanted) worth += 4;
  if (four == (wishes->family == 4)) worth += 2;
  if (!gid_is_local(&entry->gid)) worth += 1;
  return worth;
}

static int gid_choose_index(const struct gid_entry *entries, int count, int index, char *why) {
  char text[GID_TEXT_BYTES];
  if (index < count && entries[index].kind != GID_NONE) {
    snprintf(why, GID_WHY_BYTES, "GID %d (%s), as NCCL_IB_GID_INDEX says", index,
             gid_text(&entries[index].gid, text));
    return index;
  }
  snprintf(why, GID_WHY_BYTES,
           "NCCL_IB_GID_INDEX=%d is empty: the port has %d entries; `show_gids` lists them, and "
           "without the setting one is chosen",
           index, count);
  return -1;
}

int gid_choose(const struct gid_entry *entries, int count, bool ethernet, const struct gid_wishes *wishes,
               char why[GID_WHY_BYTES]) {
  static const char *const kinds[] = {"empty", "InfiniBand", "RoCE v1", "RoCE v2"};
  int best = -1, best_worth = -1, usable = 0;
  char text[GID_TEXT_BYTES];
  if (wishes->index >= 0) return gid_choose_index(entries, count, wishes->index, why);
  for (int i = 0; i < count; i++) {
    const int worth = ethernet ? entry_worth(&entries[i], wishes) : entries[i].kind != GID_NONE ? 0 : -1;
    usable += worth >= 0;
    if (worth > best_worth) best = i, best_worth = worth;
  }
  if (best < 0) {
    snprintf(why, GID_WHY_BYTES, "the port has no GID: give its interface an address");
    return -1;
  }
  const struct gid_entry *entry = &entries[best];
  const bool meant = !ethernet || (best_worth & 6) == 6;
  snprintf(why, GID_WHY_BYTES, "GID %d (%s, %s%s), %s of %d", best, gid_text(&entry->gid, text),
           kinds[entry->kind],
           gid_is_local(&entry->gid) && ethernet ? ", link-local: reached without routers" : "",
           meant ? "the first that fits"
                 : "the nearest to what NCCL_IB_ROCE_VERSION_NUM and NCCL_IB_ADDR_FAMILY say",
           usable);
  return best;
}
