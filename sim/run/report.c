/* report.c: see report.h. What a program prints may have any bytes: those that XML has no place for become
 * U+FFFD. */
#include "run/report.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "json.h"
#include "run/runner.h"

enum { REASON_BYTES = 128, COMMAND_BYTES = 8192, SHOWN_LINES = 200 };

static const char safe_letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./,:@%";

static void word_add(const char *word, char *out, size_t out_bytes) {
  if (*word != '\0' && word[strspn(word, safe_letters)] == '\0') {
    text_append(out, out_bytes, "%s", word);
    return;
  }
  text_append(out, out_bytes, "'");
  for (; *word != '\0'; word++)
    if (*word == '\'') text_append(out, out_bytes, "'\\''");
    else text_append(out, out_bytes, "%c", *word);
  text_append(out, out_bytes, "'");
}

static void arguments_add(const struct sweep *sweep, char *out, size_t out_bytes) {
  for (char *const *each = sweep->arguments; *each != NULL; each++) {
    if (each != sweep->arguments) text_append(out, out_bytes, " ");
    word_add(*each, out, out_bytes);
  }
}

void sweep_command(const struct sweep *sweep, const struct draw *draw, char *out, size_t out_bytes) {
  char emu[DRAW_TEXT_BYTES];
  draw_emu_text(draw, sweep->own_emu, emu, sizeof emu);
  snprintf(out, out_bytes, "TUTTI_SEED=%llu ", (unsigned long long)draw->seed);
  if (emu[0] != '\0') {
    text_append(out, out_bytes, "TUTTI_EMU=");
    word_add(emu, out, out_bytes);
    text_append(out, out_bytes, " ");
  }
  if (sweep->rank_count > 0) text_append(out, out_bytes, "tutti launch -n %u ", sweep->rank_count);
  arguments_add(sweep, out, out_bytes);
}

/* ---- JUnit */

/* Letters that XML 1.0 has: no control characters but tab and line breaks, and not U+FFFE and U+FFFF. */
static bool xml_has(const unsigned char *text, int length) {
  if (length == 1) return *text >= 0x20 || *text == '\t' || *text == '\n' || *text == '\r';
  return length != 3 || text[0] != 0xef || text[1] != 0xbf || text[2] < 0xbe;
}

static void xml_put(FILE *file, const char *string) {
  for (const unsigned char *text = (const unsigned char *)string; *text != '\0';) {
    const int length = json_sequence_length(text);
    if (length == 0 || !xml_has(text, length)) fputs("\xef\xbf\xbd", file);
    else if (*text == '&') fputs("&amp;", file);
    else if (*text == '<') fputs("&lt;", file);
    else if (*text == '>') fputs("&gt;", file);
    else if (*text == '"') fputs("&quot;", file);
    else if (*text == '\r') fputs("&#13;", file);
    else fwrite(text, 1, (size_t)length, file);
    text += length > 0 ? length : 1;
  }
}

static void xml_attribute(FILE *file, const char *name, const char *value) {
  fprintf(file, " %s=\"", name);
  xml_put(file, value);
  fputc('"', file);
}

static void junit_failure(const struct sweep *sweep, const struct run_end *end, FILE *file) {
  char reason[REASON_BYTES], command[COMMAND_BYTES], lines[RUN_TAIL_BYTES];
  run_end_text(end, sweep->timeout_ns, reason, sizeof reason);
  sweep_command(sweep, &end->draw, command, sizeof command);
  run_last_lines(&end->output, SHOWN_LINES, lines, sizeof lines);
  fputs(">\n      <failure", file);
  xml_attribute(file, "message", reason);
  xml_attribute(file, "type", end->timed_out ? "timeout" : "exit");
  fputs(">reproduce: ", file);
  xml_put(file, command);
  if (end->sentence[0] != '\0') {
    fputs("\ndiagnosis: ", file);
    xml_put(file, end->sentence);
  }
  fputc('\n', file);
  xml_put(file, lines);
  fputs("</failure>\n    </testcase>\n", file);
}

