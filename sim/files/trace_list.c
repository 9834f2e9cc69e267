/* trace_list.c: finds record files, groups them by job, and prints or removes them. A file is removed only if
 * it belongs to this user and the process that wrote it is known to have ended. */
#include "files/trace_list.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/os.h"
#include "files/job_choice.h"
#include "files/records.h"
#include "json.h"
#include "trace/record_path.h"

struct found {
  struct records records;
  struct job_group *groups;
  uint32_t group_count, *group_of;
  glob_t paths;
};

/* ---- finding ---- */

static const char *folder_of(const char *place) {
  const char *folder = record_path_folder(place);
  return folder != NULL ? folder : RECORD_FILE_FOLDER;
}

static void path_find(glob_t *paths, const char *path) {
  char pattern[4096];
  struct stat about;
  const bool folder = stat(path, &about) == 0 && S_ISDIR(about.st_mode);
  const int flags = (paths->gl_pathc > 0 ? GLOB_APPEND : 0) | (folder ? 0 : GLOB_NOCHECK);
  snprintf(pattern, sizeof pattern, "%s%s", path, folder ? "/tutti.*.trace" : "");
  glob(pattern, flags, NULL, paths);
}

static enum exit_code found_open(struct found *found, const char *verb, int path_count, char **paths) {
  memset(found, 0, sizeof *found);
  if (path_count == 0) path_find(&found->paths, folder_of(os_env("TUTTI_TRACE")));
  for (int i = 0; i < path_count; i++) path_find(&found->paths, paths[i]);
  if (found->paths.gl_pathc == 0) return EXIT_GOOD;
  if (!records_read(verb, RECORDS_DIAGNOSED, (int)found->paths.gl_pathc, found->paths.gl_pathv,
                    &found->records))
    return EXIT_ENVIRONMENT;
  if (job_groups(&found->records, &found->groups, &found->group_count, &found->group_of)) return EXIT_GOOD;
  fprintf(stderr, "tutti %s: grouping %u files" LOG_OUT_OF_MEMORY "\n", verb, found->records.count);
  return EXIT_ENVIRONMENT;
}

static void found_close(struct found *found) {
  os_free(found->groups);
  os_free(found->group_of);
  if (found->paths.gl_pathc > 0) records_free(&found->records);
  globfree(&found->paths);
}

/* ---- list ---- */

static uint64_t file_age_s(const struct record_file *file) {
  const uint64_t now_s = (uint64_t)time(NULL), end_s = file_end_ns(file) / 1000000000u;
  return file->live || now_s < end_s ? 0 : now_s - end_s;
}

static const char *file_state(const struct record_file *file) {
  return file->live ? "live" : file->gone || file->header.state == RECORD_ENDED ? "dead" : "unknown";
}

/* "0,2/4": the ranks of the largest communicator that the file holds, and its size. */
static void ranks_text(const struct record_file *file, char *out, size_t out_bytes) {
  uint32_t size = 0, listed = 0;
  size_t used = 0;
  for (uint32_t i = 0; i < file->view_count; i++)
    if (file->views[i].comm->rank_count > size) size = file->views[i].comm->rank_count;
  snprintf(out, out_bytes, "none");
  for (uint32_t i = 0; i < file->view_count && used + 24 < out_bytes; i++) {
    if (file->views[i].comm->rank_count != size) continue;
    if (listed++ < 4)
      used += (size_t)snprintf(out + used, out_bytes - used, "%s%u", listed > 1 ? "," : "",
                               file->views[i].comm->rank);
  }
  if (listed > 0) snprintf(out + used, out_bytes - used, "%s/%u", listed > 4 ? ",..." : "", size);
}

static void file_print(const struct found *found, uint32_t index) {
  const struct record_file *file = &found->records.files[index];
  char ranks[64];
  ranks_text(file, ranks, sizeof ranks);
  printf("%-24s %-12s %8u %-8s %7llu s %-12s %6zu KiB %s\n", found->groups[found->group_of[index]].id,
         file->header.host, file->header.process, file_state(file), (unsigned long long)file_age_s(file),
         ranks, (size_t)file->header.used_bytes >> 10, file->name);
}

static void file_json(struct json *json, const struct found *found, uint32_t index) {
  const struct record_file *file = &found->records.files[index];
  char ranks[64];
  ranks_text(file, ranks, sizeof ranks);
  json_open(json, NULL, '{');
  json_text(json, "file", file->name);
  json_text(json, "job", found->groups[found->group_of[index]].id);
  json_text(json, "host", file->header.host);
  json_number(json, "process", file->header.process);
  json_text(json, "state", file_state(file));
  json_number(json, "age_s", (int64_t)file_age_s(file));
  json_text(json, "ranks", ranks);
  json_number(json, "bytes", (int64_t)file->header.used_bytes);
  json_close(json, '}');
}

