/* param.c: reads the settings of params.def from the environment and the settings files, once. Promises: the
 * first source with a valid value wins, in the order environment plugin, environment, user's file,
 * /etc/nccl.conf; each fault is kept as a sentence, for the log (param_report), for the first call of the
 * library (param_check) and for `tutti doctor`; no allocation outlives the reading. Does not know what a
 * setting does. */
#include "base/param.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/env_plugin.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param_text.h"
#include "base/text.h"

#define SYSTEM_FILE "/etc/nccl.conf"
#define USER_FILE_NAME ".nccl.conf"

#define PATH_BYTES 4096
#define VALUES_BYTES 16384
#define NAME_BYTES 64
#define FAULT_BYTES 640
#define FAULT_LIMIT 24
#define SLIP_MOST 2 /* edits between a known name and a mistyped one */

#define TEXT_ROW 0, 0, 0
static const struct param_row rows[PARAM_COUNT] = {
#define PARAM(id, name, kind, initial, lowest, highest, help) \
  {name, help, "", PARAM_##kind, (initial), (lowest), (highest)},
#define PARAM_STR(id, name, initial, help) {name, help, initial, PARAM_TEXT, TEXT_ROW},
#include "base/params.def"
#undef PARAM
#undef PARAM_STR
};

static const struct param_accepted accepted_rows[] = {
#define ACCEPTED(name, why) {name, why},
#include "base/params_accepted.def"
#undef ACCEPTED
};
#define ACCEPTED_COUNT (sizeof accepted_rows / sizeof accepted_rows[0])

struct param_value {
  const char *source; /* NULL: not set */
  const char *text;   /* as the user wrote it */
  int64_t number;
};

/* param_load writes the following under the mutex before it sets `loaded`; then read-only until param_reset.
 */
static os_mutex load_mutex = OS_MUTEX_INITIALIZER;
static atomic_bool loaded;
static atomic_bool report_due;
static atomic_bool refusal_said; /* param_check has printed the faults */
static struct param_value values[PARAM_COUNT];
static const char *accepted_sources[ACCEPTED_COUNT]; /* NULL: not set */
static char value_texts[VALUES_BYTES];
static size_t value_texts_used;
static char user_file[PATH_BYTES];
static char fault_texts[FAULT_LIMIT][FAULT_BYTES];
static struct param_fault faults[FAULT_LIMIT];
static unsigned fault_count;   /* may exceed FAULT_LIMIT: further faults are only counted */
static unsigned first_refused; /* the first fault for which calls are refused; FAULT_LIMIT: none */

/* Keeps a fault: the log is not available while the table is read. */
static void fault_add(enum param_fault_kind kind, const char *format, ...) LOG_FORMAT(2, 3);
static void fault_add(enum param_fault_kind kind, const char *format, ...) {
  unsigned index = fault_count++;
  /* A fault that refuses calls has a place whatever else is wrong. */
  if (index >= FAULT_LIMIT && (kind != PARAM_FAULT_REFUSED || first_refused < FAULT_LIMIT)) return;
  if (index >= FAULT_LIMIT) index = FAULT_LIMIT - 1;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(fault_texts[index], FAULT_BYTES, format, arguments);
  va_end(arguments);
  faults[index] = (struct param_fault){kind, fault_texts[index]};
  if (kind == PARAM_FAULT_REFUSED && first_refused == FAULT_LIMIT) first_refused = index;
}

/* A wrong value of NCCL's settings is ignored, as NCCL does. One of tutti's own refuses the library's calls:
 * a run with another seed than the user meant tests something else. */
static bool name_is_ours(const char *name) { return strncmp(name, "TUTTI_", 6) == 0; }

static void value_fault(const char *where, const struct param_row *row, const char *value, const char *what) {
  const char *shown = value, *stays = "";
  char number[48] = "";
  if (row->kind != PARAM_TEXT) snprintf(number, sizeof number, ", and %lld stays", (long long)row->initial);
  else stays = row->text[0] != '\0' ? ", and the default stays: " : "";
  if (name_is_ours(row->name)) fault_add(PARAM_FAULT_REFUSED, "%s: %s=%s %s", where, row->name, shown, what);
  else
    fault_add(PARAM_FAULT_IGNORED, "%s: %s=%s %s; it is ignored%s%s%s", where, row->name, shown, what, number,
              stays, *stays ? row->text : "");
}

/* Copies a text for the life of the table; NULL if the space for texts is used up. */
static const char *value_text_keep(const char *text, size_t length) {
  if (length >= VALUES_BYTES - value_texts_used) return NULL;
  char *copy = value_texts + value_texts_used;
  memcpy(copy, text, length);
  copy[length] = '\0';
  value_texts_used += length + 1;
  return copy;
}

/* Multiplier of a size suffix; 0 if it is invalid. */
static int64_t suffix_multiplier(const char *suffix) {
  if (suffix[0] == '\0') return 1;
  if (suffix[1] != '\0') return 0;
  switch (suffix[0]) {
    case 'k':
    case 'K': return 1ll << 10;
    case 'm':
    case 'M': return 1ll << 20;
    case 'g':
    case 'G': return 1ll << 30;
    default: return 0;
  }
}

/* Decimal, 0x hexadecimal or 0 octal, with a suffix if the kind allows it. False for anything else. */
static bool number_parse(const char *text, enum param_kind kind, int64_t *number) {
  char *end;
  errno = 0;
  long long parsed = strtoll(text, &end, 0);
  if (end == text || errno != 0) return false;
  int64_t multiplier = kind == PARAM_BYTES ? suffix_multiplier(end) : *end == '\0';
  return multiplier != 0 && !__builtin_mul_overflow((int64_t)parsed, multiplier, number);
}

/* Reads a number of a row; if it is none, or out of bounds, says so in `what`. */
static bool number_check(const struct param_row *row, const char *text, int64_t *number, char *what,
                         size_t what_bytes) {
  const bool parsed = number_parse(text, row->kind, number);
  if (!parsed)
    snprintf(what, what_bytes, "is no %s from %lld to %lld",
             row->kind == PARAM_BYTES ? "size (a number, or one with K, M or G)" : "whole number",
             (long long)row->lowest, (long long)row->highest);
  else if (*number < row->lowest || *number > row->highest)
    snprintf(what, what_bytes, "is outside %lld..%lld", (long long)row->lowest, (long long)row->highest);
  else return true;
  return false;
}

/* Sets a row's value unless an earlier source did. An empty text counts as unset, as in NCCL. */
static void value_set(enum param_id id, const char *text, size_t length, const char *source,
                      const char *where) {
  const struct param_row *row = &rows[id];
  struct param_value value = {source, NULL, 0};
  if (values[id].source || length == 0) return;
  value.text = value_text_keep(text, length);
  if (!value.text) {
    fault_add(name_is_ours(row->name) ? PARAM_FAULT_REFUSED : PARAM_FAULT_IGNORED,
              "%s: no space for the value of %s (%zu bytes); it is ignored", where, row->name, length);
    return;
  }
  char what[PARAM_WHAT_BYTES];
  if (row->kind == PARAM_TEXT ? !param_text_check(id, value.text, what, sizeof what)
                              : !number_check(row, value.text, &value.number, what, sizeof what)) {
    value_fault(where, row, value.text, what);
    return;
  }
  values[id] = value;
}

static bool name_is(const char *known, const char *name, size_t length) {
  return strlen(known) == length && memcmp(known, name, length) == 0;
}

/* Row with this name, PARAM_COUNT if there is none. */
static enum param_id row_find(const char *name, size_t length) {
  int id = 0;
  while (id < PARAM_COUNT && !name_is(rows[id].name, name, length)) id++;
  return (enum param_id)id;
}

/* Index among the accepted names, ACCEPTED_COUNT if there is none. */
static size_t accepted_find(const char *name, size_t length) {
  size_t index = 0;
  while (index < ACCEPTED_COUNT && !name_is(accepted_rows[index].name, name, length)) index++;
  return index;
}

/* The nearest name with the same prefix, and how far it is. */
static const char *nearest_name(const char *name, unsigned *far) {
  const char *nearest = rows[0].name;
  unsigned least = ~0u;
  for (size_t i = 0; i < PARAM_COUNT + ACCEPTED_COUNT; i++) {
    const char *known = i < PARAM_COUNT ? rows[i].name : accepted_rows[i - PARAM_COUNT].name;
    if (name_is_ours(name) != name_is_ours(known)) continue;
    const unsigned distance = text_distance(name, known);
    if (distance >= least) continue;
    nearest = known;
    least = distance;
  }
  *far = least;
  return nearest;
}

/* Names that begin with NCCL_ or TUTTI_ and belong to other programs: build scripts, container images,
 * plugins, old frameworks. */
static bool name_is_foreign(const char *name) {
  static const char *const prefixes[] = {"NCCL_TESTS_",     "NCCL_OFI_",     "NCCL_FASTRAK_", "NCCL_UCX_",
                                         "NCCL_INSPECTOR_", "NCCL_PROFILE_", "TUTTI_TEST_"};
  static const char *const of_builds[] = {"HOME",    "ROOT",        "ROOT_DIR", "DIR", "PREFIX",
                                          "VERSION", "INCLUDE_DIR", "LIB_DIR",  "LIB", "LIBRARY"};
  static const char *const of_pytorch[] = {"NCCL_BLOCKING_WAIT", "NCCL_ASYNC_ERROR_HANDLING",
                                           "NCCL_DESYNC_DEBUG"};
  if (strncmp(name, "NCCL_", 5) != 0 && strncmp(name, "TUTTI_", 6) != 0) return true;
  for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
    if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) return true;
  }
  for (size_t i = 0; i < sizeof of_builds / sizeof *of_builds; i++) {
    if (strcmp(strchr(name, '_') + 1, of_builds[i]) == 0) return true;
  }
  for (size_t i = 0; i < sizeof of_pytorch / sizeof *of_pytorch; i++) {
    if (strcmp(name, of_pytorch[i]) == 0) return true;
  }
  return false;
}

