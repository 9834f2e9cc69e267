/* tuner.c: one plugin a process, which stays loaded; each version of the interface is called as it is
 * declared. What a plugin does wrong is said once for each communicator, and costs it that answer. */
#include "core/plugins/tuner.h"

#include <math.h>
#include <string.h>

#include "base/array.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"
#include "base/plugin_file.h"

#define ANSWERS_MAX (1u << 16) /* beyond these, questions are asked each time */
#define LISTS 256u
#define NUMBER_NONE UINT32_MAX

struct domain_info {
  int count, ranks_min, ranks_max;
};

/* Figures of NCCL's model. Ours is another one: the plugin sees zeros, and what it sets has no effect. */
struct constants {
  double base_us[TUNER_ALGOS][PROTO_COUNT], hop_us[3][TUNER_ALGOS][PROTO_COUNT], gbps[4][4][3];
};

typedef void (*any_function)(void);
/* All versions; chunk from 6 on. */
struct table {
  const char *name;
  any_function init, ask, end, chunk;
};
typedef ncclResult_t (*init_2)(size_t ranks, size_t nodes, plugin_log log, void **context);
typedef ncclResult_t (*init_5)(void **context, uint64_t comm_id, size_t ranks, size_t nodes, plugin_log log,
                               struct domain_info *domains, struct constants *constants);
typedef ncclResult_t (*ask_2)(void *context, int func, size_t bytes, int collnet, int nvls, int collectives,
                              int *algo, int *proto, int *channels);
typedef ncclResult_t (*ask_3)(void *context, int func, size_t bytes, int collectives, float **costs,
                              int algos, int protos, int *channels);
typedef ncclResult_t (*ask_4)(void *context, int func, size_t bytes, int collectives, float **costs,
                              int algos, int protos, int registered, int *channels);
typedef ncclResult_t (*end_2)(void *context);
typedef ncclResult_t (*chunk_6)(void *context, int func, size_t bytes, int algo, int proto, int channels,
                                size_t *chunk_bytes);

struct tuner {
  struct tuner_comm comm;
  void *context;
  bool failed; /* its init did */
  bool warned; /* of a wrong answer */
  struct tuner_answer *answers;
  uint32_t count, capacity, shown; /* shown: by tuner_answer_new */
  uint32_t lists[LISTS];           /* first answer of each hash */
};

/* ---- the process's plugin ---- */

static os_mutex load_mutex = OS_MUTEX_INITIALIZER;
static struct table plugin; /* name NULL: there is none */
static int plugin_version;
static char plugin_from[PLUGIN_FROM_BYTES];
static bool plugin_sought;

static void plugin_load(void) {
  const struct plugin_kind *kind = &plugin_kinds[PLUGIN_TUNER];
  void *library = plugin_file_find(kind, plugin_from);
  if (library == NULL) return;
  const struct table *table = (const struct table *)plugin_file_table(library, kind, &plugin_version);
  const char *missing = NULL;
  if (table != NULL)
    missing = table->name == NULL   ? "name"
              : table->init == NULL ? "init"
              : table->ask == NULL  ? "getCollInfo"
              : table->end == NULL  ? "destroy"
                                    : NULL;
  if (table != NULL && missing == NULL) {
    memcpy(&plugin, table, plugin_version >= 6 ? sizeof plugin : offsetof(struct table, chunk));
    log_info(LOG_INIT | LOG_TUNING, "Tuner plugin %s: '%s', version %d of the interface", plugin_from,
             plugin.name, plugin_version);
    return;
  }
  plugin_file_refuse(kind, library, plugin_from, missing);
}

uint64_t tuner_identity(void) {
  os_mutex_lock(&load_mutex);
  if (!plugin_sought) plugin_load();
  plugin_sought = true;
  os_mutex_unlock(&load_mutex);
  if (plugin.name == NULL) return 0;
  return hash_mix(hash_text(HASH_SEED, plugin.name), (uint64_t)plugin_version) | 1;
}

/* ---- a communicator's tuner ---- */

