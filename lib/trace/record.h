/* record.h: the layout of a record file, drawn in traces/README.md: a header, then a section for each
 * communicator of each rank of this process, with a ring of 32-byte records and tables of the current state.
 * Little endian; the same layout in the file and in memory. Readers must validate every number of a file
 * (record_read.h). */
#ifndef TUTTI_TRACE_RECORD_H
#define TUTTI_TRACE_RECORD_H

#include <assert.h>
#include <stdint.h>

#define RECORD_MAGIC "TUTTIREC"
#define RECORD_VERSION 1
#define RECORD_BYTE_ORDER 0x01020304u
#define RECORD_BYTES 32u
#define RECORD_PAGE_BYTES 4096u /* header and sections are multiples of it */

enum record_state {
  RECORD_OPEN = 0,
  RECORD_ENDED = 1,  /* a process that exited, a communicator that was destroyed */
  RECORD_ABORTED = 2 /* communicators only: ncclCommAbort */
};

#define RECORD_MODULES_BYTES 512u
struct record_header {
  char magic[8]; /* RECORD_MAGIC, no zero */
  uint32_t version, byte_order;
  uint32_t header_bytes, record_bytes;     /* RECORD_PAGE_BYTES, RECORD_BYTES */
  uint64_t used_bytes;                     /* where the last section ends */
  uint64_t process_realm, process_born;    /* struct os_process */
  uint32_t process, state;                 /* enum record_state */
  uint64_t first_ticks, first_ns, wall_ns; /* one moment in ticks, on the monotonic clock, since 1970 */
  uint64_t last_ticks, last_ns;            /* a later moment, which gives the rate of ticks; 0: not set yet */
  uint32_t rank;                           /* in the first communicator: the %r of the file's name */
  uint32_t refused;                        /* communicators for which there was no space */
  char host[64], library[32];
  char control[64]; /* address of the process's control server as text; "" if it has none, or in old files */
  char job[64];     /* the launch as its launcher names it; "" without a launcher, or in old files */
  uint32_t exits;   /* 1 once the process calls exit() or returns from main */
  uint32_t exit_status;               /* with this status */
  char modules[RECORD_MODULES_BYTES]; /* files of code that called: lines "BYTES MTIME_NS PATH"; "" in old
                                       * files */
  uint32_t awaited; /* the process without which no event of the emulator can run; 0: none */
  uint32_t
      ended_by; /* the signal that ended the process, which was not its launcher's; 0: none, or not known */
};
static_assert(sizeof(struct record_header) == 856, "the format says so");

/* After the header, in the same page: the file and offset of the return addresses in records. Of calls by
 * Python the address is a number from RECORD_CALLER_TEXT on, the offset is 0, and `file` is the whole place:
 * "train.py:31 (step)". If all rows are taken, places are evicted whose calls were long ago. */
#define RECORD_CALLER_TEXT (UINT64_C(1) << 63)
#define RECORD_CALLERS 48u
#define RECORD_CALLERS_OFFSET 1024u
struct record_caller {
  uint64_t address; /* 0: free */
  uint64_t offset;  /* within that file, as addr2line expects it */
  char file[48];    /* name without directories */
};
static_assert(RECORD_CALLERS_OFFSET + RECORD_CALLERS * sizeof(struct record_caller) == RECORD_PAGE_BYTES,
              "they fill the page");

/* The begin of each section; readers skip sections of unknown kinds. */
enum record_section_kind { RECORD_SECTION_COMM = 1 };
struct record_section {
  uint32_t kind, header_bytes;
  uint64_t bytes; /* size of the section, a multiple of RECORD_PAGE_BYTES */
};

/* Whether the backend counts kernels: no; yes, exactly; yes, as of the last time that it read them. */
enum record_counts { RECORD_COUNTS_NONE = 0, RECORD_COUNTS_TRUE = 1, RECORD_COUNTS_SEEN = 2 };

#define RECORD_STREAMS 16
#define RECORD_REASON_BYTES 128
#define RECORD_PLANS 64

