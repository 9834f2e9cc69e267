/* log.c: formats and writes log lines, and keeps the last warning. Promises: each line is one write, in the
 * order of the calls; a warning is kept even if it is not printed; allocates only the thread's copy of it.
 * The settings come from the parameter table and are read at first use. Does not know what a message means,
 * nor which communicator it is about. */
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/os.h"
#include "base/param.h"
#include "tutti.h"

#define LOG_TEXT_BYTES 16384 /* the report of a deadlock names many lanes */
#define LOG_LINE_BYTES (LOG_TEXT_BYTES + 512)
#define LOG_PATH_BYTES 1024

struct log_name {
  const char *text;
  unsigned value;
};

static const struct log_name level_names[] = {
    {"NONE", LOG_NONE},   {"VERSION", LOG_VERSION}, {"WARN", LOG_WARN}, {"INFO", LOG_INFO},
    {"ABORT", LOG_ABORT}, {"TRACE", LOG_TRACE},     {NULL, 0}};

/* Time stamps are enabled by a set of levels, so each level is a bit. */
static const struct log_name level_bits[] = {{"VERSION", 1u << LOG_VERSION},
                                             {"WARN", 1u << LOG_WARN},
                                             {"INFO", 1u << LOG_INFO},
                                             {"ABORT", 1u << LOG_ABORT},
                                             {"TRACE", 1u << LOG_TRACE},
                                             {"ALL", ~0u},
                                             {NULL, 0}};

static const struct log_name subsystem_names[] = {{"INIT", LOG_INIT},
                                                  {"COLL", LOG_COLL},
                                                  {"P2P", LOG_P2P},
                                                  {"SHM", LOG_SHM},
                                                  {"NET", LOG_NET},
                                                  {"GRAPH", LOG_GRAPH},
                                                  {"TUNING", LOG_TUNING},
                                                  {"ENV", LOG_ENV},
                                                  {"ALLOC", LOG_ALLOC},
                                                  {"CALL", LOG_CALL},
                                                  {"PROXY", LOG_PROXY},
                                                  {"NVLS", LOG_NVLS},
                                                  {"BOOTSTRAP", LOG_BOOTSTRAP},
                                                  {"REG", LOG_REG},
                                                  {"PROFILE", LOG_PROFILE},
                                                  {"RAS", LOG_RAS},
                                                  {"DESTROY", LOG_DESTROY},
                                                  {"ALLOC_HOST", LOG_ALLOC_HOST},
                                                  {"ALL", LOG_ALL},
                                                  {NULL, 0}};

/* log_setup writes the following under the mutex; read after `ready`, or under the mutex. */
static os_mutex log_mutex = OS_MUTEX_INITIALIZER;
static atomic_bool ready;
static enum log_level log_level;
static unsigned log_subsystems;
static unsigned stamped_levels;
static char stamp_format[64];
static char host_name[256];
static FILE *log_file; /* NULL: standard output */
static bool log_file_lost;
static bool version_printed;
static char last_warning[LOG_TEXT_BYTES];
static bool last_is_urgent; /* the last warning was a log_urgent */

static _Thread_local int thread_device = -1;
static _Thread_local bool thread_gathers_evidence, thread_hushed;

static const struct log_name *name_find(const struct log_name *names, const char *text, size_t length) {
  for (; names->text; names++) {
    if (strlen(names->text) == length && strncasecmp(names->text, text, length) == 0) return names;
  }
  return NULL;
}

/* "A,B" is A and B; "^A,B" is all except A and B. Returns the first unknown word in *unknown; unknown words
 * are ignored. */
static unsigned name_set_parse(const struct log_name *names, const char *list, const char **unknown) {
  bool negated = list[0] == '^';
  unsigned set = 0;
  for (const char *word = list + negated; *word;) {
    size_t length = strcspn(word, ",");
    const struct log_name *name = name_find(names, word, length);
    if (name) set |= name->value;
    else if (length > 0 && !*unknown) *unknown = word;
    word += length + (word[length] == ',');
  }
  return negated ? ~set : set;
}

