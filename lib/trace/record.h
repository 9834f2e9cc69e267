/* record.h: what a recorder's file looks like, drawn in traces/README.md: a header, then one section for each
 * communicator that a rank of this process had, with a ring of records of 32 bytes and tables of what is
 * going on now. Little endian, the same layout in the file and in memory. Whoever reads a file trusts none of
 * its numbers (record_read.h). */
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
  RECORD_ENDED = 1,  /* in good order: a process that exited, a communicator that was destroyed */
  RECORD_ABORTED = 2 /* communicators: ncclCommAbort */
};

struct record_header {
  char magic[8]; /* RECORD_MAGIC, no zero */
  uint32_t version, byte_order;
  uint32_t header_bytes, record_bytes;     /* RECORD_PAGE_BYTES, RECORD_BYTES */
  uint64_t used_bytes;                     /* where the last section ends */
  uint64_t process_realm, process_born;    /* struct os_process */
  uint32_t process, state;                 /* enum record_state */
  uint64_t first_ticks, first_ns, wall_ns; /* the clock of records, and what it was then in nanoseconds */
  uint64_t last_ticks, last_ns;            /* the same a while later, for the clock's rate; 0: not yet */
  uint32_t rank;                           /* of the first communicator: what %r became */
  uint32_t refused;                        /* communicators for which there was no space */
  char host[64], library[32];
  char control[64]; /* where its control server listens, as text; "": it has none, or is of before */
};
static_assert(sizeof(struct record_header) == 264, "the format says so");

/* Behind the header, in its page: who calls, by the return addresses of records. */
#define RECORD_CALLERS 48u
#define RECORD_CALLERS_OFFSET 1024u
struct record_caller {
  uint64_t address; /* 0: free */
  uint64_t offset;  /* from where its file is mapped, as addr2line wants it */
  char file[48];    /* without folders */
};
static_assert(RECORD_CALLERS_OFFSET + RECORD_CALLERS * sizeof(struct record_caller) == RECORD_PAGE_BYTES,
              "they fill the page");

/* A section begins so; readers skip sections of kinds that they do not know. */
enum record_section_kind { RECORD_SECTION_COMM = 1 };
struct record_section {
  uint32_t kind, header_bytes;
  uint64_t bytes; /* of all of it, a multiple of RECORD_PAGE_BYTES */
};

/* Whether the backend keeps counts of kernels: no; always; as they were when it last looked. */
enum record_counts { RECORD_COUNTS_NONE = 0, RECORD_COUNTS_TRUE = 1, RECORD_COUNTS_SEEN = 2 };

#define RECORD_STREAMS 16
#define RECORD_REASON_BYTES 128
#define RECORD_PLANS 64

/* A communicator of one rank. Offsets count from the section's begin. */
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
  char reason[RECORD_REASON_BYTES]; /* why it broke, "" if it did not */
  uint32_t error, links_refused;    /* ncclResult_t that it broke with */
  uint64_t streams[RECORD_STREAMS]; /* handles that records name by number */
  /* live, each written by one thread */
  uint64_t tail;       /* records written since the begin; the last ring_records of them are there */
  uint64_t calls;      /* operations called: the next one's number */
  uint32_t open_group; /* the group that its thread is in, 0: none */
  uint32_t counts;     /* enum record_counts, of the next four */
  uint64_t launched, started, ended, moved_ticks; /* kernels, and when the last one ended */
  uint64_t links_used, proxies_used;
  uint32_t pace_rows, pace_offset; /* 0 where the writer knew of none */
  uint64_t paces_used;
  /* of kernels that graphs launch, for which there are no records: of the one under way the operation that
   * was captured, low bits and one more, 0: none is; and how many have begun, 0 where nobody counts */
  uint32_t graph_operation, graph_runs;
};
static_assert(sizeof(struct record_comm) == 512, "the format says so");

