/* status_find.c: finds jobs: the record files of this host's live processes, grouped into jobs, and what
 * their processes gather from other hosts. Does not trust any byte of either. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/hash.h"
#include "base/mapped_file.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "status.h"

#define DEFAULT_FOLDER "/dev/shm/"
#define FILE_BYTES_MOST (1ull << 32)
#define FILES_MOST 65536u
#define FETCH_NS UINT64_C(20000000000)
#define ASKED_MOST 3 /* processes of one job that are asked, one after another */
#define TEXT_BYTES 640

/* ---- a sample ---- */

/* Attaches a block to the sample; frees it at once if there is no memory for that. */
static bool sample_keep(struct sample *sample, void *block) {
  if (!array_grow(&sample->blocks, &sample->block_capacity, (uint64_t)sample->block_count + 1,
                  sizeof *sample->blocks)) {
    os_free(block);
    return false;
  }
  sample->blocks[sample->block_count++] = block;
  return true;
}

static bool file_is(const struct record_file *a, const struct record_file *b) {
  return a->header.process == b->header.process && a->header.process_born == b->header.process_born &&
         a->header.process_realm == b->header.process_realm && strcmp(a->header.host, b->header.host) == 0;
}

static bool sample_reserve(struct sample *sample) {
  if (sample->count < sample->capacity) return true;
  const uint32_t capacity = sample->capacity > 0 ? 2 * sample->capacity : 16;
  if (!array_resize(&sample->files, capacity, sizeof *sample->files) ||
      !array_resize(&sample->jobs, capacity, sizeof *sample->jobs))
    return false;
  sample->capacity = capacity;
  return true;
}

/* Takes ownership of the file. Drops it and returns false if its process has one already, or memory is out.
 */
static bool sample_add(struct sample *sample, struct record_file *file, uint32_t job) {
  bool again = false;
  for (uint32_t i = 0; i < sample->count && !again; i++) again = file_is(&sample->files[i], file);
  const bool fits = again || sample_reserve(sample);
  if (again || !fits) {
    record_file_free(file);
    return fits;
  }
  sample->jobs[sample->count] = job;
  sample->files[sample->count++] = *file;
  return true;
}

void sample_free(struct sample *sample) {
  for (uint32_t i = 0; i < sample->count; i++) record_file_free(&sample->files[i]);
  for (uint32_t i = 0; i < sample->block_count; i++) os_free(sample->blocks[i]);
  os_free(sample->files);
  os_free(sample->jobs);
  os_free(sample->blocks);
  os_free(sample->silents);
  memset(sample, 0, sizeof *sample);
}

static enum exit_code no_memory(void) {
  fprintf(stderr, "tutti status: what these processes have recorded" LOG_OUT_OF_MEMORY "\n");
  return EXIT_ENVIRONMENT;
}

static uint64_t rows_hash(uint64_t hash, const void *rows, uint32_t count) {
  for (uint32_t i = 0; i < count * (RECORD_BYTES / 8); i++) {
    uint64_t word;
    memcpy(&word, (const uint8_t *)rows + (size_t)i * 8, sizeof word);
    hash = hash_mix(hash, word);
  }
  return hash;
}

uint64_t sample_moves(const struct record_view *view) {
  const struct record_comm *comm = view->comm;
  const uint64_t counters[] = {comm->born,    comm->tail,  comm->calls,      comm->launched,
                               comm->started, comm->ended, comm->moved_ticks};
  uint64_t hash = HASH_SEED;
  for (uint32_t i = 0; i < sizeof counters / sizeof counters[0]; i++) hash = hash_mix(hash, counters[i]);
  hash = rows_hash(hash, view->links, view->link_rows);
  return rows_hash(hash, view->proxies, view->proxy_rows);
}

/* ---- files ---- */

/* A file of records of a live process. */
static bool file_lives(const char *path) {
  struct record_header header;
  if (mapped_file_peek(path, &header, sizeof header) != sizeof header) return false;
  if (memcmp(header.magic, RECORD_MAGIC, sizeof header.magic) != 0) return false;
  const struct os_process maker = {header.process_realm, header.process_born, (int32_t)header.process};
  return header.state == RECORD_OPEN && !os_process_gone(&maker);
}