/* Fills in %h (host) and %p (process); "%%" is a percent sign; other escapes stay as they are. */
static void path_expand(const char *pattern, char *out, size_t out_bytes) {
  size_t used = 0;
  for (; *pattern && used + 1 < out_bytes; pattern++) {
    int wrote = 1;
    char escape = pattern[0] == '%' ? pattern[1] : '\0';
    if (escape == 'h') wrote = snprintf(out + used, out_bytes - used, "%s", host_name);
    else if (escape == 'p') wrote = snprintf(out + used, out_bytes - used, "%d", os_pid());
    else out[used] = *pattern;
    if (escape == 'h' || escape == 'p' || escape == '%') pattern++;
    used += (size_t)wrote;
  }
  out[used < out_bytes ? used : out_bytes - 1] = '\0';
}

/* Opens NCCL_DEBUG_FILE. Does not reopen the standard streams, which would truncate a redirected one. */
static FILE *file_open(const char *pattern, char *path) {
  path_expand(pattern, path, LOG_PATH_BYTES);
  if (!strcmp(path, "stdout") || !strcmp(path, "/dev/stdout")) return stdout;
  if (!strcmp(path, "stderr") || !strcmp(path, "/dev/stderr")) return stderr;
  return fopen(path, "we");
}

/* The parameter table has refused unknown levels. */
static void setup_level(void) {
  const char *text = param_text_silent(PARAM_DEBUG);
  const struct log_name *name = name_find(level_names, text, strlen(text));
  log_level = name ? (enum log_level)name->value : LOG_NONE;
}

/* Reads the settings once. Reports their errors after unlocking, because logging takes the lock. */
static void log_setup(void) {
  const char *unknown_subsystem = NULL, *unknown_stamp = NULL;
  char path[LOG_PATH_BYTES] = "";
  int open_error = 0;
  os_mutex_lock(&log_mutex);
  if (atomic_load(&ready)) {
    os_mutex_unlock(&log_mutex);
    return;
  }
  os_host_name(host_name, sizeof host_name);
  host_name[strcspn(host_name, ".")] = '\0';
  setup_level();
  log_subsystems = name_set_parse(subsystem_names, param_text_silent(PARAM_DEBUG_SUBSYS), &unknown_subsystem);
  const char *stamped = param_text_silent(PARAM_DEBUG_TIMESTAMP_LEVELS);
  stamped_levels = name_set_parse(level_bits, stamped, &unknown_stamp);
  snprintf(stamp_format, sizeof stamp_format, "%s", param_text_silent(PARAM_DEBUG_TIMESTAMP_FORMAT));
  const char *pattern = param_text_silent(PARAM_DEBUG_FILE);
  if (*pattern && log_level > LOG_VERSION) {
    log_file = file_open(pattern, path);
    open_error = log_file ? 0 : errno;
  }
  atomic_store(&ready, true);
  os_mutex_unlock(&log_mutex);

  if (unknown_subsystem) {
    log_warn("NCCL_DEBUG_SUBSYS has an unknown name at \"%s\"; `tutti help params` lists them",
             unknown_subsystem);
  }
  if (unknown_stamp) {
    log_warn("NCCL_DEBUG_TIMESTAMP_LEVELS has an unknown level at \"%s\"; use WARN, INFO, TRACE or ALL",
             unknown_stamp);
  }
  if (open_error) {
    log_warn("cannot open NCCL_DEBUG_FILE %s: %s; the log goes to standard output", path,
             strerror(open_error));
  }
  param_report();
}

static void log_prepare(void) {
  if (!atomic_load_explicit(&ready, memory_order_acquire)) log_setup();
}

bool log_enabled(enum log_level level, unsigned subsystem) {
  log_prepare();
  if (log_level < level || level == LOG_NONE) return false;
  return level <= LOG_WARN || (log_subsystems & subsystem) != 0;
}

/* NCCL adds "%<digits>f", a fraction of a second, to strftime's format; it is replaced before strftime sees
 * the rest. */
static void stamp_expand_fraction(long nanoseconds, char *out, size_t out_bytes) {
  size_t used = 0;
  for (const char *in = stamp_format; *in && used + 10 < out_bytes;) {
    if (in[0] == '%' && in[1] >= '1' && in[1] <= '9' && in[2] == 'f') {
      char digits[24];
      snprintf(digits, sizeof digits, "%09ld", nanoseconds);
      used += (size_t)snprintf(out + used, out_bytes - used, "%.*s", in[1] - '0', digits);
      in += 3;
      continue;
    }
    if (in[0] == '%' && in[1]) out[used++] = *in++; /* "%%3f" is no fraction: copy both signs */
    out[used++] = *in++;
  }
  out[used] = '\0';
}