static ncclResult_t plugin_init(struct tuner *tuner) {
  const struct tuner_comm *comm = &tuner->comm;
  struct domain_info domains = {(int)comm->node_count, (int)comm->node_ranks_min, (int)comm->node_ranks_max};
  struct constants constants;
  if (plugin_version < 5)
    return ((init_2)plugin.init)(comm->rank_count, comm->node_count, plugin_file_log, &tuner->context);
  memset(&constants, 0, sizeof constants);
  return ((init_5)plugin.init)(&tuner->context, comm->comm_id, comm->rank_count, comm->node_count,
                               plugin_file_log, &domains, &constants);
}

struct tuner *tuner_open(const struct tuner_comm *comm) {
  if (tuner_identity() == 0) return NULL;
  struct tuner *tuner = (struct tuner *)os_alloc(sizeof *tuner);
  if (tuner == NULL) {
    log_no_memory("rank %u of comm '%s': answers of the tuner plugin", comm->rank, comm->name);
    return NULL;
  }
  tuner->comm = *comm;
  for (uint32_t i = 0; i < LISTS; i++) tuner->lists[i] = NUMBER_NONE;
  const ncclResult_t result = plugin_init(tuner);
  tuner->failed = result != ncclSuccess;
  if (tuner->failed)
    log_warn(
        "rank %u of comm '%s': tuner plugin '%s' (%s) is left out: its init fails with %d; see its "
        "own messages, or set NCCL_TUNER_PLUGIN=none",
        comm->rank, comm->name, plugin.name, plugin_from, (int)result);
  return tuner;
}

void tuner_close(struct tuner *tuner) {
  if (tuner == NULL) return;
  if (!tuner->failed) ((end_2)plugin.end)(tuner->context);
  os_free(tuner->answers);
  os_free(tuner);
}

/* ---- asking ---- */

/* Says what is wrong with an answer. */
static void answer_wrong(struct tuner *tuner, const struct tuner_question *question, const char *what,
                         long value) {
  if (tuner->warned) return;
  tuner->warned = true;
  log_warn(
      "rank %u of comm '%s': tuner plugin '%s' (%s) %s (%ld) for function %u of %zu bytes, so the "
      "library's own choice stays; correct the plugin or its configuration",
      tuner->comm.rank, tuner->comm.name, plugin.name, plugin_from, what, value, question->func,
      question->bytes);
}

static bool question_offers(const struct tuner_question *question, int algo, int proto) {
  return algo >= 0 && algo < TUNER_ALGOS && proto >= 0 && proto < PROTO_COUNT &&
         ((question->options >> (algo * PROTO_COUNT + proto)) & 1) != 0;
}

static bool question_has_algo(const struct tuner_question *question, int from, int to) {
  for (int algo = from; algo <= to; algo++)
    for (int proto = 0; proto < PROTO_COUNT; proto++)
      if (question_offers(question, algo, proto)) return true;
  return false;
}

static ncclResult_t plugin_ask(struct tuner *tuner, const struct tuner_question *question,
                               float costs[TUNER_ALGOS][PROTO_COUNT], int *channels) {
  const int collectives = (int)question->collectives;
  int algo = -1, proto = -1;
  if (plugin_version >= 4)
    return ((ask_4)plugin.ask)(tuner->context, question->func, question->bytes, collectives, (float **)costs,
                               TUNER_ALGOS, PROTO_COUNT, 0, channels);
  if (plugin_version == 3)
    return ((ask_3)plugin.ask)(tuner->context, question->func, question->bytes, collectives, (float **)costs,
                               TUNER_ALGOS, PROTO_COUNT, channels);
  const ncclResult_t result = ((ask_2)plugin.ask)(
      tuner->context, question->func, question->bytes,
      question_has_algo(question, ALGO_COLLNET_DIRECT, ALGO_COLLNET_CHAIN),
      question_has_algo(question, ALGO_NVLS, ALGO_NVLS_TREE), collectives, &algo, &proto, channels);
  if (algo < 0 && proto < 0) return result;
  for (int i = 0; i < TUNER_ALGOS * PROTO_COUNT; i++) costs[i / PROTO_COUNT][i % PROTO_COUNT] = TUNER_IGNORE;
  if (question_offers(question, algo, proto)) costs[algo][proto] = 0;
  return result;
}

