/* profiler.c: a profiler plugin of version ABI (4 to 6; 3 is too old) of NCCL's interface, which logs each
 * event with its parent, and refuses to begin if TUTTI_TEST_INIT is set. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))
typedef void (*logger)(int level, unsigned long subsystems, const char *file, int line, const char *format,
                       ...);

#if ABI == 4
typedef uint8_t type_t;
#else
typedef uint64_t type_t;
#endif

struct about {
  type_t type;
  void *parent;
  int rank;
  union {
    struct {
      uint64_t number;
      const char *func;
      const void *in;
      void *out;
      size_t count;
      int root;
      const char *dtype;
      uint8_t channels, warps;
      const char *algo, *proto;
    } coll;
    struct {
      const char *func;
      void *buffer;
      const char *dtype;
      size_t count;
      int peer;
    } p2p;
    struct {
      const char *func;
      size_t count;
      const char *dtype;
    } api;
  } of;
};

struct event {
  logger log;
  type_t type;
  int number, stopped;
};

static logger log_with;
static int events;

static int begin(void **context, int *mask, int rank, logger log) {
  if (getenv("TUTTI_TEST_INIT") != NULL) return 2;
  log_with = log;
  *mask = 0xfff;
  *context = &events;
  log(3, 0x4000, __FILE__, __LINE__, "test profiler: init of rank %d", rank);
  return 0;
}

static int init_4(void **context, int *mask, const char *name, uint64_t comm, int nodes, int ranks, int rank,
                  logger log) {
  return comm == 0 || name == NULL || nodes < 1 || rank >= ranks ? 3 : begin(context, mask, rank, log);
}

static int init_5(void **context, uint64_t comm, int *mask, const char *name, int nodes, int ranks, int rank,
                  logger log) {
  return init_4(context, mask, name, comm, nodes, ranks, rank, log);
}

static int start(void *context, void **event, struct about *about) {
  struct event *fresh = calloc(1, sizeof *fresh);
  const struct event *parent = about->parent;
  if (fresh == NULL || context != &events) return 3;
  fresh->type = about->type;
  fresh->number = ++events;
  *event = fresh;
  const int of = parent != NULL ? (int)parent->type : 0;
  switch ((int)about->type) {
    case 2:
      log_with(3, 0x4000, __FILE__, __LINE__,
               "test profiler: rank %d coll %s of %zu %s, %s over %s, parent %d", about->rank,
               about->of.coll.func, about->of.coll.count, about->of.coll.dtype, about->of.coll.algo,
               about->of.coll.proto, of);
      break;
    case 4:
      log_with(3, 0x4000, __FILE__, __LINE__, "test profiler: rank %d p2p %s of %zu %s, peer %d, parent %d",
               about->rank, about->of.p2p.func, about->of.p2p.count, about->of.p2p.dtype, about->of.p2p.peer,
               of);
      break;
    case 0x200:
    case 0x400:
      log_with(3, 0x4000, __FILE__, __LINE__, "test profiler: rank %d api %s of %zu %s, parent %d",
               about->rank, about->of.api.func, about->of.api.count, about->of.api.dtype, of);
      break;
    default:
      log_with(3, 0x4000, __FILE__, __LINE__, "test profiler: rank %d event %d, parent %d", about->rank,
               (int)about->type, of);
  }
  return 0;
}

/* An event stays allocated: it is the parent of others. */
static int stop(void *opaque) {
  struct event *event = opaque;
  event->stopped += 1;
  log_with(3, 0x4000, __FILE__, __LINE__, "test profiler: stop %d%s", (int)event->type,
           event->stopped > 1 ? ", which was stopped before" : "");
  return 0;
}

static int state(void *opaque, int state, void *arguments) {
  const struct event *event = opaque;
  (void)arguments;
  log_with(3, 0x4000, __FILE__, __LINE__, "test profiler: event %d is in state %d", (int)event->type, state);
  return 0;
}

static int end(void *context) {
  log_with(3, 0x4000, __FILE__, __LINE__, "test profiler: end after %d events", *(int *)context);
  return 0;
}

#if ABI == 3
#define TABLE ncclProfiler_v3
#elif ABI == 4
#define TABLE ncclProfiler_v4
#elif ABI == 5
#define TABLE ncclProfiler_v5
#else
#define TABLE ncclProfiler_v6
#endif
#define FUNCTION(name) (void *)(uintptr_t)(name)

EXPORT const struct {
  const char *name;
  void *init, *start, *stop, *state, *end;
} TABLE = {"Test",          ABI >= 5 ? FUNCTION(init_5) : FUNCTION(init_4),
           FUNCTION(start), FUNCTION(stop),
           FUNCTION(state), FUNCTION(end)};
