/* gather.h: this process's part in making one communicator together with others. Each process registers
 * its ranks with the root; when every rank has come, the root tells
 * each process its number and its neighbours, and the processes exchange what each rank has to say (its peer
 * info) in O(log processes) rounds. Whatever goes wrong (a rank missing at the deadline, a contradiction, a
 * process lost), every process that checked in gets the same code and a sentence that names the rank. Runs on
 * the thread that calls it, blocking; rendezvous.c gives it one.
 *
 *   gather_open -> gather_check_in (any thread, a rank at a time) -> gather_wait -> gather_agree ->
 *   gather_watch, gather_close */
#ifndef TUTTI_CORE_GATHER_H
#define TUTTI_CORE_GATHER_H

#include "base/sock.h"

#define GATHER_INFO_MOST 4096

struct gather;
struct watch;

struct gather_call {
  const char *call;                 /* "ncclCommInitRank", for sentences; lives as long as the gather */
  uint64_t key;                     /* names the rendezvous on the wire; hard to guess */
  const struct sock_address *roots; /* ranks are spread over them evenly, in order; copied */
  uint32_t root_count;
  bool child; /* a split or shrink: the root has no id for it, the first to come opens it */
  uint32_t rank_count;
  uint64_t signature; /* whatever all must agree in beside rank_count */
  bool fixed;         /* the root is at an agreed place: the first to come to rank 0's process opens it, and
                       * that process may come late, or still be busy ending: it is awaited */
  bool lasting;       /* fixed, for one communicator after another */
};

/* What one rank said; peer info is aligned to 8 bytes, and lives as long as the gather. */
struct gather_rank {
  const void *info;
  uint32_t info_bytes, process_index;
};

ncclResult_t gather_open(const struct gather_call *call, struct gather **gather);
/* Takes a rank for this process. A contradiction shows in gather_wait. */
ncclResult_t gather_check_in(struct gather *gather, uint32_t rank, const void *info, uint32_t info_bytes);
/* Until every rank's peer info is here: TUTTI_INIT_TIMEOUT_SECONDS at most. Logs now and then who is missing.
 * On failure reason has the sentence, without the call's name. */
ncclResult_t gather_wait(struct gather *gather, char *reason, size_t reason_bytes);
/* After gather_wait: by rank; and by process. */
const struct gather_rank *gather_ranks(const struct gather *gather);
uint32_t gather_process_count(const struct gather *gather);
uint32_t gather_own_process(const struct gather *gather);
const struct sock_address *gather_address(const struct gather *gather, uint32_t process_index);
/* All processes say how they fared, in O(log processes) rounds: the failure of the lowest process that has
 * one is everybody's result. May be called again: each call is one more round of agreement. */
ncclResult_t gather_agree(struct gather *gather, ncclResult_t own, char *reason, size_t reason_bytes);
/* The same, for failures that need not be the end: *about is the process that this one's failure is about,
 * and becomes the process that everybody's is about; GATHER_NO_PROCESS where there is none, or where the
 * gather itself has failed. */
#define GATHER_NO_PROCESS UINT32_MAX
ncclResult_t gather_agree_about(struct gather *gather, ncclResult_t own, uint32_t *about, char *reason,
                                size_t reason_bytes);
/* From any thread: ends the gather for all processes; `why` as in "rank 3 was aborted". */
void gather_cancel(struct gather *gather, ncclResult_t code, const char *why);
void gather_close(struct gather *gather);

/* ---- afterwards: who is still there ----
 * Takes over some of the gather's links. Each process listens to a few others: a link that breaks without a
 * goodbye, or stays silent for TUTTI_PEER_TIMEOUT_SECONDS, is a lost process, and the news is passed on to
 * all. `lost` is called on the server's thread, once for each process that is lost (key 0) and for each
 * failure that one has told (its key), with a sentence of what happened to it (address, and how it showed);
 * it must not block. The sender of a failure does not hear of it. */
typedef void watch_lost(void *argument, uint32_t process_index, uint64_t key, ncclResult_t code,
                        const char *text);
ncclResult_t gather_watch(struct gather *gather, watch_lost *lost, void *argument, struct watch **watch);
/* This process has failed, or gives up, in the communicator that `key` names: every other process's `lost`
 * will say so. Any thread, never blocks. */
void watch_fail(struct watch *watch, uint64_t key, ncclResult_t code, const char *text);
/* An orderly goodbye: the others do not miss this process. No call of `lost` is under way when it returns. */
void watch_leave(struct watch *watch);

/* What a gather took, for measurements: time and bytes by phase. */
struct gather_cost {
  uint64_t check_in_ns, allgather_ns, agree_ns;
  uint64_t root_bytes, sent_bytes,
      received_bytes; /* root_bytes: what this process's root sent and received */
  uint32_t rounds;
};
struct gather_cost gather_costs(const struct gather *gather);

#endif
