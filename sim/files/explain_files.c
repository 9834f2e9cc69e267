/* explain_files.c: what `explain` has to say about files: the library's verdict, as text and as JSON. */
#include "files/explain_files.h"

#include <stdio.h>
#include <string.h>

#include "explain/judge.h"
#include "json.h"

static void verdict_print(const struct verdict *verdict, const struct records *records) {
  const char *lack = records_lack(records);
  printf("%s\n", verdict->sentence);
  for (uint32_t i = 0; i < verdict->evidence_count; i++) printf("  %s\n", verdict->evidence[i]);
  if (records->refused > 0) printf("  %u more files could not be read\n", records->refused);
  if (lack != NULL) printf("  %s\n", lack);
  if (verdict->next[0] != '\0') printf("next: %s\n", verdict->next);
}

static const char *source_name(const struct records *records) {
  return records->sources == SOURCE_FLIGHT ? "flight recorder"
         : records->sources == SOURCE_LOG  ? "log"
                                           : "records";
}

static void verdict_json(const struct verdict *verdict, const struct records *records) {
  const char *lack = records_lack(records);
  struct json json = {.out = stdout};
  json_open(&json, NULL, '{');
  json_text(&json, "kind", verdict_name(verdict->kind));
  json_text(&json, "sentence", verdict->sentence);
  json_open(&json, "evidence", '[');
  for (uint32_t i = 0; i < verdict->evidence_count; i++) json_text(&json, NULL, verdict->evidence[i]);
  json_close(&json, ']');
  json_text(&json, "next", verdict->next);
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
  struct verdict verdict;
  if (records_mixed("explain", records)) return EXIT_USAGE;
  if (!records_any(records)) return EXIT_INPUT;
  if (!judge_files(records->files, records->count, &verdict)) {
    fprintf(stderr, "tutti explain: no memory to compare %u files\n", records->count);
    return EXIT_ENVIRONMENT;
  }
  if (json) verdict_json(&verdict, records);
  else verdict_print(&verdict, records);
  return verdict.kind <= VERDICT_RUNNING ? EXIT_GOOD : EXIT_WRONG;
}

enum exit_code explain_files(int path_count, char **paths, bool json) {
  struct records records;
  if (!records_read("explain", RECORDS_JUDGED, path_count, paths, &records)) return EXIT_ENVIRONMENT;
  const enum exit_code code = records_explain(&records, json);
  records_free(&records);
  return code;
}
