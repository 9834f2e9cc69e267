/* export.c: `tutti trace export`: reads files into a job and writes it in a format. */
#include "files/export.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mapped_file.h"
#include "base/log.h"
#include "base/text.h"

enum { PATH_BYTES = 4096 };

/* Closes the output, and removes it after an error: a partial export is worse than none. */
static enum exit_code out_close(FILE *file, const char *path, bool good) {
  const bool failed = ferror(file) != 0;
  const bool closed = file == stdout ? fflush(file) == 0 : fclose(file) == 0;
  if (good && !failed && closed) return EXIT_GOOD;
  fprintf(stderr, "tutti trace export: %s: cannot be written: %s\n", path,
          good ? strerror(errno) : "out of memory");
  if (file != stdout) remove(path);
  return EXIT_ENVIRONMENT;
}

static enum exit_code stream_export(const struct job *job, const char *path, bool perfetto) {
  FILE *out = path != NULL ? fopen(path, "we") : stdout;
  bool good = true;
  if (out == NULL) {
    fprintf(stderr, "tutti trace export: %s: cannot be written: %s\n", path, strerror(errno));
    return EXIT_ENVIRONMENT;
  }
  if (perfetto) good = export_perfetto(job, out);
  else export_prometheus(job, (int64_t)wall_ns(), out);
  return out_close(out, path != NULL ? path : "standard output", good);
}

/* Prometheus' collector may read the folder at any time and must never find a partial file. */
static enum exit_code whole_export(const struct job *job, const char *path) {
  char beside[PATH_BYTES];
  if (path == NULL) return stream_export(job, NULL, false);
  if (snprintf(beside, sizeof beside, "%s.new", path) >= (int)sizeof beside) {
    fprintf(stderr, "tutti trace export: %s: the name is too long\n", path);
    return EXIT_ENVIRONMENT;
  }
  const enum exit_code code = stream_export(job, beside, false);
  if (code != EXIT_GOOD || rename(beside, path) == 0) return code;
  fprintf(stderr, "tutti trace export: %s: cannot be written: %s\n", path, strerror(errno));
  remove(beside);
  return EXIT_ENVIRONMENT;
}

/* A folder gets files with PyTorch's default names. */
static enum exit_code flight_export(const struct job *job, const char *out, bool json) {
  static const char own[] = "nccl_trace_rank_";
  char prefix[PATH_BYTES];
  struct stat about;
  if (out == NULL) out = own;
  const bool folder = stat(out, &about) == 0 && S_ISDIR(about.st_mode);
  const int length = snprintf(prefix, sizeof prefix, "%s%s%s", out, folder ? "/" : "", folder ? own : "");
  if (length >= (int)sizeof prefix) {
    fprintf(stderr, "tutti trace export: %s: the name is too long\n", out);
    return EXIT_ENVIRONMENT;
  }
  return export_flight(job, prefix, json);
}

static enum exit_code job_export(const struct job *job, const char *format, const char *out) {
  if (strcmp(format, "perfetto") == 0) return stream_export(job, out, true);
  if (strcmp(format, "prometheus") == 0) return whole_export(job, out);
  return flight_export(job, out, strcmp(format, "flight-json") == 0);
}

static bool format_check(const char *format) {
  static const char *const formats[] = {"perfetto", "flight", "flight-json", "prometheus"};
  const size_t count = sizeof formats / sizeof formats[0];
  for (size_t i = 0; format != NULL && i < count; i++)
    if (strcmp(format, formats[i]) == 0) return true;
  const char *nearest = format != NULL ? text_nearest(format, formats, count) : NULL;
  fprintf(stderr,
          "tutti trace export: --to %s: %s%s%sperfetto, flight, flight-json or prometheus was expected\n",
          format != NULL ? format : "FORMAT", nearest != NULL ? "did you mean `" : "",
          nearest != NULL ? nearest : "", nearest != NULL ? "`? " : "");
  return false;
}

enum exit_code export_files(const char *format, const char *out, int path_count, char **paths) {
  struct records records;
  struct job job;
  if (!format_check(format)) return EXIT_USAGE;
  if (!records_read("trace export", RECORDS_WHOLE, path_count, paths, &records)) return EXIT_ENVIRONMENT;
  enum exit_code code = EXIT_INPUT;
  if (records_mixed("trace export", &records)) code = EXIT_USAGE;
  else if (!job_open(&records, &job)) {
    fputs("tutti trace export: comparing these files" LOG_OUT_OF_MEMORY "\n", stderr);
    code = EXIT_ENVIRONMENT;
  } else {
    if (job.count > 0) code = job_export(&job, format, out);
    else fputs("tutti trace export: no communicator is left in these files\n", stderr);
    job_close(&job);
  }
  records_free(&records);
  return code;
}
