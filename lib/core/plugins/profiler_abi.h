/* profiler_abi.h: the binary interface of NCCL's profiler plugins, versions 1 to 6, as far as events of the
 * host go: what libnccl-profiler-NAME.so exports as ncclProfiler_v1 to _v6. Order and types of the members
 * define it; the names are this library's. */
#ifndef TUTTI_CORE_PROFILER_ABI_H
#define TUTTI_CORE_PROFILER_ABI_H

#include "base/plugin_file.h"
#include "core/plugins/profiler.h"

enum {
  EVENT_GROUP = 1 << 0,
  EVENT_COLL = 1 << 1,
  EVENT_P2P = 1 << 2,
  EVENT_GROUP_API = 1 << 8,
  EVENT_COLL_API = 1 << 9,
  EVENT_P2P_API = 1 << 10,
  EVENT_LAUNCH = 1 << 11
};
enum { STATE_GROUP_STARTED = 23, STATE_GROUP_ENDS = 24 };

typedef void (*any_function)(void);

struct coll_event {
  uint64_t sequence;
  const char *func;
  const void *in;
  void *out;
  size_t count;
  int root;
  const char *dtype;
  uint8_t channels, warps;
  const char *algo, *proto;
  void *group;
};
struct p2p_event {
  const char *func;
  void *buffer;
  const char *dtype;
  size_t count;
  int peer;
  uint8_t channels;
  void *group;
};
/* What an event is about. Version 4 knows coll and p2p, without their last member, and older ones have forms
 * of their own; version 6 has more events, whose members here are only space. */
union event_about {
  struct {
    bool captured;
    int depth;
  } group_api;
  struct {
    const char *func;
    size_t count;
    const char *dtype;
    int root;
    void *stream;
    bool captured;
  } coll_api;
  struct {
    const char *func;
    size_t count;
    const char *dtype;
    void *stream;
    bool captured;
  } p2p_api;
  struct {
    void *stream;
  } launch;
  struct coll_event coll;
  struct p2p_event p2p;
  uint64_t space[16];
};
struct event_4 {
  uint8_t type;
  void *parent;
  int rank;
  union event_about about;
};
struct event_5 {
  uint64_t type;
  void *parent;
  int rank;
  union event_about about;
};

/* Versions 1 to 3: events of operations name the communicator, and those of version 1 have numbers for names.
 */
struct coll_event_1 {
  const char *comm_name;
  uint64_t comm_id, sequence;
  uint8_t func;
  const void *in;
  void *out;
  size_t count;
  int root;
  uint8_t dtype;
  uint32_t op;
  size_t bytes;
  uint8_t channels, warps, algo, proto;
  int is_collnet, is_nvls;
};
struct p2p_event_1 {
  const char *comm_name;
  uint64_t comm_id;
  uint8_t func;
  void *buffer;
  uint8_t dtype;
  size_t count;
  int peer;
};
struct coll_event_2 {
  const char *comm_name;
  uint64_t comm_id, sequence;
  const char *func;
  const void *in;
  void *out;
  size_t count;
  int root;
  const char *dtype;
  size_t bytes;
  uint8_t channels, warps;
  const char *algo, *proto;
};
struct coll_event_3 {
  const char *comm_name;
  uint64_t comm_id, sequence;
  const char *func;
  const void *in;
  void *out;
  size_t count;
  int root;
  const char *dtype;
  uint8_t channels, warps;
  const char *algo, *proto;
};
struct p2p_event_2 { /* and of version 3 */
  const char *comm_name;
  uint64_t comm_id;
  const char *func;
  void *buffer;
  const char *dtype;
  size_t count;
  int peer;
};
struct event_1 { /* to version 3 */
  uint8_t type;
  void *parent;
  int rank;
  union {
    struct coll_event_1 coll_1;
    struct coll_event_2 coll_2;
    struct coll_event_3 coll_3;
    struct p2p_event_1 p2p_1;
    struct p2p_event_2 p2p_2;
    uint64_t space[24];
  } about;
};
union event_any {
  struct event_1 v1;
  struct event_4 v4;
  struct event_5 v5;
};

struct table {
  const char *name;
  any_function init;
  ncclResult_t (*start)(void *context, void **event, void *about);
  ncclResult_t (*stop)(void *event);
  ncclResult_t (*state)(void *event, int state, void *arguments);
  ncclResult_t (*end)(void *context);
};
typedef ncclResult_t (*init_1)(void **context, int *mask);
typedef ncclResult_t (*init_4)(void **context, int *mask, const char *name, uint64_t comm_id, int nodes,
                               int ranks, int rank, plugin_log log);
typedef ncclResult_t (*init_5)(void **context, uint64_t comm_id, int *mask, const char *name, int nodes,
                               int ranks, int rank, plugin_log log);

/* Names as plugins know them. */
extern const char *const profiler_funcs[FUNC_COUNT], *const profiler_algos[ALGO_COUNT],
                                                         *const profiler_protos[PROTO_COUNT];
const char *profiler_dtype(uint8_t dtype);

/* An event in the form of a version, in `form`; NULL: the version has no such event. */
void *profiler_describe(int version, const struct profiler_comm *comm, int type, void *parent,
                        const union event_about *about, union event_any *form);

#endif
