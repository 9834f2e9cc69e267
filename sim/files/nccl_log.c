/* nccl_log.c: reads lines of logs with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,COLL, NCCL's and this
 * library's. Without the prefix "HOST:PID:TID [DEV] NCCL INFO" they are:
 *
 *   ncclCommInitRank comm 0xA rank 3 nranks 8 cudaDev 3 ... commId 0xB - Init COMPLETE
 *
 *   AllReduce: opCount 3a sendbuff 0x.. recvbuff 0x.. count 1024 datatype 7 op 0 root 0 comm 0xA ...
 *
 * They show what was called, but not whether it was launched or has ended. If lines of the first kind are
 * missing, communicators are distinguished by their size, and ranks by device and order. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/array.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"
#include "files/import.h"
#include "schedule/work.h"
#include "trace/record_text.h"

enum { LINE_BYTES = 2048, BUCKETS = 4096, COMMS_MOST = 4096 };
#define NO_RANK UINT32_MAX
#define SPEAKS " NCCL INFO "

/* Data that records have no field for, by the communicator's number in the image. */
struct handle {
  uint64_t pointer;
  uint32_t global_rank; /* NO_RANK: unknown */
};

struct process {
  const char *path; /* the file in which it was first found */
  struct image image;
  struct handle *handles;
  uint32_t handle_capacity;
  uint32_t next; /* next in its bucket, plus one; 0: it is the last */
};

struct nccl_log {
  struct process *processes;
  uint32_t count, capacity;
  uint64_t line; /* of all files: the only clock */
  uint32_t buckets[BUCKETS];
};

struct nccl_log *nccl_log_open(void) {
  return (struct nccl_log *)os_alloc(sizeof(struct nccl_log));
}

void nccl_log_close(struct nccl_log *log) {
  if (log == NULL) return;
  for (uint32_t i = 0; i < log->count; i++) {
    image_free(&log->processes[i].image);
    os_free(log->processes[i].handles);
  }
  os_free(log->processes);
  os_free(log);
}

uint32_t nccl_log_processes(const struct nccl_log *log) { return log->count; }

const struct image *nccl_log_image(const struct nccl_log *log, uint32_t process, const char **path) {
  *path = log->processes[process].path;
  return &log->processes[process].image;
}

/* A library's file contains such words too, among zeros. */
bool nccl_log_is(const char *text, size_t text_bytes) {
  if (text_bytes == 0 || memchr(text, 0, text_bytes < 4096 ? text_bytes : 4096) != NULL) return false;
  return memmem(text, text_bytes, SPEAKS, strlen(SPEAKS)) != NULL;
}

/* ---- words of a line ---- */

/* The text after " KEY "; NULL: the line has no such key. */
static const char *value_of(const char *line, const char *key) {
  const size_t length = strlen(key);
  for (const char *at = strstr(line, key); at != NULL; at = strstr(at + 1, key))
    if ((at == line || at[-1] == ' ') && at[length] == ' ') return at + length + 1;
  return NULL;
}

static uint64_t number_of(const char *line, const char *key, int base, uint64_t otherwise) {
  const char *value = value_of(line, key);
  char *end;
  if (value == NULL) return otherwise;
  const uint64_t number = strtoull(value, &end, base);
  return end != value ? number : otherwise;
}

/* ---- the process of a line ---- */

struct speaker {
  char host[64];
  uint32_t process, device; /* NO_RANK: none */
};

/* "HOST:PID:TID [DEV]": the last one or two words of the prefix. */
static bool speaker_read(const char *line, const char *end, struct speaker *speaker) {
  const char *at = end;
  speaker->device = 0;
  if (at > line && at[-1] == ']') {
    while (at > line && *at != '[') at--;
    speaker->device = (uint32_t)strtoul(at + 1, NULL, 10);
    while (at > line && at[-1] == ' ') at--;
  }
  const char *word = at;
  while (word > line && word[-1] != ' ') word--;
  const char *colon = (const char *)memchr(word, ':', (size_t)(at - word));
  if (colon == NULL || colon == word || (size_t)(colon - word) >= sizeof speaker->host) return false;
  snprintf(speaker->host, sizeof speaker->host, "%.*s", (int)(colon - word), word);
  char *digits;
  speaker->process = (uint32_t)strtoul(colon + 1, &digits, 10);
  return digits > colon + 1 && *digits == ':';
}

