/* mutant_run.c: runs a list of operations under many seeds and prints how the first failing seed fails.
 * Linked once with the unchanged library and once with every planted bug (mutants/planted.py); uses no API
 * call, only the emulator's table and plans.
 *
 *   mutant_run FIRST_SEED SEED_COUNT RANKS CALLS FUNCTIONS PROTOCOLS COUNTS TYPE_BYTES
 *
 * Lists are comma-separated; call i takes entry i modulo the length of each. All calls of a seed are launched
 * before the first is waited for. Prints `passed`, or `KIND seed N: text`, KIND one of invariant, deadlock,
 * mismatch, data, error; exit status 0, 1, or 2 for misuse. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "ranks.h"
#include "tutti.h"

#define LIST_MAX 64
#define CALLS_MAX 512

struct list {
  uint32_t length;
  size_t entries[LIST_MAX];
};

struct scenario {
  uint32_t rank_count, call_count;
  struct list functions, protocols, counts, type_bytes;
};

struct word {
  const char *name;
  size_t value;
};
/* Functions are over rings, or over the algorithm in their second byte. */
static const struct word words[] = {
    {"broadcast", FUNC_BROADCAST},
    {"reduce", FUNC_REDUCE},
    {"all_gather", FUNC_ALL_GATHER},
    {"reduce_scatter", FUNC_REDUCE_SCATTER},
    {"all_reduce", FUNC_ALL_REDUCE},
    {"send_recv", FUNC_SEND_RECV},
    {"one_shot", FUNC_ALL_REDUCE | ALGO_DIRECT << 8},
    {"two_shot", FUNC_ALL_REDUCE | ALGO_TWO_SHOT << 8},
    {"direct_scatter", FUNC_REDUCE_SCATTER | ALGO_DIRECT << 8},
    {"simple", PROTO_SIMPLE},
    {"ll", PROTO_LL},
    {"ll128", PROTO_LL128},
};

static bool entry_parse(const char *text, size_t *value) {
  char *end;
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
    if (strcmp(words[i].name, text) != 0) continue;
    *value = words[i].value;
    return true;
  }
  *value = strtoul(text, &end, 10);
  return end != text && *end == '\0';
}

static bool list_parse(char *text, struct list *list) {
  char *rest = NULL;
  list->length = 0;
  for (char *item = strtok_r(text, ",", &rest); item != NULL; item = strtok_r(NULL, ",", &rest)) {
    if (list->length == LIST_MAX || !entry_parse(item, &list->entries[list->length])) return false;
    list->length += 1;
  }
  return list->length > 0;
}

static size_t list_at(const struct list *list, uint32_t index) { return list->entries[index % list->length]; }

static uint8_t type_of_bytes(size_t bytes) {
  return (uint8_t)(bytes == 1 ? ncclUint8 : bytes == 2 ? ncclFloat16 : bytes == 4 ? ncclFloat32 : ncclInt64);
}

static const char *kind_of_error(const char *text) {
  if (strstr(text, "invariant broken") != NULL) return "invariant";
  if (strstr(text, "deadlock:") != NULL) return "deadlock";
  return strstr(text, "do not agree") != NULL ? "mismatch" : "error";
}

/* Exits here: the state that a planted bug left must not be torn down. */
static void show(const char *kind, unsigned long seed, const char *text) {
  printf("%s seed %lu: %s\n", kind, seed, text);
  fflush(stdout);
  _exit(1);
}

static void seed_run(const struct scenario *scenario, unsigned long seed) {
  static struct call calls[CALLS_MAX];
  struct ranks ranks;
  char text[RANKS_TEXT_BYTES];
  tutti_emu_config_t config = {.size = sizeof config, .seed = seed};
  if (ranks_configure(&config) != ncclSuccess || ranks_open(&ranks, scenario->rank_count) != ncclSuccess)
    show("error", seed, log_last_error());
  ncclResult_t result = ncclSuccess;
  for (uint32_t i = 0; i < scenario->call_count && result == ncclSuccess; i++) {
    const size_t function = list_at(&scenario->functions, i);
    calls[i].func = (uint8_t)function;
    ranks.algo_mask = function > UINT8_MAX ? 1u << (function >> 8) : 0;
    calls[i].proto = (uint8_t)list_at(&scenario->protocols, i);
    calls[i].dtype = type_of_bytes(list_at(&scenario->type_bytes, i));
    calls[i].root = i % scenario->rank_count;
    calls[i].count = list_at(&scenario->counts, i);
    if (!call_prepare(&ranks, &calls[i])) show("error", seed, "out of memory");
    result = call_launch_all(&ranks, &calls[i]);
  }
  if (result == ncclSuccess) result = ranks_wait(&ranks);
  if (result != ncclSuccess) show(kind_of_error(log_last_error()), seed, log_last_error());
  for (uint32_t i = 0; i < scenario->call_count; i++) {
    if (!call_check(&ranks, &calls[i], text)) show("data", seed, text);
    call_free(&calls[i]);
  }
  ranks_close(&ranks);
}

int main(int argument_count, char **arguments) {
  struct scenario scenario;
  if (argument_count != 9) return 2;
  const unsigned long first = strtoul(arguments[1], NULL, 10), count = strtoul(arguments[2], NULL, 10);
  scenario.rank_count = (uint32_t)strtoul(arguments[3], NULL, 10);
  scenario.call_count = (uint32_t)strtoul(arguments[4], NULL, 10);
  if (scenario.rank_count < 2 || scenario.rank_count > RANKS_MAX || scenario.call_count > CALLS_MAX ||
      !list_parse(arguments[5], &scenario.functions) || !list_parse(arguments[6], &scenario.protocols) ||
      !list_parse(arguments[7], &scenario.counts) || !list_parse(arguments[8], &scenario.type_bytes))
    return 2;
  for (unsigned long seed = first; seed < first + count; seed++) seed_run(&scenario, seed);
  printf("passed\n");
  return 0;
}
