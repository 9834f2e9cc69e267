/* gather.h: this process's part in creating one communicator together with other processes. Each process
 * registers its ranks with the root. When every rank has checked in, the root sends each process its number
 * and its neighbours, and the processes allgather the peer info of their ranks in O(log processes) rounds. If
 * anything fails (a rank missing at the deadline, a contradiction, a lost process), every process that
 * checked in gets the same code and a message that names the rank. Runs blocking on the caller's thread;
 * the rendezvous gives it a thread.
 *
 *   gather_open -> gather_check_in (any thread, one rank per call) -> gather_wait -> gather_agree ->
 *   gather_watch, gather_close */
#ifndef TUTTI_CORE_GATHER_H
#define TUTTI_CORE_GATHER_H

#include "base/secret.h"
#include "base/sock.h"

#define GATHER_INFO_MOST 4096

struct gather;
struct watch;

/* Where processes check in, and the secret that lets them in: of the root's id, or of a split's parent. */
struct gather_root {
  struct sock_address address;
  struct secret let_in;
};

struct gather_call {
  const char *call;                /* "ncclCommInitRank", for messages; outlives the gather */
  struct secret secret;            /* of the rendezvous: of its first id, or derived from its parent's */
  const struct gather_root *roots; /* ranks are spread over them evenly, in order; copied */
  uint32_t root_count;
  bool child; /* a split, shrink or grow: no id is registered, the first process to check in opens the root */
  uint32_t rank_count;
  uint64_t signature; /* everything besides rank_count that must be equal on all ranks */
  bool fixed;         /* the root has an agreed address: the first rank that joins in rank 0's process opens
                       * it. That process may start late or still be ending its last communicator, so
                       * others retry */
  bool lasting;       /* fixed, for one communicator after another */
};

/* One rank's peer info, aligned to 8 bytes; lives as long as the gather. */
struct gather_rank {
  const void *info;
  uint32_t info_bytes, process_index;
};

ncclResult_t gather_open(const struct gather_call *call, struct gather **gather);
/* Adds a rank of this process. gather_wait reports contradictions. */
ncclResult_t gather_check_in(struct gather *gather, uint32_t rank, const void *info, uint32_t info_bytes);
/* Waits until the peer info of every rank has arrived, at most TUTTI_INIT_TIMEOUT_SECONDS. Logs missing ranks
 * from time to time. On failure `reason` has the message, without the call's name. */
ncclResult_t gather_wait(struct gather *gather, char *reason, size_t reason_bytes);
/* Valid after gather_wait: a secret of this communicator alone, equal in all processes; even one that the
 * same id makes later has another. */
void gather_communicator(const struct gather *gather, struct secret *secret);
/* Valid after gather_wait: by rank, and by process. */
const struct gather_rank *gather_ranks(const struct gather *gather);
uint32_t gather_rank_count(const struct gather *gather);
uint32_t gather_process_count(const struct gather *gather);
uint32_t gather_own_process(const struct gather *gather);
const struct sock_address *gather_address(const struct gather *gather, uint32_t process_index);
/* All processes exchange their results in O(log processes) rounds; every process gets the failure of the
 * lowest process that failed. May be called again: each call is one more agreement. */
ncclResult_t gather_agree(struct gather *gather, ncclResult_t own, char *reason, size_t reason_bytes);
/* As gather_agree(), for failures that the processes may recover from. *about is in: the process that caused
 * the own failure, and what the caller says of it; out: those of the failure all agree on.
 * GATHER_NO_PROCESS: no process caused it, or the gather itself has failed. */
#define GATHER_NO_PROCESS UINT32_MAX
struct gather_about {
  uint32_t process_index;
  uint64_t detail;
};
ncclResult_t gather_agree_about(struct gather *gather, ncclResult_t own, struct gather_about *about,
                                char *reason, size_t reason_bytes);
/* From any thread: ends the gather for all processes; `why` is like "rank 3 was aborted". */
void gather_cancel(struct gather *gather, ncclResult_t code, const char *why);
void gather_close(struct gather *gather);

/* ---- afterwards: detection of lost processes ----
 * Takes over some of the gather's links. Each process watches a few others. A link that breaks without a
 * goodbye, or is silent for TUTTI_PEER_TIMEOUT_SECONDS, means a lost process, which is reported to all.
 * `lost` is called on the server's thread, once for each lost process (key 0) and once for each failure that
 * a process reports (its key), with a message that has the process's address and how the loss showed. `lost`
 * must not block. It is not called for this process's own failure. */
typedef void watch_lost(void *argument, uint32_t process_index, uint64_t key, ncclResult_t code,
                        const char *text);
ncclResult_t gather_watch(struct gather *gather, watch_lost *lost, void *argument, struct watch **watch);
/* Reports that this process has failed, or gives up, in the communicator `key`: calls `lost` in every other
 * process. Any thread; never blocks. */
void watch_fail(struct watch *watch, uint64_t key, ncclResult_t code, const char *text);
/* Leaves in an orderly way, so that the others do not report a loss. On return no call of `lost` is running.
 */
void watch_leave(struct watch *watch);

/* Costs of a gather, for measurements: time and bytes by phase. */
struct gather_cost {
  uint64_t check_in_ns, allgather_ns, agree_ns;
  uint64_t root_bytes, sent_bytes,
      received_bytes; /* root_bytes: what this process's root sent and received */
  uint32_t rounds;
};
struct gather_cost gather_costs(const struct gather *gather);

#endif