/* False when memory is out; an unreadable file belongs to no job. */
static bool file_load(const char *path, uint32_t job, struct sample *sample) {
  struct record_file file;
  size_t byte_count = 0;
  void *bytes = os_file_read_most(path, FILE_BYTES_MOST, &byte_count);
  if (bytes == NULL) return errno != ENOMEM;
  if (!record_is_file(bytes, byte_count) ||
      record_file_read("a process's file", bytes, byte_count, NULL, &file) != ncclSuccess) {
    os_free(bytes);
    return true;
  }
  if (!sample_keep(sample, bytes)) {
    record_file_free(&file);
    return false;
  }
  return sample_add(sample, &file, job);
}

/* All files of this user's processes in a folder, each as a separate job. */
static enum exit_code folder_load(const char *folder, struct sample *sample) {
  DIR *all = opendir(folder);
  bool good = true;
  if (all == NULL) {
    fprintf(stderr, "tutti status: %s: %s\n", folder, strerror(errno));
    return EXIT_INPUT;
  }
  for (const struct dirent *entry = readdir(all); good && entry != NULL && sample->count < FILES_MOST;
       entry = readdir(all)) {
    char path[TEXT_BYTES];
    struct stat now;
    if (snprintf(path, sizeof path, "%s%s", folder, entry->d_name) >= (int)sizeof path) continue;
    if (lstat(path, &now) != 0 || !S_ISREG(now.st_mode) || now.st_uid != geteuid()) continue;
    if (file_lives(path)) good = file_load(path, sample->count, sample);
  }
  closedir(all);
  return good ? EXIT_GOOD : no_memory();
}

/* ---- jobs ---- */

/* Whether two files belong to one communicator. A number identifies it only within one job: if both have the
 * same rank of it, there are two communicators. */
static bool files_meet(const struct record_file *a, const struct record_file *b) {
  bool meet = false;
  for (uint32_t i = 0; i < a->view_count; i++)
    for (uint32_t k = 0; k < b->view_count; k++) {
      const struct record_comm *own = a->views[i].comm, *other = b->views[k].comm;
      if (own->comm_id != other->comm_id || own->rank_count != other->rank_count) continue;
      if (own->state != RECORD_OPEN || other->state != RECORD_OPEN) continue;
      if (own->rank == other->rank) return false;
      meet = true;
    }
  return meet;
}

static void jobs_find(struct sample *sample) {
  for (uint32_t i = 0; i < sample->count; i++)
    for (uint32_t k = 0; k < i; k++) {
      if (sample->jobs[k] == sample->jobs[i]) continue;
      if (!files_meet(&sample->files[k], &sample->files[i])) continue;
      const uint32_t from = sample->jobs[i], to = sample->jobs[k];
      for (uint32_t j = 0; j <= i; j++)
        if (sample->jobs[j] == from) sample->jobs[j] = to;
    }
}

static uint32_t ranks_seen_of(const struct sample *sample, uint32_t job, const struct record_comm *comm) {
  uint32_t seen = 0;
  for (uint32_t i = 0; i < sample->count; i++)
    for (uint32_t k = 0; sample->jobs[i] == job && k < sample->files[i].view_count; k++) {
      const struct record_comm *other = sample->files[i].views[k].comm;
      seen += other->comm_id == comm->comm_id && other->rank_count == comm->rank_count &&
              other->state == RECORD_OPEN;
    }
  return seen;
}

/* Whether every rank of every communicator of the job is present. */
static bool job_is_whole(const struct sample *sample, uint32_t job) {
  for (uint32_t i = 0; i < sample->count; i++)
    for (uint32_t k = 0; sample->jobs[i] == job && k < sample->files[i].view_count; k++) {
      const struct record_comm *comm = sample->files[i].views[k].comm;
      if (comm->state == RECORD_OPEN && ranks_seen_of(sample, job, comm) < comm->rank_count) return false;
    }
  return true;
}

/* ---- other processes ---- */