enum record_kind {
  RECORD_NONE = 0,
  RECORD_CALL = 1,   /* an operation was called; a place follows at once */
  RECORD_PLACE = 2,  /* where its memory is, and its caller */
  RECORD_LAUNCH = 3, /* operations were handed to the device */
  RECORD_ERROR = 4,  /* a call failed */
  RECORD_DROP = 5,   /* a group was given up: operations from `sequence` on have not been */
  RECORD_LIFE = 6    /* enum record_life */
};
enum record_life { LIFE_FINALIZE = 1, LIFE_DESTROY = 2, LIFE_ABORT = 3, LIFE_REVOKE = 4, LIFE_SPLIT = 5 };

struct record_call {
  uint8_t kind, func; /* enum work_func */
  uint8_t dtype, op;  /* ncclDataType_t; ncclRedOp_t, 255: the user's own */
  uint32_t peer;      /* root, or the other rank of a message; 0 elsewhere */
  uint64_t ticks, count;
  uint32_t sequence;   /* low bits of the operation's number on the communicator */
  uint32_t collective; /* low bits of how many collectives were called before it */
};
struct record_place {
  uint8_t kind, stream; /* number in streams; 255: none of those */
  uint16_t flags;       /* enum record_flag */
  uint32_t group;       /* number of the group that it is in, 0: none */
  uint64_t in, out, caller;
};
enum record_flag { RECORD_CACHED = 1 /* it went the fast path of calls that are made again */ };
struct record_launch {
  uint8_t kind, captured; /* captured: a graph has it, and launches it as often as it likes */
  uint16_t streams;
  uint32_t operations;
  uint64_t ticks;
  uint32_t sequence; /* of the first operation; low bits */
  uint32_t plan;     /* low bits of the plan's number; its row is that modulo plan_rows */
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

/* A plan, by its number: what its first work says, and of all of them what ranks have in common. */
struct record_plan {
  uint8_t used, func, algo, proto; /* used: 1 */
  uint16_t works, channels;
  uint32_t number;     /* low bits */
  uint32_t step_bytes; /* of its protocol's slots */
  uint64_t digest;
  uint32_t chunk_elements;
  uint8_t chunk_steps, slice_steps, slots, element_bytes;
};

/* Where a lane that had to wait for long stands. */
enum record_wait { WAITS_NOT, WAITS_OFFER, WAITS_DATA, WAITS_SLOT, WAITS_LL, WAITS_LIST };
struct record_lane {
  uint8_t used, channel, lane, wait; /* used: 1; enum record_wait */
  uint32_t peer;
  uint32_t sequence; /* of the operation; low bits */
  uint32_t step;     /* steps of it that are done */
  uint64_t have, need;
};
/* One end of a connection, as this rank knew it when a lane of it had to wait. */
struct record_link {
  uint8_t used, channel, proto, conn; /* used: 1; conn: enum work_conn, and 128 for the sender's end */
  uint32_t peer;
  uint64_t step, head, tail; /* where the next slice begins; slots freed; slots filled */
};
#define RECORD_LINK_SENDS 128u

/* The host's half of a connection over a network, in messages: low bits of its counters. A sender's proxy
 * counts posted, transmitted (to the network), done; a receiver's posted (space for it), received, flushed,
 * transmitted (to the kernel), done. */
struct record_proxy {
  uint8_t used, channel, proto, conn; /* as of links */
  uint32_t peer;
  uint32_t posted, received, flushed, transmitted, done, connected; /* connected: 1 */
};

/* How long an end of a connection waits for the path between the two: a sender for what it has handed to the
 * network, a receiver, which has space, for what comes. A link that both wait for is what is slow. What is
 * old counts less and less: once [begin, now) is longer than RECORD_PACE_TICKS, begin moves to its middle. */
struct record_pace {
  uint8_t used, channel, device, conn; /* used: 1; device: NIC; conn: as of links */
  uint32_t peer;
  uint64_t begin,
      since; /* ticks: what is counted from; the last message while it waits for one, 0: it does not */
  uint32_t waited,
      count; /* since begin: ticks / RECORD_PACE_UNIT, without what goes on; messages that came */
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

#endif