/* NCCL ignores names that it does not know, and newer versions have more of them: such a name is worth a line
 * of the log. One that is nearly a known name is a slip of the pen. */
static void unknown_name_fault(const char *text, size_t length, const char *where) {
  char name[NAME_BYTES];
  unsigned far;
  snprintf(name, sizeof name, "%.*s", (int)(length < NAME_BYTES ? length : NAME_BYTES - 1), text);
  if (name_is_foreign(name)) return;
  const char *nearest = nearest_name(name, &far);
  const bool ours = name_is_ours(name);
  fault_add(ours               ? PARAM_FAULT_REFUSED
            : far <= SLIP_MOST ? PARAM_FAULT_IGNORED
                               : PARAM_FAULT_UNKNOWN,
            "%s: %s is no known setting%s; did you mean %s? `tutti help params` lists them all", where, name,
            ours ? "" : " and is ignored", nearest);
}

/* One setting from one source, whichever table it belongs to. */
static void setting_take(const char *name, size_t name_length, const char *value, size_t value_length,
                         const char *source, const char *where) {
  const enum param_id id = row_find(name, name_length);
  const size_t accepted = accepted_find(name, name_length);
  if (id != PARAM_COUNT) value_set(id, value, value_length, source, where);
  else if (accepted == ACCEPTED_COUNT) unknown_name_fault(name, name_length, where);
  else if (value_length > 0 && !accepted_sources[accepted]) accepted_sources[accepted] = source;
}