/* False when memory is out. */
static bool silents_add(struct sample *sample, const struct survey_silent *silents, uint32_t count) {
  if (count == 0) return true;
  if (!array_resize(&sample->silents, (uint64_t)sample->silent_count + count, sizeof *sample->silents))
    return false;
  memcpy(sample->silents + sample->silent_count, silents, count * sizeof *silents);
  sample->silent_count += count;
  return true;
}

/* Processes of this host that a signal has stopped; their records are readable all the same. */
static bool stopped_find(struct sample *sample) {
  bool good = true;
  for (uint32_t i = 0; i < sample->count && good; i++) {
    const struct record_file *file = &sample->files[i];
    if (file->view_count == 0 || !os_process_stopped((int32_t)file->header.process)) continue;
    const struct record_comm *comm = file->views[0].comm;
    struct survey_silent silent = {
        .comm_id = comm->comm_id, .rank = comm->rank, .why = SURVEY_STOPPED, .process = file->header.process};
    if (sock_text_is_literal(file->header.control))
      sock_address_parse(file->header.control, "a process's file", &silent.address);
    memcpy(silent.host, file->header.host, sizeof silent.host);
    good = silents_add(sample, &silent, 1);
  }
  return good;
}

/* Adds what a process gathers, one of this host or the one at `to`, to the job. False, with a last error, if
 * it does not answer, or memory is out. */
static bool job_fetch(const struct os_process *process, const struct sock_address *to, uint32_t job,
                      struct sample *sample) {
  const uint64_t deadline_ns = os_time_ns() + FETCH_NS;
  struct survey_bytes bytes;
  struct survey survey;
  uint32_t refused;
  if ((process != NULL ? survey_fetch_here(process, deadline_ns, &bytes)
                       : survey_fetch(to, deadline_ns, &bytes)) != ncclSuccess)
    return false;
  if (bytes.bytes == NULL) return true;
  if (!sample_keep(sample, bytes.bytes)) return false;
  if (!survey_read(bytes.bytes, bytes.used, &survey, &refused)) return false;
  bool good = silents_add(sample, survey.silents, survey.silent_count);
  for (uint32_t i = 0; i < survey.file_count; i++) {
    if (good) good = sample_add(sample, &survey.files[i], job);
    else record_file_free(&survey.files[i]);
  }
  survey.file_count = 0; /* the sample owns them */
  survey_free(&survey);
  if (refused > 0) fprintf(stderr, "tutti status: %u answers made no sense\n", refused);
  return good;
}

/* Asks the job's processes, until one answers, for ranks without a file here. */
static void job_complete(struct sample *sample, uint32_t job) {
  const uint32_t count = sample->count;
  uint32_t asked = 0;
  for (uint32_t i = 0; i < count && asked < ASKED_MOST && !job_is_whole(sample, job); i++) {
    const struct record_header *header = &sample->files[i].header;
    const struct os_process process = {header->process_realm, header->process_born, (int32_t)header->process};
    if (sample->jobs[i] != job || header->control[0] == '\0') continue;
    asked += 1;
    if (job_fetch(&process, NULL, job, sample)) return;
    fprintf(stderr, "tutti status: process %" PRIu32 " does not answer for the others: %s\n", header->process,
            log_last_error());
  }
}

static enum exit_code jobs_complete(struct sample *sample) {
  if (!stopped_find(sample)) return no_memory();
  jobs_find(sample);
  for (uint32_t i = 0; i < sample->count; i++) {
    bool first = true;
    for (uint32_t k = 0; k < i && first; k++) first = sample->jobs[k] != sample->jobs[i];
    if (first && !job_is_whole(sample, sample->jobs[i])) job_complete(sample, sample->jobs[i]);
  }
  return EXIT_GOOD;
}

/* ---- one process ---- */

/* The path in a line of /proc/PID/maps, terminated in place; NULL: there is none. */
static char *maps_path(char *line) {
  char *path = strchr(line, '/');
  if (path == NULL) return NULL;
  path[strcspn(path, "\n")] = '\0';
  return path;
}