/* The time stamp of a line at this level, or "". */
static void stamp_write(enum log_level level, char *out, size_t out_bytes) {
  char format[sizeof stamp_format * 5];
  struct timespec now;
  struct tm local;
  out[0] = '\0';
  if (!(stamped_levels & (1u << level))) return;
  clock_gettime(CLOCK_REALTIME, &now);
  if (!localtime_r(&now.tv_sec, &local)) return;
  stamp_expand_fraction(now.tv_nsec, format, sizeof format);
  if (format[0] && strftime(out, out_bytes, format, &local) == 0) out[0] = '\0';
}

/* Under the mutex. Output that cannot be written is lost; another place reports that once. */
static void file_write(FILE *file, const char *line, size_t bytes) {
  const bool written = fwrite(line, 1, bytes, file) == bytes;
  if ((fflush(file) == 0 && written) || file == stderr || log_file_lost) return;
  log_file_lost = true;
  fprintf(stderr, "NCCL_DEBUG_FILE: lines of the log are lost: %s\n", strerror(errno));
}

/* Writes prefix and text as one line. A line that is too long is truncated, never split. */
static void line_write_to(FILE *other, enum log_level level, const char *prefix, const char *text) {
  char stamp[256], line[LOG_LINE_BYTES];
  stamp_write(level, stamp, sizeof stamp);
  int length = snprintf(line, sizeof line - 1, "%s%s%s", stamp, prefix, text);
  if (length > (int)sizeof line - 2) length = (int)sizeof line - 2;
  line[length] = '\n';
  os_mutex_lock(&log_mutex);
  FILE *file = other != NULL ? other : log_file ? log_file : stdout;
  file_write(file, line, (size_t)length + 1);
  os_mutex_unlock(&log_mutex);
}

static void line_write(enum log_level level, const char *prefix, const char *text) {
  line_write_to(NULL, level, prefix, text);
}

/* "host:pid:tid [device] " */
static int speaker_write(char *out, size_t out_bytes) {
  return snprintf(out, out_bytes, "%s:%d:%ld [%d] ", host_name, os_pid(), os_tid(), thread_device);
}

static void line_format(enum log_level level, const char *name, const char *format, va_list arguments) {
  char prefix[384], text[LOG_TEXT_BYTES];
  int used = speaker_write(prefix, sizeof prefix);
  snprintf(prefix + used, sizeof prefix - (size_t)used, "NCCL %s ", name);
  vsnprintf(text, sizeof text, format, arguments);
  line_write(level, prefix, text);
}

void log_info(unsigned subsystem, const char *format, ...) {
  if (!log_enabled(LOG_INFO, subsystem)) return;
  va_list arguments;
  va_start(arguments, format);
  line_format(LOG_INFO, "INFO", format, arguments);
  va_end(arguments);
}

void log_trace(unsigned subsystem, const char *format, ...) {
  if (!log_enabled(LOG_TRACE, subsystem)) return;
  va_list arguments;
  va_start(arguments, format);
  line_format(LOG_TRACE, "TRACE", format, arguments);
  va_end(arguments);
}

void log_call(const char *format, ...) {
  char prefix[384], text[LOG_TEXT_BYTES];
  if (!log_enabled(LOG_INFO, LOG_CALL)) return;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  snprintf(prefix, sizeof prefix, "%s:%d:%ld NCCL CALL ", host_name, os_pid(), os_tid());
  line_write(LOG_INFO, prefix, text);
}

/* The base name of a source path: the build directory is of no interest to a reader. */
static const char *file_base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

/* A thread's last error text and last own warning, freed with the thread. Not thread-local arrays: static TLS
 * space is scarce, and with little of it access needs no function call even if a program loads the library
 * with dlopen. */
struct thread_texts {
  char asked[LOG_TEXT_BYTES], own[LOG_TEXT_BYTES];
};
static pthread_key_t texts_key;
static pthread_once_t texts_once = PTHREAD_ONCE_INIT;