static ncclResult_t process_add(struct nccl_log *log, const struct import *import,
                                const struct speaker *speaker, uint32_t bucket) {
  if (!array_grow(&log->processes, &log->capacity, (uint64_t)log->count + 1, sizeof *log->processes))
    return log_no_memory("%s: its processes", import->path);
  struct process *process = &log->processes[log->count++];
  memset(process, 0, sizeof *process);
  process->path = import->path;
  process->next = log->buckets[bucket];
  log->buckets[bucket] = log->count;
  process->image.header.process = speaker->process;
  snprintf(process->image.header.host, sizeof process->image.header.host, "%s", speaker->host);
  snprintf(process->image.header.library, sizeof process->image.header.library, "NCCL_DEBUG_SUBSYS=COLL");
  return ncclSuccess;
}

static ncclResult_t process_of(struct nccl_log *log, const struct import *import,
                               const struct speaker *speaker, struct process **found) {
  const uint64_t hash = hash_mix(hash_text(HASH_SEED, speaker->host), speaker->process);
  const uint32_t bucket = (uint32_t)(hash % BUCKETS);
  uint32_t number = log->buckets[bucket];
  for (; number != 0; number = log->processes[number - 1].next) {
    const struct record_header *header = &log->processes[number - 1].image.header;
    if (header->process == speaker->process && strcmp(header->host, speaker->host) == 0) break;
  }
  if (number == 0) TRY(process_add(log, import, speaker, bucket));
  *found = &log->processes[number != 0 ? number - 1 : log->count - 1];
  return ncclSuccess;
}

/* ---- communicators ---- */

/* The communicator that currently has the pointer; NULL: none. */
static struct image_comm *comm_find(const struct process *process, uint64_t pointer) {
  for (uint32_t i = process->image.comm_count; i > 0; i--)
    if (process->handles[i - 1].pointer == pointer) return &process->image.comms[i - 1];
  return NULL;
}

static ncclResult_t comm_add(struct process *process, const struct handle *handle, struct image_comm **comm) {
  struct image *image = &process->image;
  if (image->comm_count == COMMS_MOST)
    return log_fail(ncclInvalidArgument,
                    "%s: process %" PRIu32 " has more than %u communicators: is this a log?", process->path,
                    image->header.process, (unsigned)COMMS_MOST);
  if (!array_grow(&process->handles, &process->handle_capacity, (uint64_t)image->comm_count + 1,
                  sizeof *process->handles))
    return log_no_memory("%u communicators", image->comm_count + 1);
  const uint32_t number = image_comm_add(image);
  if (number == UINT32_MAX) return log_no_memory("a communicator");
  process->handles[number] = *handle;
  *comm = &image->comms[number];
  return ncclSuccess;
}

/* A split has its parent's id, with the color and key of the split. */
static uint64_t comm_id_of(const struct process *process, const char *line) {
  const struct image_comm *parent = comm_find(process, number_of(line, "parent", 16, 0));
  const uint64_t id = number_of(line, "commId", 16, 0);
  if (id != 0 || parent == NULL) return id;
  return hash_mix(hash_mix(parent->comm.comm_id, number_of(line, "splitCount", 10, 0)),
                  number_of(line, "color", 10, 0));
}

static ncclResult_t birth_read(struct process *process, const struct speaker *speaker, const char *line) {
  const struct handle handle = {number_of(line, "comm", 16, 0), NO_RANK};
  const uint32_t rank = (uint32_t)number_of(line, "rank", 10, NO_RANK);
  const uint32_t rank_count = (uint32_t)number_of(line, "nranks", 10, 0);
  struct image_comm *comm = comm_find(process, handle.pointer);
  if (handle.pointer == 0 || rank >= rank_count) return ncclSuccess;
  /* one whose creation began a few lines before */
  if (comm != NULL && comm->operations == 0 && comm->comm.state == RECORD_OPEN && comm->comm.rank == rank &&
      comm->comm.rank_count == rank_count)
    return ncclSuccess;
  const uint64_t comm_id = comm_id_of(process, line);
  TRY(comm_add(process, &handle, &comm));
  comm->comm.comm_id = comm_id;
  comm->comm.rank = rank;
  comm->comm.rank_count = rank_count;
  comm->comm.device = (uint32_t)number_of(line, "cudaDev", 10, speaker->device);
  const char *name = value_of(line, "name");
  if (name != NULL && name[0] == '\'')
    snprintf(comm->comm.name, sizeof comm->comm.name, "%.*s", (int)strcspn(name + 1, "'"), name + 1);
  else snprintf(comm->comm.name, sizeof comm->comm.name, "0x%" PRIx64, comm_id);
  return ncclSuccess;
}

