/* names.c: the tables of names.h. */
#include "core/plan/names.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

const char *const names_func[FUNC_COUNT] = {"Broadcast", "Reduce",   "AllGather", "ReduceScatter",
                                            "AllReduce", "SendRecv", "Send",      "Recv",
                                            "AlltoAll",  "Scatter",  "Gather",    "Copy"};
const char *const names_algo[ALGO_COUNT] = {"Tree",     "Ring", "CollNetDirect", "CollNetChain", "NVLS",
                                            "NVLSTree", "PAT",  "Direct",        "TwoShot",      "Custom"};
const char *const names_proto[PROTO_COUNT] = {"LL", "LL128", "Simple"};
const char *const names_collective[FUNC_COUNT] = {"broadcast",  "reduce", "all_gather", "reduce_scatter",
                                                  "all_reduce", NULL,     NULL,         NULL,
                                                  NULL,         NULL,     NULL,         NULL};

int names_find(const char *const *names, uint32_t count, const char *word, size_t length) {
  for (uint32_t i = 0; i < count; i++) {
    if (names[i] && strlen(names[i]) == length && strncasecmp(names[i], word, length) == 0) return (int)i;
  }
  return -1;
}

void names_list(const char *const *names, uint32_t count, uint32_t set, char *out, size_t out_bytes) {
  size_t used = 0;
  out[0] = '\0';
  for (uint32_t i = 0; i < count; i++) {
    if (!names[i] || ((set >> i) & 1) == 0) continue;
    const int wrote = snprintf(out + used, out_bytes - used, "%s%s", used > 0 ? ", " : "", names[i]);
    if (wrote > 0 && used + (size_t)wrote < out_bytes) used += (size_t)wrote;
  }
}