/* What a plugin says of NCCL's settings comes before the environment. */
static void plugin_read(void) {
  for (size_t i = 0; i < PARAM_COUNT + ACCEPTED_COUNT; i++) {
    const char *name = i < PARAM_COUNT ? rows[i].name : accepted_rows[i - PARAM_COUNT].name;
    const char *value = name_is_ours(name) ? NULL : env_plugin_value(name);
    if (value != NULL)
      setting_take(name, strlen(name), value, strlen(value), env_plugin_source(), env_plugin_source());
  }
  if (env_plugin_fault() != NULL) fault_add(PARAM_FAULT_IGNORED, "%s", env_plugin_fault());
}

static void environment_read(void) {
  for (const char *const *entry = os_environ(); entry && *entry; entry++) {
    const char *equals = strchr(*entry, '=');
    size_t length = equals ? (size_t)(equals - *entry) : 0;
    if (strncmp(*entry, "NCCL_", 5) != 0 && strncmp(*entry, "TUTTI_", 6) != 0) continue;
    setting_take(*entry, length, equals + 1, strlen(equals + 1), "environment", "environment");
  }
}

static bool is_blank(char letter) { return letter == ' ' || letter == '\t' || letter == '\r'; }

static const char *blank_skip(const char *begin, const char *end) {
  while (begin < end && is_blank(*begin)) begin++;
  return begin;
}