static void junit_case(const struct sweep *sweep, const struct run_result *result, const char *program,
                       FILE *file) {
  char keys[DRAW_TEXT_BYTES], name[DRAW_TEXT_BYTES + 64];
  draw_keys_text(&result->draw, keys, sizeof keys);
  snprintf(name, sizeof name, "seed %llu%s%s", (unsigned long long)result->draw.seed,
           keys[0] != '\0' ? " " : "", keys);
  fputs("    <testcase", file);
  xml_attribute(file, "classname", program);
  xml_attribute(file, "name", name);
  fprintf(file, " time=\"%.3f\"", (double)result->ns / 1e9);
  if (result->state == RUN_FAILED) junit_failure(sweep, result->failure, file);
  else fputs("/>\n", file);
}

bool sweep_junit(const struct sweep *sweep, const char *path) {
  char program[COMMAND_BYTES] = "";
  FILE *file = fopen(path, "we");
  if (file == NULL) return false;
  const unsigned long long tests = sweep->passed + sweep->failed, failures = sweep->failed;
  const double seconds = (double)sweep->ns / 1e9;
  arguments_add(sweep, program, sizeof program);
  fprintf(file,
          "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites tests=\"%llu\" failures=\"%llu\" "
          "time=\"%.3f\">\n  <testsuite",
          tests, failures, seconds);
  xml_attribute(file, "name", program);
  fprintf(file, " tests=\"%llu\" failures=\"%llu\" errors=\"0\" skipped=\"0\" time=\"%.3f\">\n", tests,
          failures, seconds);
  for (uint64_t i = 0; i < sweep->count; i++)
    if (sweep->results[i].state != RUN_NOT_RUN) junit_case(sweep, &sweep->results[i], program, file);
  fputs("  </testsuite>\n</testsuites>\n", file);
  const bool good = ferror(file) == 0;
  return fclose(file) == 0 && good;
}

/* ---- JSON */

static void json_failure(const struct sweep *sweep, const struct run_end *end, struct json *json) {
  char text[COMMAND_BYTES], lines[RUN_TAIL_BYTES];
  run_end_text(end, sweep->timeout_ns, text, sizeof text);
  json_text(json, "reason", text);
  json_text(json, "diagnosis", end->sentence);
  json_text(json, "records", end->folder);
  sweep_command(sweep, &end->draw, text, sizeof text);
  json_text(json, "reproduce", text);
  run_last_lines(&end->output, SHOWN_LINES, lines, sizeof lines);
  json_text(json, "output", lines);
}

static void json_shrunk(const struct sweep *sweep, struct json *json) {
  char command[COMMAND_BYTES];
  json_open(json, "shrunk", '{');
  json_bool(json, "repeats", sweep->shrunk.repeats);
  json_bool(json, "default_settings_too", sweep->shrunk.always);
  json_number(json, "runs", sweep->shrunk.tries);
  sweep_command(sweep, &sweep->shrunk.draw, command, sizeof command);
  json_text(json, "reproduce", command);
  json_close(json, '}');
}

void sweep_json(const struct sweep *sweep) {
  static const char *const states[] = {"not run", "passed", "failed"};
  struct json json = {.out = stdout};
  char text[COMMAND_BYTES] = "";
  arguments_add(sweep, text, sizeof text);
  json_open(&json, NULL, '{');
  json_text(&json, "program", text);
  json_number(&json, "passed", (int64_t)sweep->passed);
  json_number(&json, "failed", (int64_t)sweep->failed);
  json_number(&json, "not_run", (int64_t)(sweep->count - sweep->passed - sweep->failed));
  json_decimal(&json, "seconds", (double)sweep->ns / 1e9);
  if (sweep->shrunk.tries > 0) json_shrunk(sweep, &json);
  json_open(&json, "runs", '[');
  for (uint64_t i = 0; i < sweep->count; i++) {
    const struct run_result *result = &sweep->results[i];
    if (result->state == RUN_NOT_RUN) continue;
    json_open(&json, NULL, '{');
    json_number(&json, "seed", (int64_t)result->draw.seed);
    draw_keys_text(&result->draw, text, sizeof text);
    json_text(&json, "settings", text);
    json_text(&json, "state", states[result->state]);
    json_decimal(&json, "seconds", (double)result->ns / 1e9);
    if (result->state == RUN_FAILED) json_failure(sweep, result->failure, &json);
    json_close(&json, '}');
  }
  json_close(&json, ']');
  json_close(&json, '}');
}
