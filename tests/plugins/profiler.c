/* profiler.c: a profiler plugin of version ABI (1 to 6; 0 does not exist) of NCCL's interface, which logs
 * each event with its parent, and refuses to begin if TUTTI_TEST_INIT is set. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <stdarg.h>
#include <stdio.h>

#define EXPORT __attribute__((visibility("default")))
typedef void (*logger)(int level, unsigned long subsystems, const char *file, int line, const char *format,
                       ...);

#if ABI <= 4
typedef uint8_t type_t;
#else
typedef uint64_t type_t;
#endif

#if ABI == 1
typedef uint8_t word; /* numbers in place of names */
#else
typedef const char *word;
#endif

struct about {
  type_t type;
  void *parent;
  int rank;
  union {
    struct {
#if ABI < 4
      const char *comm_name;
      uint64_t comm_id;
#endif
      uint64_t number;
      word func;
      const void *in;
      void *out;
      size_t count;
      int root;
      word dtype;
#if ABI == 1
      uint32_t op;
#endif
#if ABI < 3
      size_t bytes;
#endif
      uint8_t channels, warps;
      word algo, proto;
#if ABI == 1
      int is_collnet, is_nvls;
#endif
    } coll;
    struct {
#if ABI < 4
      const char *comm_name;
      uint64_t comm_id;
#endif
      word func;
      void *buffer;
      word dtype;
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

#if ABI < 4
static void log_to_stderr(int level, unsigned long subsystems, const char *file, int line, const char *format,
                          ...) {
  va_list arguments;
  (void)level, (void)subsystems, (void)file, (void)line;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fputc('\n', stderr);
}
#else
static int begin(void **context, int *mask, int rank, logger log) {
  if (getenv("TUTTI_TEST_INIT") != NULL) return 2;
  log_with = log;
  *mask = 0xfff;
  *context = &events;
  log(3, 0x4000, __FILE__, __LINE__, "test profiler: init of rank %d", rank);
  return 0;
}

#endif

#if ABI < 4
static int init_1(void **context, int *mask) {
  if (getenv("TUTTI_TEST_INIT") != NULL) return 2;
  *mask = 0xfff;
  *context = &events;
  return 0;
}
#else
static int init_4(void **context, int *mask, const char *name, uint64_t comm, int nodes, int ranks, int rank,
                  logger log) {
  return comm == 0 || name == NULL || nodes < 1 || rank >= ranks ? 3 : begin(context, mask, rank, log);
}

#if ABI >= 5
static int init_5(void **context, uint64_t comm, int *mask, const char *name, int nodes, int ranks, int rank,
                  logger log) {
  return init_4(context, mask, name, comm, nodes, ranks, rank, log);
}
#endif
#endif

#if ABI == 1
static const char *name_of(word number, const char *const *names, unsigned count) {
  return number < count ? names[number] : "?";
}
static const char *func_of(word func) {
  static const char *const names[] = {"Broadcast", "Reduce",   "AllGather", "ReduceScatter",
                                      "AllReduce", "SendRecv", "Send",      "Recv"};
  return name_of(func, names, 8);
}
static const char *dtype_of(word dtype) { return dtype == 7 ? "ncclFloat32" : "?"; }
static const char *algo_of(word algo) { return algo == 1 ? "RING" : "?"; }
static const char *proto_of(word proto) { return proto == 0 ? "LL" : "?"; }
#else
static const char *func_of(word func) { return func; }
static const char *dtype_of(word dtype) { return dtype; }
static const char *algo_of(word algo) { return algo; }
static const char *proto_of(word proto) { return proto; }
#endif

static int start(void *context, void **event, struct about *about) {
  struct event *fresh = calloc(1, sizeof *fresh);
  const struct event *parent = about->parent;
  if (fresh == NULL || context != &events) return 3;
  fresh->type = about->type;
#if ABI < 4
  /* NCCL gave no log function yet; the communicator comes with each operation. */
  const int operation = about->type == 2 || about->type == 4;
  if (log_with == NULL) log_with = log_to_stderr;
  if (operation && (about->of.coll.comm_name == NULL || about->of.coll.comm_id == 0)) return 3;
#endif
#if ABI < 3
  if (about->type == 2 && about->of.coll.bytes != 4 * about->of.coll.count) return 3;
#endif
  fresh->number = ++events;
  *event = fresh;
  const int of = parent != NULL ? (int)parent->type : 0;
  switch ((int)about->type) {
    case 2:
      log_with(3, 0x4000, __FILE__, __LINE__,
               "test profiler: rank %d coll %s of %zu %s, %s over %s, parent %d", about->rank,
               func_of(about->of.coll.func), about->of.coll.count, dtype_of(about->of.coll.dtype),
               algo_of(about->of.coll.algo), proto_of(about->of.coll.proto), of);
      break;
    case 4:
      log_with(3, 0x4000, __FILE__, __LINE__, "test profiler: rank %d p2p %s of %zu %s, peer %d, parent %d",
               about->rank, func_of(about->of.p2p.func), about->of.p2p.count, dtype_of(about->of.p2p.dtype),
               about->of.p2p.peer, of);
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

#if ABI == 0
#define TABLE ncclProfiler_v0
#elif ABI == 1
#define TABLE ncclProfiler_v1
#elif ABI == 2
#define TABLE ncclProfiler_v2
#elif ABI == 3
#define TABLE ncclProfiler_v3
#elif ABI == 4
#define TABLE ncclProfiler_v4
#elif ABI == 5
#define TABLE ncclProfiler_v5
#else
#define TABLE ncclProfiler_v6
#endif
#if ABI < 4
#define INIT init_1
#elif ABI == 4
#define INIT init_4
#else
#define INIT init_5
#endif
#define FUNCTION(name) (void *)(uintptr_t)(name)

EXPORT const struct {
  const char *name;
  void *init, *start, *stop, *state, *end;
} TABLE = {"Test", FUNCTION(INIT), FUNCTION(start), FUNCTION(stop), FUNCTION(state), FUNCTION(end)};