static const char *blank_trim(const char *begin, const char *end) {
  while (end > begin && is_blank(end[-1])) end--;
  return end;
}

/* One line of a settings file: blank, "# comment", or "NAME=value" with spaces around either part. */
static void file_line_read(const char *begin, const char *end, const char *path, unsigned line) {
  char where[PATH_BYTES + 16];
  snprintf(where, sizeof where, "%s:%u", path, line);
  begin = blank_skip(begin, end);
  end = blank_trim(begin, end);
  if (begin == end || *begin == '#') return;
  const char *equals = (const char *)memchr(begin, '=', (size_t)(end - begin));
  const char *name_end = equals ? blank_trim(begin, equals) : begin;
  if (name_end == begin) {
    fault_add(PARAM_FAULT_IGNORED, "%s: \"%.*s\" is not of the form NAME=value; it is ignored", where,
              (int)(end - begin), begin);
    return;
  }
  const char *value = blank_skip(equals + 1, end);
  setting_take(begin, (size_t)(name_end - begin), value, (size_t)(end - value), path, where);
}

/* A missing file is an error only if the user named it. */
static void file_read(const char *path, bool must_exist) {
  char *text = os_file_read(path, NULL);
  if (!text) {
    bool silent = !must_exist && (errno == ENOENT || errno == ENOTDIR);
    if (!silent)
      fault_add(PARAM_FAULT_IGNORED, "cannot read the settings file %s: %s; check NCCL_CONF_FILE", path,
                strerror(errno));
    return;
  }
  unsigned line = 1;
  for (const char *begin = text; *begin; line++) {
    size_t length = strcspn(begin, "\n");
    file_line_read(begin, begin + length, path, line);
    begin += length + (begin[length] == '\n');
  }
  os_free(text);
}

static void files_read(void) {
  const char *home = os_env("HOME");
  bool named = values[PARAM_CONF_FILE].source != NULL;
  if (named) snprintf(user_file, sizeof user_file, "%s", values[PARAM_CONF_FILE].text);
  else snprintf(user_file, sizeof user_file, "%s/" USER_FILE_NAME, home ? home : "");
  if (named || home) file_read(user_file, named);
  file_read(SYSTEM_FILE, false);
}

static void param_load(void) {
  os_mutex_lock(&load_mutex);
  if (!atomic_load(&loaded)) {
    memset(values, 0, sizeof values);
    memset(accepted_sources, 0, sizeof accepted_sources);
    value_texts_used = 0;
    fault_count = 0;
    first_refused = FAULT_LIMIT;
    refusal_said = false;
    plugin_read();
    environment_read();
    files_read();
    os_threads_name(values[PARAM_SET_THREAD_NAME].number != 0);
    atomic_store(&report_due, true);
    atomic_store(&loaded, true);
  }
  os_mutex_unlock(&load_mutex);
}

