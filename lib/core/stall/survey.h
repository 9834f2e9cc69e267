/* survey.h: gathers the records of all processes of a job over control connections, for `tutti status` and
 * the watchdog. Each process is asked for its communicators, section by section, reduced to what diagnoses
 * need (trace/record_image.h); communicators that the asking process is not in lead to more processes.
 * Processes that do not answer are listed. Uses only records and addresses: no backend, no lock of a
 * communicator. */
#ifndef TUTTI_CORE_SURVEY_H
#define TUTTI_CORE_SURVEY_H

#include "base/os.h"
#include "base/secret.h"
#include "base/sock.h"
#include "trace/record_read.h"

struct remote;

/* ---- the answering side ---- */

/* Adds a communicator of several processes, which others may ask about; it leaves before its server ends. */
ncclResult_t survey_join(struct remote *remote);
void survey_leave(struct remote *remote);

/* The processes of a communicator that has joined, in the same order everywhere. */
struct survey_processes {
  struct secret secret; /* of the communicator */
  uint32_t own, count;
  struct sock_address *addresses;
};
/* The first joined communicator from *index on with this comm_id (0: any); false: none, or no memory. The
 * caller frees its addresses. */
bool survey_processes(uint32_t *index, uint64_t comm_id, struct survey_processes *processes);

/* ---- gathering ---- */

/* A survey in transit: entries one after another, each padded to a multiple of 8 bytes. */
enum survey_kind { SURVEY_IMAGE = 1 /* a file of records */, SURVEY_SILENT = 2 /* struct survey_silent */ };
struct survey_entry {
  uint32_t kind, bytes; /* bytes: after this head */
};
enum survey_why {
  SURVEY_UNASKED,
  SURVEY_TIMEOUT,
  SURVEY_GONE,
  SURVEY_LEFT,
  SURVEY_EMPTY,
  SURVEY_STOPPED, /* reported by an observer of the process, never by a process */
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
/* Gathers everything that this process can reach, itself first; *called_off cancels it. False if memory is
 * out. */
bool survey_gather(const uint32_t *called_off, struct survey_bytes *survey);

/* ---- reading ---- */

struct survey {
  struct record_file *files; /* named after their source */
  uint32_t file_count;
  struct survey_silent *silents;
  uint32_t silent_count;
};
/* Reads a survey from untrusted `bytes`, which must be aligned to 8 and outlive *survey. Invalid entries are
 * skipped and counted in *refused. False if memory is out. */
bool survey_read(const void *bytes, size_t byte_count, struct survey *survey, uint32_t *refused);
void survey_free(struct survey *survey);

/* ---- asking another process ---- */

/* The first word of a request. */
enum survey_ask { SURVEY_ASK_OWN = 1, SURVEY_ASK_RANKS, SURVEY_ASK_JOB };
struct survey_question {
  uint32_t kind, zero;
  uint64_t cursor; /* 0 at first, then `next` of the last answer */
  uint64_t which;  /* OWN: 0; RANKS: the communicator; JOB: the survey, 0: a new one */
};
enum survey_state { SURVEY_READY, SURVEY_WORKING, SURVEY_NOTHING };
struct survey_reply {
  uint64_t next;  /* the next cursor; 0: complete */
  uint64_t which; /* JOB: the survey */
  uint32_t state, bytes;
  struct secret ticket; /* RANKS: lets the asker ask these ranks' processes, and do nothing else there */
};
struct survey_rank {
  struct sock_address address;
  uint32_t rank, process;
  char host[64];
};

/* Fetches what the process at `to`, which has the same TUTTI_SECRET, can gather, until `deadline_ns`. A
 * failure logs its message. The caller frees survey->bytes. */
ncclResult_t survey_fetch(const struct sock_address *to, uint64_t deadline_ns, struct survey_bytes *survey);
/* The same from a process of this host and user, without a secret. */
ncclResult_t survey_fetch_here(const struct os_process *process, uint64_t deadline_ns,
                               struct survey_bytes *survey);

#endif
