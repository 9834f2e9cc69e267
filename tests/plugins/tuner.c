/* tuner.c: a tuner plugin of one version of NCCL's interface (ABI, 2 to 6), or without a table (ABI 1), or
 * with one that lacks a function (ABI 0). TUTTI_TEST_TUNER says what it answers: "ALGO PROTO CHANNELS CHUNK",
 * numbers of NCCL's, where CHANNELS 0 and CHUNK 0 leave them alone; or the name of a fault. It checks its
 * caller and logs each call. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define ALGOS 7
#define PROTOS 3
#define LOG_INFO 3
#define SUBSYSTEM_TUNING 64
enum { SUCCESS = 0, SYSTEM_ERROR = 2, INTERNAL_ERROR = 3 };

typedef void (*logger)(int level, unsigned long subsystems, const char *file, int line, const char *format,
                       ...);

struct context {
  logger log;
  int number; /* of its init in this process, from 0 */
  int questions;
};

static int inits;

static const char *told(void) {
  const char *text = getenv("TUTTI_TEST_TUNER");
  return text != NULL ? text : "";
}

static int begin(void **context, size_t ranks, size_t nodes, logger log) {
  struct context *fresh = calloc(1, sizeof *fresh);
  if (fresh == NULL || strcmp(told(), "init") == 0) {
    free(fresh);
    return SYSTEM_ERROR;
  }
  fresh->log = log;
  fresh->number = inits++;
  log(LOG_INFO, SUBSYSTEM_TUNING, __FILE__, __LINE__, "test tuner: init of %zu ranks on %zu nodes", ranks,
      nodes);
  *context = fresh;
  return SUCCESS;
}

static int init_2(size_t ranks, size_t nodes, logger log, void **context) {
  return begin(context, ranks, nodes, log);
}

static int init_5(void **context, uint64_t comm_id, size_t ranks, size_t nodes, logger log, int *domains,
                  double *constants) {
  constants[0] = 7; /* may be written */
  if (comm_id == 0 || domains[0] != (int)nodes || domains[1] > domains[2]) return INTERNAL_ERROR;
  return begin(context, ranks, nodes, log);
}

/* What it answers; false: nothing. */
static int answer(struct context *context, int *algo, int *proto, int *channels) {
  int chunk;
  context->questions += 1;
  if (strcmp(told(), "differ") == 0) {
    const char *rank = getenv("TUTTI_RANK");
    *algo = 1;
    *proto = ((rank != NULL ? atoi(rank) : 0) + context->number) % 2 == 0 ? 0 : 2;
    return 1;
  }
  if (strcmp(told(), "negative") == 0) *channels = -5;
  return sscanf(told(), "%d %d %d %d", algo, proto, channels, &chunk) == 4;
}

static int ask_2(void *opaque, int func, size_t bytes, int collnet, int nvls, int collectives, int *algo,
                 int *proto, int *channels) {
  struct context *context = opaque;
  (void)func, (void)bytes, (void)collnet, (void)nvls, (void)collectives;
  if (strcmp(told(), "fail") == 0) return INTERNAL_ERROR;
  answer(context, algo, proto, channels);
  return SUCCESS;
}

static int change(struct context *context, int func, size_t bytes, int collectives, float (*costs)[PROTOS],
                  int *channels) {
  int algo = -1, proto = -1, offered = 0;
  for (int i = 0; i < ALGOS * PROTOS; i++) offered += costs[i / PROTOS][i % PROTOS] > 0;
  context->log(LOG_INFO, SUBSYSTEM_TUNING, __FILE__, __LINE__,
               "test tuner: function %d of %zu bytes, %d in the group, %s", func, bytes, collectives,
               offered > 0 ? "some possible" : "none possible");
  for (int i = 0; i < ALGOS * PROTOS; i++) {
    if (strcmp(told(), "nothing") == 0) costs[i / PROTOS][i % PROTOS] = -1;
    if (strcmp(told(), "nan") == 0) costs[i / PROTOS][i % PROTOS] = 0.0f / 0.0f;
  }
  if (answer(context, &algo, &proto, channels)) costs[algo][proto] = 0;
  return strcmp(told(), "fail") == 0 ? INTERNAL_ERROR : SUCCESS;
}

static int ask_3(void *context, int func, size_t bytes, int collectives, float **costs, int algos, int protos,
                 int *channels) {
  if (algos != ALGOS || protos != PROTOS) return INTERNAL_ERROR;
  return change(context, func, bytes, collectives, (float(*)[PROTOS])costs, channels);
}

static int ask_4(void *context, int func, size_t bytes, int collectives, float **costs, int algos, int protos,
                 int registered, int *channels) {
  if (registered != 0) return INTERNAL_ERROR;
  return ask_3(context, func, bytes, collectives, costs, algos, protos, channels);
}

static int end(void *opaque) {
  struct context *context = opaque;
  context->log(LOG_INFO, SUBSYSTEM_TUNING, __FILE__, __LINE__, "test tuner: ends after %d questions",
               context->questions);
  free(context);
  return SUCCESS;
}

static int chunk_6(void *context, int func, size_t bytes, int algo, int proto, int channels,
                   size_t *chunk_bytes) {
  int numbers[4] = {0};
  (void)context, (void)func, (void)bytes, (void)algo, (void)proto, (void)channels;
  if (sscanf(told(), "%d %d %d %d", numbers, numbers + 1, numbers + 2, numbers + 3) == 4 && numbers[3] > 0)
    *chunk_bytes = (size_t)numbers[3];
  return SUCCESS;
}

struct table {
  const char *name;
  void *init, *ask, *end, *chunk;
};
#define FUNCTION(name) (void *)(uintptr_t)(name)

#if ABI == 0
#define TABLE ncclTunerPlugin_v4
#elif ABI == 1
#define TABLE ncclTunerPlugin_v1
#elif ABI == 2
#define TABLE ncclTunerPlugin_v2
#elif ABI == 3
#define TABLE ncclTunerPlugin_v3
#elif ABI == 4
#define TABLE ncclTunerPlugin_v4
#elif ABI == 5
#define TABLE ncclTunerPlugin_v5
#else
#define TABLE ncclTunerPlugin_v6
#endif

EXPORT const struct table TABLE = {
    .name = "Test",
    .init = ABI >= 5 ? FUNCTION(init_5) : FUNCTION(init_2),
    .ask = ABI == 0   ? NULL
           : ABI <= 2 ? FUNCTION(ask_2)
           : ABI == 3 ? FUNCTION(ask_3)
                      : FUNCTION(ask_4),
    .end = FUNCTION(end),
    .chunk = FUNCTION(chunk_6), /* read in version 6 alone */
};
