/* party.h: parties of a gather, for tests: as threads of this process, or as processes forked from it. */
#ifndef TUTTI_TESTS_PARTY_H
#define TUTTI_TESTS_PARTY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/os.h"
#include "core/bootstrap.h"
#include "core/control.h"
#include "core/gather.h"

#define PARTIES_MOST 64

/* ThreadSanitizer follows no fork of a process with threads. */
#ifdef __SANITIZE_THREAD__
#define PARTY_SKIP_FORK() skip()
#else
#define PARTY_SKIP_FORK() (void)0
#endif

struct party {
  struct gather_call call;
  struct sock_address roots[8];
  uint32_t seats[16], seat_count;
  uint32_t delay_ms;       /* before it opens */
  ncclResult_t own_result; /* what it tells the others in gather_agree */
  bool stays;              /* keeps its watch; else it leaves */
  uint32_t die_at;         /* a process kills itself at the n-th of its steps; 0: never */
  /* results */
  ncclResult_t result;
  char reason[512];
  bool cards_good;
  uint32_t party_count, party;
  struct watch *watch;
  uint32_t lost_count, lost_party; /* read atomically */
  uint64_t lost_key;
  ncclResult_t lost_code;
  char lost_text[512];
  os_thread thread;
  pid_t pid;
};

/* Sets the environment of these tests: loopback, short deadlines; name and value pairs, then NULL. */
void party_environment(const char *name, ...);
struct bootstrap_id party_id(void);
/* `count` parties of `each` seats in order, for this id. */
void party_fill(struct party *parties, uint32_t count, uint32_t each, const struct bootstrap_id *id);
/* open, check in, wait, agree, watch, close; and leave unless it stays. */
void party_run(struct party *party);
void party_threads_start(struct party *parties, uint32_t count);
void party_threads_join(struct party *parties, uint32_t count);
/* Memory that forked processes share with the test. */
struct party *party_shared(uint32_t count);
/* A process that runs the party, then lives on until it is killed when it stays. */
void party_fork(struct party *party);
bool party_wait_lost(struct party *party, uint32_t timeout_ms);
/* Descriptors that this process has open. */
uint32_t party_descriptors(void);

#endif