/* A communicator whose creation is not in the log. */
static ncclResult_t comm_guess(struct process *process, const char *line, uint64_t pointer,
                               struct image_comm **comm) {
  const struct handle handle = {pointer, (uint32_t)number_of(line, "globalrank", 10, NO_RANK)};
  const char *ranks = strstr(line, "[nranks=");
  TRY(comm_add(process, &handle, comm));
  (*comm)->comm.rank = NO_RANK;
  (*comm)->comm.rank_count = ranks != NULL ? (uint32_t)strtoul(ranks + strlen("[nranks="), NULL, 10) : 0;
  /* hexadecimal, the number of collectives launched before */
  (*comm)->collectives = (uint32_t)number_of(line, "opCount", 16, 0);
  (*comm)->comm.calls = (*comm)->collectives;
  return ncclSuccess;
}

/* ---- lines ---- */

static uint8_t function_of(const char *line) {
  const char *colon = strchr(line, ':');
  const size_t length = colon != NULL ? (size_t)(colon - line) : 0;
  for (uint8_t func = 0; func < FUNC_COUNT; func++) {
    const char *name = record_func_name(func);
    if (strlen(name) == length && strncasecmp(name, line, length) == 0) return func;
  }
  return FUNC_COUNT;
}

static ncclResult_t call_read(struct nccl_log *log, const struct import *import, struct process *process,
                              const struct speaker *speaker, const char *line) {
  const uint8_t func = function_of(line);
  const uint64_t pointer = number_of(line, "comm", 16, 0), op = number_of(line, "op", 10, 0);
  const struct record_place place = {.stream = UINT8_MAX,
                                     .in = number_of(line, "sendbuff", 16, 0),
                                     .out = number_of(line, "recvbuff", 16, 0)};
  const struct record_call call = {.func = func,
                                   .dtype = (uint8_t)number_of(line, "datatype", 10, UINT8_MAX),
                                   .op = op < ncclNumOps ? (uint8_t)op : 255,
                                   .peer = (uint32_t)number_of(line, "root", 10, 0),
                                   .ticks = log->line,
                                   .count = number_of(line, "count", 10, 0)};
  struct image_comm *comm = comm_find(process, pointer);
  if (func == FUNC_COUNT || pointer == 0) return ncclSuccess;
  if (call.count == 0 && func != FUNC_SEND && func != FUNC_RECV) return ncclSuccess;
  if (comm == NULL) TRY(comm_guess(process, line, pointer, &comm));
  /* -1 until a thread has chosen one */
  if (comm->comm.rank == NO_RANK && speaker->device != NO_RANK) comm->comm.device = speaker->device;
  if (image_call_add(comm, &call, &place)) return ncclSuccess;
  return log_no_memory("%s: its calls", import->path);
}

static void end_read(const struct process *process, const char *line) {
  struct image_comm *comm = comm_find(process, number_of(line, "comm", 16, 0));
  if (comm == NULL) return;
  comm->comm.state = strstr(line, "Abort COMPLETE") != NULL ? RECORD_ABORTED : RECORD_ENDED;
}

static ncclResult_t line_read(struct nccl_log *log, struct import *import, const char *line) {
  const char *speaks = NULL;
  struct speaker speaker;
  struct process *process;
  /* lines of several processes may be mixed in one: the last of them is complete */
  for (const char *at = strstr(line, SPEAKS); at != NULL; at = strstr(at + 1, SPEAKS)) speaks = at;
  if (speaks == NULL || !speaker_read(line, speaks, &speaker)) return ncclSuccess;
  const char *text = speaks + strlen(SPEAKS);
  const bool called = value_of(text, "opCount") != NULL;
  const bool born = strstr(text, " - Init ") != NULL;
  if (!called && !born && strstr(text, "Destroy COMPLETE") == NULL && strstr(text, "Abort COMPLETE") == NULL)
    return ncclSuccess;
  TRY(process_of(log, import, &speaker, &process));
  if (called) return call_read(log, import, process, &speaker, text);
  if (born) return birth_read(process, &speaker, text);
  end_read(process, text);
  return ncclSuccess;
}

