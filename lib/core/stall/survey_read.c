/* survey_read.c: reads a survey entry by entry. Trusts none of its bytes; allocates memory only for what is
 * present. */
#include <string.h>

#include "base/os.h"
#include "base/text.h"
#include "core/stall/survey.h"

const char *survey_why_text(uint32_t why) {
  static const char *const texts[SURVEY_WHY_COUNT] = {"was not asked: the time was over",
                                                      "does not answer: it is stopped, or out of reach",
                                                      "is gone: no process listens at its address",
                                                      "has destroyed its communicators",
                                                      "records nothing",
                                                      "is stopped, by a signal or a debugger"};
  return why < SURVEY_WHY_COUNT ? texts[why] : "does not answer";
}

/* The entry at *at, with its body; false after the last one, or if the rest is invalid. */
static bool entry_next(const uint8_t *bytes, size_t byte_count, size_t *at, struct survey_entry *entry,
                       const uint8_t **body) {
  if (byte_count - *at < sizeof *entry) return false;
  memcpy(entry, bytes + *at, sizeof *entry);
  if (entry->bytes % 8 != 0 || entry->bytes > byte_count - *at - sizeof *entry) return false;
  *body = bytes + *at + sizeof *entry;
  *at += sizeof *entry + entry->bytes;
  return true;
}

static bool silent_read(const uint8_t *body, uint32_t bytes, struct survey_silent *silent) {
  if (bytes != sizeof *silent) return false;
  memcpy(silent, body, sizeof *silent);
  text_clean(silent->host, sizeof silent->host);
  return silent->why < SURVEY_WHY_COUNT;
}

static bool survey_alloc(const uint8_t *bytes, size_t byte_count, struct survey *survey) {
  struct survey_entry entry;
  const uint8_t *body;
  uint32_t files = 0, silents = 0;
  for (size_t at = 0; entry_next(bytes, byte_count, &at, &entry, &body);) {
    files += entry.kind == SURVEY_IMAGE;
    silents += entry.kind == SURVEY_SILENT;
  }
  survey->files = (struct record_file *)os_alloc((files + 1) * sizeof *survey->files);
  survey->silents = (struct survey_silent *)os_alloc((silents + 1) * sizeof *survey->silents);
  return survey->files != NULL && survey->silents != NULL;
}

bool survey_read(const void *bytes, size_t byte_count, struct survey *survey, uint32_t *refused) {
  struct survey fresh = {NULL, 0, NULL, 0};
  struct survey_entry entry;
  const uint8_t *body;
  size_t at = 0;
  *refused = 0;
  if (!survey_alloc((const uint8_t *)bytes, byte_count, &fresh)) {
    survey_free(&fresh);
    return false;
  }
  while (entry_next((const uint8_t *)bytes, byte_count, &at, &entry, &body)) {
    if (entry.kind == SURVEY_IMAGE) {
      const bool good = record_is_file(body, entry.bytes) &&
                        record_file_read("an answer", body, entry.bytes, NULL,
                                         &fresh.files[fresh.file_count]) == ncclSuccess;
      *(good ? &fresh.file_count : refused) += 1;
    } else if (entry.kind == SURVEY_SILENT) {
      const bool good = silent_read(body, entry.bytes, &fresh.silents[fresh.silent_count]);
      *(good ? &fresh.silent_count : refused) += 1;
    }
  }
  *refused += at != byte_count;
  *survey = fresh;
  return true;
}

void survey_free(struct survey *survey) {
  for (uint32_t i = 0; i < survey->file_count; i++) record_file_free(&survey->files[i]);
  os_free(survey->files);
  os_free(survey->silents);
  memset(survey, 0, sizeof *survey);
}
