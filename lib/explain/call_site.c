/* call_site.c: finds the RECORD_PLACE of a call, and the line of its return address: in the debug information
 * of the file that the code was mapped from, if that is still there and the same. */
#include "explain/call_site.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/callsite.h"
#include "base/os.h"
#include "base/text.h"

#define SITE_BYTES 160

void cite(struct diagnosis *diagnosis, const struct rank_state *state, const struct record_call *call) {
  if (call == NULL || diagnosis->cited_count == DIAGNOSIS_CITED_MOST) return;
  for (uint32_t i = 0; i < diagnosis->cited_count; i++)
    if (diagnosis->cited[i].call == call) return;
  diagnosis->cited[diagnosis->cited_count++] = (struct cited_call){state->file, state->view, call};
}

/* The record after the call's is its place, unless the file was reduced and left it out. */
static const struct record_caller *cited_caller(const struct cited_call *cited) {
  const struct record_view *view = cited->view;
  const uint8_t *at = (const uint8_t *)cited->call;
  const uint64_t row = (uint64_t)(at - view->ring) / RECORD_BYTES;
  const uint64_t number = view->first + ((row - view->first) & (view->ring_records - 1)) + 1;
  if (number >= view->end) return NULL;
  const union record *place = record_at(view, number);
  return place->kind == RECORD_PLACE ? record_caller_of(cited->file, place->place.caller) : NULL;
}

/* The next line "BYTES MTIME_NS PATH"; false after the last one, or if it is no such line. */
static bool module_next(const char **at, struct callsite_stamp *stamp, char *path, size_t path_bytes) {
  char *end;
  const size_t length = strcspn(*at, "\n");
  if (length == 0) return false;
  stamp->bytes = strtoull(*at, &end, 10);
  stamp->changed_ns = strtoull(end, &end, 10);
  const char *stop = *at + length;
  if (end >= stop || *end != ' ') return false;
  snprintf(path, path_bytes, "%.*s", (int)(stop - end - 1), end + 1);
  *at = *stop != '\0' ? stop + 1 : stop;
  return true;
}

/* The path of the module of this name, if the file there is the one that the process had. */
static bool module_find(const struct record_file *file, const char *name, struct callsite *site) {
  struct callsite_stamp then, now;
  for (const char *at = file->header.modules; module_next(&at, &then, site->path, sizeof site->path);)
    if (strcmp(os_base_name(site->path), name) == 0 && callsite_stamp(site->path, &now))
      return now.bytes == then.bytes && now.changed_ns == then.changed_ns;
  return false;
}

static void site_text(const struct record_file *file, const struct record_caller *caller,
                      char out[SITE_BYTES]) {
  struct callsite site = {"", caller->offset};
  if (caller->offset == 0) snprintf(out, SITE_BYTES, "%s", caller->file);
  else if (module_find(file, caller->file, &site)) callsite_line(&site, out, SITE_BYTES);
  else {
    snprintf(site.path, sizeof site.path, "%s", caller->file);
    callsite_plain(&site, out, SITE_BYTES);
  }
  text_clean(out, SITE_BYTES);
}

void sites_append(struct diagnosis *diagnosis) {
  uint32_t told = 0;
  for (uint32_t i = 0; i < diagnosis->cited_count; i++) {
    const struct cited_call *cited = &diagnosis->cited[i];
    const struct record_caller *caller = cited_caller(cited);
    char site[SITE_BYTES];
    if (caller == NULL) continue;
    site_text(cited->file, caller, site);
    text_append(diagnosis->sentence, sizeof diagnosis->sentence, "%s rank %u %s#%" PRIu32 " at %s",
                told == 0 ? ";" : ",", cited->view->comm->rank, told == 0 ? "called " : "",
                cited->call->sequence, site);
    told += 1;
  }
  diagnosis->cited_count = 0; /* the calls are the files', which the caller may free */
}