static void param_prepare(void) {
  if (!atomic_load_explicit(&loaded, memory_order_acquire)) param_load();
  if (atomic_load_explicit(&report_due, memory_order_relaxed)) param_report();
}

bool param_is_hidden(enum param_id id) {
  param_prepare();
  const char *text = values[id].text;
  return id == PARAM_TUTTI_SECRET && text != NULL && text[0] != '@';
}

void param_report(void) {
  if (!atomic_exchange(&report_due, false)) return;
  env_plugin_report();
  for (int id = 0; id < PARAM_COUNT; id++) {
    const struct param_value *value = &values[id];
    if (!value->source) continue;
    log_info(LOG_ENV, "%s set by %s to %s", rows[id].name, value->source,
             param_is_hidden((enum param_id)id) ? "..." : value->text);
  }
  for (size_t i = 0; i < ACCEPTED_COUNT; i++)
    if (accepted_sources[i])
      log_info(LOG_ENV, "%s is accepted and has no effect in tutti: %s", accepted_rows[i].name,
               accepted_rows[i].why);
  for (unsigned i = 0; i < fault_count && i < FAULT_LIMIT; i++) {
    if (faults[i].kind == PARAM_FAULT_UNKNOWN) log_warn("%s", faults[i].text);
    else if (faults[i].kind == PARAM_FAULT_IGNORED) log_visible("%s", faults[i].text);
  }
  if (fault_count > FAULT_LIMIT) {
    log_warn("%u more faults in the environment and settings files are not listed",
             fault_count - FAULT_LIMIT);
  }
}

ncclResult_t param_check(void) {
  param_prepare();
  if (first_refused == FAULT_LIMIT) return ncclSuccess;
  const bool said = atomic_exchange(&refusal_said, true);
  for (unsigned i = 0; !said && i < fault_count && i < FAULT_LIMIT; i++)
    if (faults[i].kind == PARAM_FAULT_REFUSED && i != first_refused) log_visible("%s", faults[i].text);
  /* Last, so that it is the text of ncclGetLastError. */
  if (said) log_warn("%s", faults[first_refused].text);
  else log_visible("%s", faults[first_refused].text);
  return ncclInvalidUsage;
}

const struct param_fault *param_fault(size_t index) {
  if (!atomic_load_explicit(&loaded, memory_order_acquire)) param_load();
  return index < fault_count && index < FAULT_LIMIT ? &faults[index] : NULL;
}

int64_t param_int(enum param_id id) {
  param_prepare();
  return values[id].source ? values[id].number : rows[id].initial;
}

const char *param_text_silent(enum param_id id) {
  if (!atomic_load_explicit(&loaded, memory_order_acquire)) param_load();
  return values[id].source ? values[id].text : rows[id].text;
}

const char *param_text(enum param_id id) {
  param_prepare();
  return param_text_silent(id);
}

bool param_is_set(enum param_id id) {
  param_prepare();
  return values[id].source != NULL;
}

const char *param_name(enum param_id id) { return rows[id].name; }

const char *param_source(enum param_id id) {
  param_prepare();
  return values[id].source ? values[id].source : "default";
}

const struct param_row *param_row(enum param_id id) { return &rows[id]; }

const struct param_accepted *param_accepted(size_t index) {
  return index < ACCEPTED_COUNT ? &accepted_rows[index] : NULL;
}

enum param_id param_find(const char *name) { return row_find(name, strlen(name)); }

const struct param_accepted *param_accepted_find(const char *name) {
  return param_accepted(accepted_find(name, strlen(name)));
}

const char *param_accepted_source(size_t index) {
  param_prepare();
  return index < ACCEPTED_COUNT ? accepted_sources[index] : NULL;
}

void param_reset(void) {
  os_mutex_lock(&load_mutex);
  atomic_store(&report_due, false);
  atomic_store(&loaded, false);
  os_mutex_unlock(&load_mutex);
}