/* The cheapest of what was offered; false if nothing is left. */
static bool costs_choose(const struct tuner_question *question, float costs[TUNER_ALGOS][PROTO_COUNT],
                         struct tuner_answer *answer) {
  float least = INFINITY;
  for (uint8_t algo = 0; algo < TUNER_ALGOS; algo++) {
    for (uint8_t proto = 0; proto < PROTO_COUNT; proto++) {
      const float cost = costs[algo][proto];
      if (!question_offers(question, algo, proto) || !(cost >= 0) || cost >= least) continue;
      least = cost;
      answer->algo = algo;
      answer->proto = proto;
    }
  }
  return least < INFINITY;
}

bool tuner_ask(struct tuner *tuner, const struct tuner_question *question, struct tuner_answer *answer) {
  float costs[TUNER_ALGOS][PROTO_COUNT];
  int channels = 0;
  memset(answer, 0, sizeof *answer);
  answer->func = question->func;
  answer->bytes = question->bytes;
  answer->collectives = question->collectives;
  answer->options = question->options;
  if (tuner->failed) return false;
  memcpy(costs, question->costs, sizeof costs);
  const ncclResult_t result = plugin_ask(tuner, question, costs, &channels);
  bool decides = false, elsewhere = false;
  for (int i = 0; i < TUNER_ALGOS * PROTO_COUNT; i++) {
    const int algo = i / PROTO_COUNT, proto = i % PROTO_COUNT;
    if (memcmp(&costs[algo][proto], &question->costs[algo][proto], sizeof(float)) == 0) continue;
    if (question_offers(question, algo, proto)) decides = true;
    else elsewhere = true;
  }
  if (result != ncclSuccess) {
    answer_wrong(tuner, question, "fails", (long)result);
  } else if (channels < 0) {
    answer_wrong(tuner, question, "asks for a negative number of channels", channels);
  } else if (decides && !costs_choose(question, costs, answer)) {
    answer_wrong(tuner, question, "leaves no possible algorithm and protocol, of those offered",
                 __builtin_popcount(question->options));
  } else if (elsewhere && !decides) {
    answer_wrong(tuner, question, "wants what is not possible here, though there are options",
                 __builtin_popcount(question->options));
  } else {
    answer->channel_count = (uint32_t)channels;
    return decides;
  }
  return false;
}

uint32_t tuner_ask_chunk(struct tuner *tuner, const struct tuner_answer *answer, size_t chunk_bytes) {
  size_t wanted = chunk_bytes;
  if (tuner->failed || plugin.chunk == NULL || answer->algo >= TUNER_ALGOS) return 0;
  const ncclResult_t result =
      ((chunk_6)plugin.chunk)(tuner->context, answer->func, answer->bytes, answer->algo, answer->proto,
                              (int)answer->channel_count, &wanted);
  if (result != ncclSuccess || wanted == 0 || wanted >= chunk_bytes) return 0;
  return (uint32_t)wanted;
}

/* ---- answers ---- */

static uint32_t *list_of(const struct tuner *tuner, const struct tuner_question *question) {
  const uint64_t hash =
      hash_mix(hash_mix(HASH_SEED, question->bytes),
               question->options ^ (uint64_t)question->collectives << 32 ^ (uint64_t)question->func << 24);
  return (uint32_t *)&tuner->lists[hash_scramble(hash) % LISTS];
}

const struct tuner_answer *tuner_recall(const struct tuner *tuner, const struct tuner_question *question) {
  for (uint32_t i = *list_of(tuner, question); i != NUMBER_NONE; i = tuner->answers[i].next) {
    const struct tuner_answer *answer = &tuner->answers[i];
    if (answer->bytes == question->bytes && answer->func == question->func &&
        answer->options == question->options && answer->collectives == question->collectives)
      return answer;
  }
  return NULL;
}

void tuner_remember(struct tuner *tuner, const struct tuner_question *question, struct tuner_answer *answer) {
  uint32_t *first = list_of(tuner, question);
  if (tuner->count >= ANSWERS_MAX ||
      !array_grow(&tuner->answers, &tuner->capacity, tuner->count + UINT64_C(1), sizeof *answer))
    return;
  answer->next = *first;
  tuner->answers[tuner->count] = *answer;
  *first = tuner->count++;
}

const struct tuner_answer *tuner_answer_at(const struct tuner *tuner, uint32_t number) {
  return tuner != NULL && number < tuner->count ? &tuner->answers[number] : NULL;
}

uint32_t tuner_answer_new(struct tuner *tuner) {
  return tuner != NULL && tuner->shown < tuner->count ? tuner->shown++ : NUMBER_NONE;
}
