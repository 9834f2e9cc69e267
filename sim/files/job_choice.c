/* job_choice.c: two files belong to one job if their launcher gave both the same name, or, where one of them
 * has no such name, if they have a communicator in common. */
#include "files/job_choice.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/os.h"

uint64_t file_end_ns(const struct record_file *file) {
  const struct record_header *header = &file->header;
  const uint64_t last_ns = header->last_ns > header->first_ns ? header->last_ns : header->first_ns;
  return header->wall_ns + (last_ns - header->first_ns);
}

/* Ids of communicators repeat where a seed decides all: if both files have the same rank of one, they are of
 * two jobs. */
static bool files_share_comm(const struct record_file *a, const struct record_file *b) {
  bool shared = false;
  for (uint32_t i = 0; i < a->view_count; i++) {
    for (uint32_t k = 0; k < b->view_count; k++) {
      const struct record_comm *own = a->views[i].comm, *other = b->views[k].comm;
      if (own->comm_id != other->comm_id || own->rank_count != other->rank_count) continue;
      if (own->rank == other->rank) return false;
      shared = true;
    }
  }
  return shared;
}

static bool files_same_job(const struct record_file *a, const struct record_file *b) {
  const bool named = a->header.job[0] != '\0' && b->header.job[0] != '\0';
  return named ? strcmp(a->header.job, b->header.job) == 0 : files_share_comm(a, b);
}

/* ---- groups ---- */

static uint32_t root_of(const uint32_t *parent, uint32_t index) {
  while (parent[index] != index) index = parent[index];
  return index;
}

/* Only the smallest file of each group is compared where names decide, so that 10,000 files of one job take
 * one comparison each. */
static void files_join(const struct records *records, uint32_t *parent) {
  for (uint32_t i = 0; i < records->count; i++) {
    parent[i] = i;
    for (uint32_t k = 0; k < i; k++) {
      const uint32_t root = root_of(parent, k);
      if (root == root_of(parent, i) || !files_same_job(&records->files[k], &records->files[i])) continue;
      parent[root_of(parent, i)] = root;
      if (records->files[i].header.job[0] != '\0' && records->files[k].header.job[0] != '\0') break;
    }
  }
}

static void group_note(struct job_group *group, const struct record_file *file) {
  const struct record_header *header = &file->header;
  const uint64_t end_ns = file_end_ns(file);
  if (group->files == 0 || (header->job[0] != '\0' && strncmp(group->id, "process-", 8) == 0)) {
    if (header->job[0] != '\0') snprintf(group->id, sizeof group->id, "%s", header->job);
    else snprintf(group->id, sizeof group->id, "process-%u", header->process);
  }
  group->files += 1;
  group->live += file->live;
  if (end_ns > group->end_ns) group->end_ns = end_ns;
}

static bool group_before(const struct job_group *a, const struct job_group *b) {
  if ((a->live > 0) != (b->live > 0)) return a->live > 0;
  return a->end_ns > b->end_ns;
}

/* Insertion: there are few jobs. */
static void groups_order(struct job_group *groups, uint32_t count, uint32_t *group_of, uint32_t file_count) {
  for (uint32_t i = 1; i < count; i++)
    for (uint32_t k = i; k > 0 && group_before(&groups[k], &groups[k - 1]); k--) {
      const struct job_group swapped = groups[k];
      groups[k] = groups[k - 1];
      groups[k - 1] = swapped;
      for (uint32_t file = 0; file < file_count; file++)
        if (group_of[file] == k || group_of[file] == k - 1) group_of[file] = 2 * k - 1 - group_of[file];
    }
}

bool job_groups(const struct records *records, struct job_group **groups, uint32_t *group_count,
                uint32_t **group_of) {
  const uint32_t count = records->count;
  uint32_t *parent = (uint32_t *)os_alloc((count + 1) * sizeof *parent);
  *groups = (struct job_group *)os_alloc((count + 1) * sizeof **groups);
  *group_of = (uint32_t *)os_alloc((count + 1) * sizeof **group_of);
  *group_count = 0;
  if (parent == NULL || *groups == NULL || *group_of == NULL) {
    os_free(parent);
    os_free(*groups);
    os_free(*group_of);
    return false;
  }
  memset(*groups, 0, (count + 1) * sizeof **groups);
  files_join(records, parent);
  for (uint32_t i = 0; i < count; i++) {
    const uint32_t root = root_of(parent, i);
    (*group_of)[i] = root == i ? (*group_count)++ : (*group_of)[root];
    group_note(&(*groups)[(*group_of)[i]], &records->files[i]);
  }
  groups_order(*groups, *group_count, *group_of, count);
  os_free(parent);
  return true;
}

/* ---- the choice ---- */

static void when_text(const struct job_group *group, char out[64]) {
  const time_t seconds = (time_t)(group->end_ns / 1000000000u);
  struct tm parts;
  if (group->live > 0) snprintf(out, 64, "which runs");
  else if (localtime_r(&seconds, &parts) == NULL || strftime(out, 64, "which ended %F %T", &parts) == 0)
    snprintf(out, 64, "which has ended");
}

static void say_jobs(const char *verb, const struct job_group *groups, uint32_t count, uint32_t chosen) {
  char when[64];
  when_text(&groups[chosen], when);
  fprintf(stderr, "tutti %s: these files are of %u jobs; this is job %s, %s. The others:\n", verb, count,
          groups[chosen].id, when);
  for (uint32_t i = 0; i < count && i < 9; i++) {
    if (i == chosen) continue;
    when_text(&groups[i], when);
    fprintf(stderr, "  tutti %s --job %s FILES   # %u files, %s\n", verb, groups[i].id, groups[i].files,
            when);
  }
  if (count > 9) fprintf(stderr, "  and more: `tutti trace list` shows all\n");
}

static void records_keep(struct records *records, const uint32_t *group_of, uint32_t chosen) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < records->count; i++) {
    if (group_of[i] == chosen) {
      records->files[kept] = records->files[i];
      records->memory[kept++] = records->memory[i];
      continue;
    }
    record_file_free(&records->files[i]);
    os_free(records->memory[i]);
  }
  records->count = kept;
}

enum exit_code job_choose(const char *verb, const char *wanted, struct records *records) {
  struct job_group *groups;
  uint32_t count, chosen = 0, *group_of;
  if (records->sources != SOURCE_RECORDS) return EXIT_GOOD; /* other tools' files name no job */
  if (!job_groups(records, &groups, &count, &group_of)) {
    fprintf(stderr, "tutti %s: grouping %u files" LOG_OUT_OF_MEMORY "\n", verb, records->count);
    return EXIT_ENVIRONMENT;
  }
  while (wanted != NULL && chosen < count && strcmp(groups[chosen].id, wanted) != 0) chosen++;
  enum exit_code code = EXIT_GOOD;
  if (chosen == count && wanted != NULL) {
    fprintf(stderr, "tutti %s: --job %s: these files have no such job; `tutti trace list` shows them\n", verb,
            wanted);
    code = EXIT_USAGE;
  } else if (count > 1) {
    if (wanted == NULL) say_jobs(verb, groups, count, chosen);
    records_keep(records, group_of, chosen);
  }
  os_free(groups);
  os_free(group_of);
  return code;
}