/* The record file that a process writes, from its memory mappings. */
static enum exit_code process_file(int64_t pid, char *out, size_t out_bytes) {
  char path[64], line[4096];
  snprintf(path, sizeof path, "/proc/%" PRId64 "/maps", pid);
  FILE *maps = fopen(path, "re");
  errno = maps == NULL ? errno : 0;
  bool found = false, any = false;
  while (maps != NULL && !found && fgets(line, sizeof line, maps) != NULL) {
    const char *mapped = maps_path(line);
    any = true;
    struct record_header header;
    if (mapped == NULL || strlen(mapped) >= out_bytes) continue;
    if (mapped_file_peek(mapped, &header, sizeof header) != sizeof header) continue;
    found = record_is_file(&header, sizeof header) && header.process == (uint32_t)pid;
    if (found) snprintf(out, out_bytes, "%s", mapped);
  }
  if (found || maps != NULL) errno = 0;
  if (maps != NULL) fclose(maps);
  if (found) return EXIT_GOOD;
  if (errno == ENOENT) fprintf(stderr, "tutti status: there is no process %" PRId64 " on this host\n", pid);
  else if (errno != 0 || !any)
    fprintf(stderr, "tutti status: process %" PRId64 " cannot be looked at: %s; be its user, or root\n", pid,
            strerror(errno != 0 ? errno : EACCES));
  else
    fprintf(stderr,
            "tutti status: process %" PRId64
            " records nothing: it has no communicator of this library, its TUTTI_TRACE is off, or it is in "
            "another container\n",
            pid);
  return EXIT_INPUT;
}

static void sample_keep_job(struct sample *sample, int64_t pid) {
  uint32_t job = UINT32_MAX, kept = 0;
  for (uint32_t i = 0; i < sample->count; i++)
    if (sample->files[i].header.process == (uint32_t)pid) job = sample->jobs[i];
  for (uint32_t i = 0; i < sample->count; i++) {
    if (sample->jobs[i] != job) {
      record_file_free(&sample->files[i]);
      continue;
    }
    sample->files[kept] = sample->files[i];
    sample->jobs[kept++] = job;
  }
  sample->count = kept;
}

static enum exit_code process_take(int64_t pid, struct sample *sample) {
  char path[TEXT_BYTES], folder[TEXT_BYTES];
  enum exit_code code = process_file(pid, path, sizeof path);
  if (code != EXIT_GOOD) return code;
  snprintf(folder, sizeof folder, "%s", path);
  strrchr(folder, '/')[1] = '\0';
  if (!file_load(path, 0, sample)) return no_memory();
  if (sample->count == 0) {
    fprintf(stderr, "tutti status: %s, of process %" PRId64 ", cannot be read\n", path, pid);
    return EXIT_INPUT;
  }
  code = folder_load(folder, sample);
  if (code != EXIT_GOOD) return code;
  jobs_find(sample);
  sample_keep_job(sample, pid);
  return jobs_complete(sample);
}

static enum exit_code address_take(const struct status_target *target, struct sample *sample) {
  if (job_fetch(NULL, &target->at, 0, sample) && (sample->count > 0 || sample->silent_count > 0))
    return EXIT_GOOD;
  fprintf(stderr, "tutti status: %s: %s\n", target->address,
          sample->count > 0 ? "what it answers" LOG_OUT_OF_MEMORY : log_last_error());
  return EXIT_ENVIRONMENT;
}

static enum exit_code user_take(struct sample *sample) {
  const char *folder = param_text(PARAM_TUTTI_TRACE);
  const size_t length = strlen(folder);
  if (length == 0 || folder[length - 1] != '/') folder = DEFAULT_FOLDER;
  const enum exit_code code = folder_load(folder, sample);
  if (code != EXIT_GOOD) return code;
  if (sample->count > 0) return jobs_complete(sample);
  fprintf(stderr,
          "tutti status: no process of this user records in %s (TUTTI_TRACE); name one: tutti status "
          "PID\n",
          folder);
  return EXIT_INPUT;
}

enum exit_code sample_take(const struct status_target *target, struct sample *sample) {
  memset(sample, 0, sizeof *sample);
  if (target->address != NULL) return address_take(target, sample);
  return target->pid != 0 ? process_take(target->pid, sample) : user_take(sample);
}