static void texts_key_make(void) { pthread_key_create(&texts_key, free); }

static struct thread_texts *texts_of_thread(void) {
  pthread_once(&texts_once, texts_key_make);
  struct thread_texts *texts = (struct thread_texts *)pthread_getspecific(texts_key);
  if (texts != NULL) return texts;
  texts = (struct thread_texts *)malloc(sizeof *texts);
  if (texts != NULL && pthread_setspecific(texts_key, texts) == 0) {
    texts->own[0] = '\0';
    return texts;
  }
  free(texts);
  return NULL;
}

enum warning { WARNING_PLAIN, WARNING_VISIBLE, WARNING_URGENT };

static void warn_write(const char *file, int line, enum warning kind, const char *format, va_list arguments) {
  const bool urgent = kind == WARNING_URGENT;
  char prefix[384], text[LOG_TEXT_BYTES];
  log_prepare(); /* first, because what it reports is older than this warning */
  vsnprintf(text, sizeof text, format, arguments);
  if (thread_hushed && !urgent) {
    log_info(LOG_INIT, "%s", text);
    return;
  }
  struct thread_texts *texts = texts_of_thread();
  if (texts != NULL) memcpy(texts->own, text, strlen(text) + 1);
  os_mutex_lock(&log_mutex);
  if (urgent || !thread_gathers_evidence || !last_is_urgent) {
    memcpy(last_warning, text, strlen(text) + 1);
    last_is_urgent = urgent;
  }
  os_mutex_unlock(&log_mutex);
  const bool enabled = log_enabled(LOG_WARN, LOG_ALL);
  if (!enabled && (kind == WARNING_PLAIN || param_is_set(PARAM_DEBUG))) return;
  int used = speaker_write(prefix, sizeof prefix);
  snprintf(prefix + used, sizeof prefix - (size_t)used, "%s:%d NCCL WARN ", file_base_name(file), line);
  line_write_to(enabled ? NULL : stderr, LOG_WARN, prefix, text);
}

void log_warn_at(const char *file, int line, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  warn_write(file, line, WARNING_PLAIN, format, arguments);
  va_end(arguments);
}

void log_visible_at(const char *file, int line, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  warn_write(file, line, WARNING_VISIBLE, format, arguments);
  va_end(arguments);
}

void log_urgent_at(const char *file, int line, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  warn_write(file, line, WARNING_URGENT, format, arguments);
  va_end(arguments);
}

ncclResult_t log_fail_at(const char *file, int line, ncclResult_t code, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  warn_write(file, line, WARNING_PLAIN, format, arguments);
  va_end(arguments);
  return code;
}

static const char no_texts[] = "no memory to say what went wrong";

const char *log_last_error(void) {
  struct thread_texts *texts = texts_of_thread();
  if (texts == NULL) return no_texts;
  os_mutex_lock(&log_mutex);
  memcpy(texts->asked, last_warning, LOG_TEXT_BYTES);
  os_mutex_unlock(&log_mutex);
  return texts->asked;
}

const char *log_own_error(void) {
  const struct thread_texts *texts = texts_of_thread();
  return texts != NULL ? texts->own : no_texts;
}

void log_evidence(bool gathered) { thread_gathers_evidence = gathered; }

void log_hush(bool hushed) { thread_hushed = hushed; }

void log_set_device(int device_index) { thread_device = device_index; }

void log_version(void) {
  char text[96];
  if (!log_enabled(LOG_VERSION, LOG_ALL)) return;
  os_mutex_lock(&log_mutex);
  bool printed = version_printed;
  version_printed = true;
  os_mutex_unlock(&log_mutex);
  if (printed) return;
  snprintf(text, sizeof text, "NCCL version %d.%d.%d (tutti %d.%d)", NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH,
           TUTTI_VERSION_MAJOR, TUTTI_VERSION_MINOR);
  line_write(LOG_VERSION, "", text);
}

void log_reset(void) {
  os_mutex_lock(&log_mutex);
  if (log_file && log_file != stdout && log_file != stderr) fclose(log_file);
  log_file = NULL;
  log_file_lost = false;
  version_printed = false;
  last_warning[0] = '\0';
  last_is_urgent = false;
  atomic_store(&ready, false);
  os_mutex_unlock(&log_mutex);
}
