/* explain_files.c: `explain` with files: prints the library's diagnosis as text and as JSON. */
#include "files/explain_files.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "explain/diagnose.h"
#include "files/job_choice.h"
#include "json.h"

static void diagnosis_print(const struct diagnosis *diagnosis, const struct records *records) {
  const char *lack = records_lack(records);
  printf("%s\n", diagnosis->sentence);
  for (uint32_t i = 0; i < diagnosis->evidence_count; i++) printf("  %s\n", diagnosis->evidence[i]);
  if (records->refused > 0) printf("  %u more files could not be read\n", records->refused);
  if (lack != NULL) printf("  %s\n", lack);
  if (diagnosis->next[0] != '\0') printf("next: %s\n", diagnosis->next);
}

static const char *source_name(const struct records *records) {
  return records->sources == SOURCE_FLIGHT ? "flight recorder"
         : records->sources == SOURCE_LOG  ? "log"
                                           : "records";
}

static void diagnosis_json(const struct diagnosis *diagnosis, const struct records *records) {
  const char *lack = records_lack(records);
  struct json json = {.out = stdout};
  json_open(&json, NULL, '{');
  json_text(&json, "kind", diagnosis_name(diagnosis->kind));
  if (diagnosis->rank != DIAGNOSIS_NOBODY) json_number(&json, "rank", diagnosis->rank);
  json_text(&json, "sentence", diagnosis->sentence);
  json_open(&json, "evidence", '[');
  for (uint32_t i = 0; i < diagnosis->evidence_count; i++) json_text(&json, NULL, diagnosis->evidence[i]);
  json_close(&json, ']');
  json_text(&json, "next", diagnosis->next);
  json_text(&json, "source", source_name(records));
  json_text(&json, "lacks", lack != NULL ? lack : "");
  json_number(&json, "files", records->count);
  json_open(&json, "refused", '[');
  for (uint32_t i = 0; i < records->refused; i++) json_text(&json, NULL, records->refused_paths[i]);
  json_close(&json, ']');
  json_close(&json, '}');
}

static bool records_any(const struct records *records) {
  for (uint32_t i = 0; i < records->count; i++)
    if (records->files[i].view_count > 0) return true;
  if (records->count > 0) fputs("tutti explain: no communicator is left in these files\n", stderr);
  return false;
}

static enum exit_code records_explain(const struct records *records, bool json) {
  struct diagnosis diagnosis;
  if (records_mixed("explain", records)) return EXIT_USAGE;
  if (!records_any(records)) return EXIT_INPUT;
  if (!diagnose_files(records->files, records->count, &diagnosis)) {
    fprintf(stderr, "tutti explain: comparing %u files" LOG_OUT_OF_MEMORY "\n", records->count);
    return EXIT_ENVIRONMENT;
  }
  if (json) diagnosis_json(&diagnosis, records);
  else diagnosis_print(&diagnosis, records);
  return diagnosis.kind <= DIAGNOSIS_RUNNING ? EXIT_GOOD : EXIT_WRONG;
}

enum exit_code explain_files(int path_count, char **paths, const char *job, bool json) {
  struct records records;
  if (!records_read("explain", RECORDS_DIAGNOSED, path_count, paths, &records)) return EXIT_ENVIRONMENT;
  enum exit_code code = job_choose("explain", job, &records);
  if (code == EXIT_GOOD) code = records_explain(&records, json);
  records_free(&records);
  return code;
}