ncclResult_t nccl_log_read(struct nccl_log *log, struct import *import, const char *text, size_t text_bytes) {
  const char *end = text + text_bytes;
  for (const char *at = text; at < end;) {
    char line[LINE_BYTES];
    const char *newline = (const char *)memchr(at, '\n', (size_t)(end - at));
    const char *line_end = newline != NULL ? newline : end;
    const size_t length = (size_t)(line_end - at) < sizeof line ? (size_t)(line_end - at) : sizeof line - 1;
    log->line += 1;
    memcpy(line, at, length);
    line[length] = '\0';
    TRY(line_read(log, import, line));
    at = line_end + 1;
  }
  return ncclSuccess;
}

/* ---- communicators whose creation is not in the log ---- */

/* How many communicators of this size the process has made for this device before: the same number means the
 * same communicator on all ranks, if all make them in one order. */
static uint32_t ordinal_of(const struct process *process, uint32_t number) {
  const struct record_comm *comm = &process->image.comms[number].comm;
  uint32_t ordinal = 0;
  for (uint32_t i = 0; i < number; i++) {
    const struct record_comm *other = &process->image.comms[i].comm;
    ordinal += other->rank_count == comm->rank_count && other->device == comm->device;
  }
  return ordinal;
}

struct guess {
  uint64_t comm_id;
  uint32_t process, number; /* of the log; of the process */
};

static const struct nccl_log *sorted_log; /* qsort passes no context */

static int guess_compare(const void *left, const void *right) {
  const struct guess *a = (const struct guess *)left, *b = (const struct guess *)right;
  const struct record_header *x = &sorted_log->processes[a->process].image.header;
  const struct record_header *y = &sorted_log->processes[b->process].image.header;
  if (a->comm_id != b->comm_id) return a->comm_id < b->comm_id ? -1 : 1;
  const int host = strcmp(x->host, y->host);
  if (host != 0) return host;
  const uint32_t device = sorted_log->processes[a->process].image.comms[a->number].comm.device;
  const uint32_t other = sorted_log->processes[b->process].image.comms[b->number].comm.device;
  if (device != other) return device < other ? -1 : 1;
  if (x->process != y->process) return x->process < y->process ? -1 : 1;
  return a->number < b->number ? -1 : a->number > b->number;
}

static void guess_settle(struct nccl_log *log, const struct guess *guess, uint32_t place) {
  struct process *process = &log->processes[guess->process];
  struct record_comm *comm = &process->image.comms[guess->number].comm;
  const uint32_t global = process->handles[guess->number].global_rank;
  comm->comm_id = guess->comm_id;
  comm->rank = global < comm->rank_count ? global : place;
  snprintf(comm->name, sizeof comm->name, "of %u ranks, no. %u", comm->rank_count,
           ordinal_of(process, guess->number));
}

static uint32_t guesses_gather(const struct nccl_log *log, struct guess *guesses) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < log->count; i++)
    for (uint32_t k = 0; k < log->processes[i].image.comm_count; k++) {
      const struct record_comm *comm = &log->processes[i].image.comms[k].comm;
      if (comm->rank != NO_RANK) continue;
      const uint64_t id = hash_mix(comm->rank_count, ordinal_of(&log->processes[i], k));
      if (guesses != NULL) guesses[count] = (struct guess){id, i, k};
      count += 1;
    }
  return count;
}

void nccl_log_finish(struct nccl_log *log, struct import *import) {
  const uint32_t count = guesses_gather(log, NULL);
  struct guess *guesses = count > 0 ? (struct guess *)os_alloc(count * sizeof *guesses) : NULL;
  if (guesses == NULL) return;
  guesses_gather(log, guesses);
  sorted_log = log;
  qsort(guesses, count, sizeof *guesses, guess_compare);
  for (uint32_t i = 0, place = 0; i < count; i++, place++) {
    if (i > 0 && guesses[i].comm_id != guesses[i - 1].comm_id) place = 0;
    guess_settle(log, &guesses[i], place);
  }
  import_report(import,
                "no line says which rank is whose (NCCL_DEBUG_SUBSYS=INIT,COLL would): ranks are numbered by "
                "host, device and process");
  os_free(guesses);
}