/* Job by job, the best first. */
static void list_print(const struct found *found, bool as_json) {
  struct json json = {.out = stdout};
  if (as_json) json_open(&json, NULL, '[');
  else
    printf("%-24s %-12s %8s %-8s %9s %-12s %10s %s\n", "# job", "host", "process", "state", "age", "ranks",
           "size", "file");
  for (uint32_t group = 0; group < found->group_count; group++)
    for (uint32_t i = 0; i < found->records.count; i++) {
      if (found->group_of[i] != group) continue;
      if (as_json) file_json(&json, found, i);
      else file_print(found, i);
    }
  if (as_json) json_close(&json, ']');
}

enum exit_code trace_list(int path_count, char **paths, bool json) {
  struct found found;
  const enum exit_code code = found_open(&found, "trace list", path_count, paths);
  if (code == EXIT_GOOD) list_print(&found, json);
  found_close(&found);
  return code;
}

/* ---- clean ---- */

static bool file_is_mine(const char *path) {
  struct stat about;
  return lstat(path, &about) == 0 && S_ISREG(about.st_mode) && about.st_uid == geteuid();
}

static bool file_goes(const struct found *found, uint32_t index, const struct trace_clean *clean) {
  const struct record_file *file = &found->records.files[index];
  const char *job = found->groups[found->group_of[index]].id;
  return file->gone && (clean->job == NULL || strcmp(clean->job, job) == 0) &&
         file_age_s(file) >= (uint64_t)clean->older_s && file_is_mine(file->name);
}

enum exit_code trace_clean(int path_count, char **paths, const struct trace_clean *clean) {
  struct found found;
  enum exit_code code = found_open(&found, "trace clean", path_count, paths);
  uint32_t removed = 0;
  for (uint32_t i = 0; code == EXIT_GOOD && i < found.records.count; i++) {
    const char *name = found.records.files[i].name;
    if (!file_goes(&found, i, clean)) continue;
    if (!clean->dry_run && unlink(name) != 0) {
      fprintf(stderr, "tutti trace clean: %s: cannot be removed: %s\n", name, strerror(errno));
      code = EXIT_ENVIRONMENT;
      break;
    }
    removed += 1;
    printf("%s %s\n", clean->dry_run ? "would remove" : "removed", name);
  }
  if (code == EXIT_GOOD) printf("%u of %u files\n", removed, found.records.count);
  found_close(&found);
  return code;
}

/* ---- a launcher's note ---- */

/* TUTTI_TRACE as a pattern for glob: what else it stands for than the process is unknown here. */
static bool place_pattern(const char *place, int process, char *out, size_t out_bytes) {
  char plain[4096], number[16];
  size_t used = 0;
  for (const char *at = place != NULL ? place : ""; *at != '\0'; at++) {
    if (used + 3 > sizeof plain) return false;
    if (strchr("*?[\\", *at) != NULL) plain[used++] = '\\';
    plain[used++] = *at;
  }
  plain[used] = '\0';
  snprintf(number, sizeof number, "%d", process);
  const struct record_path_parts parts = {"*", number, "*"};
  return record_path(plain, &parts, out, out_bytes);
}

static bool is_of(const struct record_header *header, int process, const char *job) {
  return memcmp(header->magic, RECORD_MAGIC, sizeof header->magic) == 0 &&
         header->version == RECORD_VERSION && header->state == RECORD_OPEN &&
         header->process == (uint32_t)process && strncmp(header->job, job, sizeof header->job) == 0;
}

void trace_note_signal(const char *place, int process, const char *job, uint32_t number) {
  char pattern[4096];
  glob_t paths = {0};
  if (!place_pattern(place, process, pattern, sizeof pattern) || glob(pattern, 0, NULL, &paths) != 0)
    paths.gl_pathc = 0;
  for (size_t i = 0; i < paths.gl_pathc; i++) {
    struct record_header header;
    const int file = open(paths.gl_pathv[i], O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0) continue;
    if (pread(file, &header, sizeof header, 0) == (ssize_t)sizeof header && is_of(&header, process, job) &&
        pwrite(file, &number, sizeof number, offsetof(struct record_header, ended_by)) != sizeof number)
      fprintf(stderr, "tutti: %s: %s\n", paths.gl_pathv[i], strerror(errno));
    close(file);
  }
  globfree(&paths);
}
