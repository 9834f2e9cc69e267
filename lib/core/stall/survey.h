/* survey.h: what all processes of a job have recorded, gathered over control connections, for `tutti status`
 * and the watchdog. A process is asked for its communicators, section by section, each cut down to what
 * diagnoses need (trace/record_image.h); communicators that the asker is not in lead to more processes. Who
 * does not answer is named. Rests on records and addresses alone: no backend, no lock of a communicator. */
#ifndef TUTTI_CORE_SURVEY_H
#define TUTTI_CORE_SURVEY_H

#include "base/sock.h"
#include "trace/record_read.h"

struct remote;

/* ---- the server's side ---- */

/* A communicator of several processes, which others may ask about; before its server goes, it leaves. */
ncclResult_t survey_join(struct remote *remote);
void survey_leave(struct remote *remote);

/* The processes of a communicator that has joined, in the same order everywhere. */
struct survey_processes {
  uint64_t wire_key;
  uint32_t own, count;
  struct sock_address *addresses;
};
/* The first behind *index whose number is comm_id, or 0 for any; false: there is none, or no memory. Its
 * addresses are the caller's to free. */
bool survey_processes(uint32_t *index, uint64_t comm_id, struct survey_processes *processes);

/* ---- gathering ---- */

/* A survey as it travels: entries one after another, each with its bytes, a multiple of 8. */
enum survey_kind { SURVEY_IMAGE = 1 /* a file of records */, SURVEY_SILENT = 2 /* struct survey_silent */ };
struct survey_entry {
  uint32_t kind, bytes; /* bytes: behind this head */
};
enum survey_why {
  SURVEY_UNASKED,
  SURVEY_TIMEOUT,
  SURVEY_GONE,
  SURVEY_LEFT,
  SURVEY_EMPTY,
  SURVEY_STOPPED, /* said by who sees the process, never by a process */
  SURVEY_WHY_COUNT
};
/* A rank whose process has not answered. */
struct survey_silent {
  uint64_t comm_id;
  uint32_t rank, why; /* enum survey_why */
  struct sock_address address;
  uint32_t process, zero;
  char host[64];
};
const char *survey_why_text(uint32_t why);

struct survey_bytes {
  uint8_t *bytes;
  size_t used, capacity;
};
/* Everything that this process can reach, itself first; *called_off ends it early. False when memory is out.
 */
bool survey_gather(const uint32_t *called_off, struct survey_bytes *survey);

/* ---- reading ---- */

struct survey {
  struct record_file *files; /* their names are where they came from */
  uint32_t file_count;
  struct survey_silent *silents;
  uint32_t silent_count;
};
/* `bytes`, which may say anything, must stay, aligned to 8. What makes no sense is left out and counted in
 * *refused. False when memory is out. */
bool survey_read(const void *bytes, size_t byte_count, struct survey *survey, uint32_t *refused);
void survey_free(struct survey *survey);

/* ---- asking another process ---- */

/* The first word of what is asked under SURVEY_KEY. */
#define SURVEY_KEY UINT64_C(0x7375727665790001)
enum survey_ask { SURVEY_ASK_OWN = 1, SURVEY_ASK_RANKS, SURVEY_ASK_JOB };
struct survey_question {
  uint32_t kind, zero;
  uint64_t cursor; /* 0 at first, then what the last answer said */
  uint64_t which;  /* OWN: 0; RANKS: the communicator; JOB: the survey, 0: a fresh one */
};
enum survey_state { SURVEY_READY, SURVEY_WORKING, SURVEY_NOTHING };
struct survey_reply {
  uint64_t next;  /* the next cursor; 0: that was all */
  uint64_t which; /* JOB: the survey */
  uint32_t state, bytes;
};
struct survey_rank {
  struct sock_address address;
  uint32_t rank, process;
  char host[64];
};

/* What the process at `to` can gather, until `deadline_ns`. ncclSuccess, or a failure with its sentence; the
 * caller frees survey->bytes. */
ncclResult_t survey_fetch(const struct sock_address *to, uint64_t deadline_ns, struct survey_bytes *survey);

#endif