/* One rank of one communicator. Offsets are relative to the section's begin. */
struct record_comm {
  struct record_section section;
  uint64_t comm_id, born; /* ticks */
  uint32_t rank, rank_count, device, state;
  uint64_t settings_digest, topology_digest;
  uint32_t ring_records; /* a power of two */
  uint32_t plan_rows, lane_rows, link_rows;
  uint32_t ring_offset, plan_offset, lane_offset, link_offset;
  uint32_t proxy_rows, proxy_offset;
  char name[48];
  char reason[RECORD_REASON_BYTES]; /* the error message if the communicator failed, else "" */
  uint32_t error, links_refused;    /* ncclResult_t of that error; links for which there was no row */
  uint64_t streams[RECORD_STREAMS]; /* stream handles, which records refer to by index */
  /* updated while the communicator runs, each by one thread */
  uint64_t tail;       /* records written so far; the ring holds the last ring_records of them */
  uint64_t calls;      /* operations called so far: the number of the next one */
  uint32_t open_group; /* the group that its thread is in; 0 if none */
  uint32_t counts;     /* enum record_counts, for the next four */
  uint64_t launched, started, ended, moved_ticks; /* kernels, and when the last one ended */
  uint64_t links_used, proxies_used;
  uint32_t pace_rows, pace_offset; /* 0 if the writer had no such table */
  uint64_t paces_used;
  /* Kernels launched by graphs leave no records. graph_operation: low bits of the captured operation that is
   * under way, plus one; 0 if none is. graph_runs: how many such kernels have started; 0 if not counted. */
  uint32_t graph_operation, graph_runs;
  uint32_t input_rows, input_offset; /* sections whose header_bytes end before them have none */
};
/* The tables of a section begin here; those of earlier releases at byte 512. */
#define RECORD_COMM_BYTES 1024u
#define RECORD_COMM_LEAST 512u
static_assert(sizeof(struct record_comm) <= RECORD_COMM_BYTES, "tables come after it");

enum record_kind {
  RECORD_NONE = 0,
  RECORD_CALL = 1,    /* an operation was called; its RECORD_PLACE follows directly */
  RECORD_PLACE = 2,   /* its buffers, stream and caller */
  RECORD_LAUNCH = 3,  /* operations were launched on the device */
  RECORD_ERROR = 4,   /* a call failed */
  RECORD_DROP = 5,    /* a group failed: operations from `sequence` on do not take place */
  RECORD_LIFE = 6,    /* enum record_life */
  RECORD_MISMATCH = 7 /* a call that was refused because it differs from another rank's, or as the first one
                       * after the failure; as RECORD_CALL, with the numbers that it would have had; its
                       * RECORD_PLACE and RECORD_ERROR follow */
};
enum record_life {
  LIFE_FINALIZE = 1,
  LIFE_DESTROY = 2,
  LIFE_ABORT = 3,
  LIFE_REVOKE = 4,
  LIFE_SPLIT = 5,
  LIFE_SUSPEND = 6,
  LIFE_RESUME = 7
};

struct record_call {
  uint8_t kind, func; /* enum work_func */
  uint8_t dtype, op;  /* ncclDataType_t; ncclRedOp_t, 255: the user's own */
  uint32_t peer;      /* the root, or the other rank of a message; else 0 */
  uint64_t ticks, count;
  uint32_t sequence;   /* low bits of the operation's number on the communicator */
  uint32_t collective; /* low bits of how many collectives were called before it */
};
struct record_place {
  uint8_t kind, stream; /* index into streams; 255 if the stream is not there */
  uint16_t flags;       /* enum record_flag */
  uint32_t group;       /* number of the group of this call; 0 if none */
  uint64_t in, out, caller;
};
enum record_flag { RECORD_CACHED = 1 /* a repeated call that took the fast path */ };
struct record_launch {
  uint8_t kind, captured; /* captured: into a graph, which runs it any number of times */
  uint16_t streams;
  uint32_t operations;
  uint64_t ticks;
  uint32_t sequence; /* of the first operation; low bits */
  uint32_t plan;     /* low bits of the plan's number; its row is the number modulo plan_rows */
  uint64_t number;   /* kernels that were launched before it */
};
struct record_error {
  uint8_t kind, unused[3];
  uint32_t result; /* ncclResult_t */
  uint64_t ticks, sequence, zero;
};
struct record_life_event {
  uint8_t kind, life; /* enum record_life */
  uint8_t unused[6];
  uint64_t ticks, sequence, zero;
};

/* A plan: the parameters of its first work element, and a digest of all that the ranks must agree on. */
struct record_plan {
  uint8_t used, func, algo, proto; /* used: 1 */
  uint16_t works, channels;
  uint32_t number;     /* low bits */
  uint32_t step_bytes; /* of its protocol's slots */
  uint64_t digest;
  uint32_t chunk_elements;
  uint8_t chunk_steps, slice_steps, slots, element_bytes;
};

/* One of the inputs of all plans of the communicator besides its calls: settings, topology, the places of its
 * ranks. core/plan/plan_inputs.c says what a, b and c are of each. */
enum record_input_name {
  INPUT_END, /* the last one; a: rows before it; b: 1 if there was no space for all */
  INPUT_RANKS,
  INPUT_PLACES,
  INPUT_TOPOLOGY,
  INPUT_TOPOLOGY_RULES,
  INPUT_MASKS,   /* index: enum work_func */
  INPUT_THREADS, /* index: enum work_proto */
  INPUT_RULE_BYTES,
  INPUT_RULE_CHOICE,
  INPUT_SLOTS,
  INPUT_STEP_BYTES_LL,
  INPUT_STEP_BYTES_LL128,
  INPUT_STEP_BYTES_SIMPLE,
  INPUT_CHUNK_BYTES,
  INPUT_P2P_CHUNK_BYTES,
  INPUT_CHANNELS,
  INPUT_P2P_CHANNELS,
  INPUT_P2P_CHANNELS_PER_PEER,
  INPUT_FLAG_BITS,
  INPUT_DIRECT,
  INPUT_ALGOS,
  INPUT_ALGOS_LAST,
  INPUT_LINKS,
  INPUT_PROTOS,
  INPUT_RESERVED_BYTES,
  INPUT_CORES,
  INPUT_QUICK_PROTOS,
  INPUT_PROTOS_TORN,
  INPUT_ALGOS_OFF,
  INPUT_P2P_LL_THRESHOLD,
  INPUT_NET_PEER_CHANNELS,
  INPUT_NET_PLAIN,
  INPUT_FIRST_STEP,
  INPUT_RANK_ORDER, /* without this row: false */
  INPUT_READS_SLOTS,
  INPUT_ON_HOST, /* without this row: false */
  INPUT_SHAPE,   /* index: row; the node of the ranks' machines (core/topology/shape.h), if made from it */
  INPUT_NAMES
};
struct record_input {
  uint8_t used, name; /* used: 1; enum record_input_name */
  uint16_t index;
  uint32_t zero;
  uint64_t a, b, c;
};

/* The position of a lane that has waited for long. */
enum record_wait { WAITS_NOT, WAITS_OFFER, WAITS_DATA, WAITS_SLOT, WAITS_LL, WAITS_LIST };
struct record_lane {
  uint8_t used, channel, lane, wait; /* used: 1; enum record_wait */
  uint32_t peer;
  uint32_t sequence; /* of the operation; low bits */
  uint32_t step;     /* steps completed in it */
  uint64_t have, need;
};
/* One end of a connection, as this rank saw it when a lane last waited on it. */
struct record_link {
  uint8_t used, channel, proto, conn; /* used: 1; conn: enum work_conn, and 128 for the sender's end */
  uint32_t peer;
  uint64_t step, head, tail; /* where the next slice begins; slots freed; slots filled */
};
#define RECORD_LINK_SENDS 128u

/* The proxy's end of a connection over a network: the low bits of its message counters. A sender's proxy
 * counts posted, transmitted (to the network), done; a receiver's counts posted (buffers), received, flushed,
 * transmitted (to the kernel), done. */
struct record_proxy {
  uint8_t used, channel, proto, conn; /* as in record_link */
  uint32_t peer;
  uint32_t posted, received, flushed, transmitted, done, connected; /* connected: 1 */
};

/* How long one end of a connection waits for the network: a sender while a message of its own is in flight, a
 * receiver while it has a buffer posted. A link is slow if both ends wait for it. Old waits lose weight: once
 * [begin, now) is longer than RECORD_PACE_TICKS, begin moves to its middle. */
struct record_pace {
  uint8_t used, channel, device, conn; /* used: 1; device: NIC; conn: as in record_link */
  uint32_t peer;
  uint64_t begin; /* ticks from which waited and count are measured */
  uint64_t since; /* ticks of the last message, while the end waits for the next one; else 0 */
  /* since begin: ticks / RECORD_PACE_UNIT of waits that ended, without the two longest; messages completed */
  uint32_t waited, count;
};
#define RECORD_PACE_UNIT 16u
#define RECORD_PACE_TICKS (UINT64_C(1) << 33)

union record {
  uint8_t kind;
  struct record_call call;
  struct record_place place;
  struct record_launch launch;
  struct record_error error;
  struct record_life_event life;
  uint8_t bytes[RECORD_BYTES];
};
static_assert(sizeof(union record) == RECORD_BYTES, "the format says so");
static_assert(sizeof(struct record_plan) == RECORD_BYTES, "the format says so");
static_assert(sizeof(struct record_lane) == RECORD_BYTES, "the format says so");
static_assert(sizeof(struct record_link) == RECORD_BYTES, "the format says so");
static_assert(sizeof(struct record_proxy) == RECORD_BYTES, "the format says so");
static_assert(sizeof(struct record_pace) == RECORD_BYTES, "the format says so");
static_assert(sizeof(struct record_input) == RECORD_BYTES, "the format says so");

#endif
