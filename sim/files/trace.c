/* trace.c: the verb `trace`: prints, compares, converts and compresses traces of events and of records. The
 * text forms are the library's (trace_record_text, record_text.h), so they are the same everywhere. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "files/archive.h"
#include "base/log.h"
#include "base/os.h"
#include "core/plan/names.h"
#include "files/export.h"
#include "files/records.h"
#include "trace/record_text.h"
#include "trace/trace.h"
#include "files/trace_diff.h"
#include "files/trace_json.h"
#include "files/trace_list.h"
#include "verb.h"

struct trace_flags {
  const char *to, *output, *job;
  int64_t older_minutes;
  bool json, dry_run;
};
#define AT(member) offsetof(struct trace_flags, member)

static const struct option_row rows[] = {
    {0, "to", "perfetto|flight|flight-json|prometheus", OPTION_TEXT, AT(to), 0, 0,
     "export: output format; flight: as PyTorch's analyser reads it"},
    {'o', "output", "PLACE", OPTION_TEXT, AT(output), 0, 0,
     "export, archive: file to write; flight: prefix of the files' names, or a folder; archive: a folder if "
     "there are several FILEs"},
    {'J', "json", NULL, OPTION_FLAG, AT(json), 0, 0, "list, dump, diff: print JSON"},
    {0, "job", "JOB", OPTION_TEXT, AT(job), 0, 0, "clean: only files of this job, as `list` names it"},
    {0, "older", "MINUTES", OPTION_INT, AT(older_minutes), 0, 1 << 24,
     "clean: only files whose process has shown no sign of life for so long (default 0)"},
    {0, "dry-run", NULL, OPTION_FLAG, AT(dry_run), 0, 0, "clean: print what would be removed"},
};
static const struct option_set trace_options = {"trace", rows, sizeof rows / sizeof rows[0],
                                                false,   true, false};

enum { LINE_BYTES = 256 };

/* `json`: NULL to print text. */
static enum exit_code events_print(const char *path, const void *bytes, size_t byte_count,
                                   struct json *json) {
  struct trace_reader reader;
  if (trace_reader_open(&reader, bytes, byte_count) != ncclSuccess) {
    fprintf(stderr, "tutti trace dump: %s: %s\n", path, log_last_error());
    return EXIT_INPUT;
  }
  if (json == NULL)
    printf("# trace version %u, seed %llu, slots %u, flag bits %u\n", reader.header.version,
           (unsigned long long)reader.header.seed, reader.header.slots, reader.header.flag_bits);
  struct trace_record record;
  bool torn = false;
  while (trace_reader_next(&reader, &record, &torn)) {
    char line[LINE_BYTES];
    trace_record_text(&record, line, sizeof line);
    if (json != NULL) trace_json_event(json, line);
    else puts(line);
  }
  if (!torn) return EXIT_GOOD;
  fprintf(stderr, "tutti trace dump: %s: record %llu, at byte %zu of %zu, is cut off (writer stopped?)\n",
          path, (unsigned long long)reader.record_index, reader.offset, byte_count);
  return EXIT_INPUT;
}

static void line_print(void *argument, const char *line) {
  if (argument != NULL) trace_json_record((struct json *)argument, line);
  else puts(line);
}

static enum exit_code file_print(char *path, struct json *json) {
  struct records records;
  if (!records_read("trace dump", RECORDS_WHOLE, 1, &path, &records)) return EXIT_ENVIRONMENT;
  const bool read = records.count > 0;
  for (uint32_t i = 0; i < records.count; i++) record_text_dump(&records.files[i], line_print, json);
  records_free(&records);
  return read ? EXIT_GOOD : EXIT_INPUT;
}

static enum exit_code trace_dump(char *path, struct json *json) {
  struct archive archive;
  if (archive_read(path, &archive) != ncclSuccess) {
    fprintf(stderr, "tutti trace dump: %s\n", log_own_error());
    return EXIT_INPUT;
  }
  const bool events = archive.byte_count >= 8 && memcmp(archive.bytes, TRACE_MAGIC, 8) == 0;
  const enum exit_code code =
      events ? events_print(path, archive.bytes, archive.byte_count, json) : EXIT_GOOD;
  os_free(archive.bytes);
  return events ? code : file_print(path, json);
}

/* Several files one after another, each behind a line with its name; as JSON, an array of files. */
static enum exit_code trace_dump_all(bool as_json, int count, char **paths) {
  enum exit_code code = EXIT_GOOD;
  struct json writer = {.out = stdout}, *json = as_json ? &writer : NULL;
  if (as_json) json_open(json, NULL, '[');
  for (int i = 0; i < count; i++) {
    if (as_json) {
      json_open(json, NULL, '{');
      json_text(json, "file", paths[i]);
      json_open(json, "rows", '[');
    } else if (count > 1) {
      printf("# %s\n", paths[i]);
    }
    const enum exit_code own = trace_dump(paths[i], json);
    if (own != EXIT_GOOD) code = own;
    if (as_json) json_close(json, ']');
    if (as_json) json_close(json, '}');
  }
  if (as_json) json_close(json, ']');
  return code;
}

static enum exit_code trace_pack(const char *text_path, const char *path) {
  struct archive text;
  size_t byte_count = 0;
  void *bytes = NULL;
  ncclResult_t result = archive_read(text_path, &text);
  if (result == ncclSuccess) {
    result = record_text_pack(text_path, text.bytes, text.byte_count, &bytes, &byte_count);
    os_free(text.bytes);
  }
  if (result != ncclSuccess) {
    fprintf(stderr, "tutti trace pack: %s\n", log_own_error());
    return EXIT_INPUT;
  }
  const bool written = os_file_write(path, (const char *)bytes, byte_count);
  if (!written) fprintf(stderr, "tutti trace pack: %s: cannot be written: %s\n", path, strerror(errno));
  os_free(bytes);
  return written ? EXIT_GOOD : EXIT_ENVIRONMENT;
}

/* ---- archives ---- */

static enum exit_code archive_one(const char *path, const char *archive_path) {
  struct archive archive;
  if (archive_read(path, &archive) != ncclSuccess) {
    fprintf(stderr, "tutti trace archive: %s\n", log_own_error());
    return EXIT_INPUT;
  }
  const ncclResult_t result = archive_write(archive_path, archive.bytes, archive.byte_count);
  os_free(archive.bytes);
  if (result == ncclSuccess) return EXIT_GOOD;
  fprintf(stderr, "tutti trace archive: %s\n", log_own_error());
  return EXIT_ENVIRONMENT;
}

/* FILE.zst beside the file, or with that name in a folder. */
static enum exit_code trace_archive(const char *place, int count, char **paths) {
  enum { PATH_BYTES = 4096 };
  struct stat about;
  enum exit_code code = EXIT_GOOD;
  const bool folder = place != NULL && stat(place, &about) == 0 && S_ISDIR(about.st_mode);
  if (place != NULL && !folder && count > 1) {
    fprintf(stderr, "tutti trace archive: -o %s: a folder was expected for %d files\n", place, count);
    return EXIT_USAGE;
  }
  for (int i = 0; i < count; i++) {
    if (place == NULL && strcmp(paths[i], "-") == 0) {
      fprintf(stderr, "tutti trace archive: standard input has no name: give the archive's with -o FILE\n");
      return EXIT_USAGE;
    }
    const char *slash = strrchr(paths[i], '/'), *name = slash != NULL ? slash + 1 : paths[i];
    char path[PATH_BYTES];
    if (folder) snprintf(path, sizeof path, "%s/%s.zst", place, name);
    else if (place != NULL) snprintf(path, sizeof path, "%s", place);
    else snprintf(path, sizeof path, "%s.zst", paths[i]);
    const enum exit_code own = archive_one(paths[i], path);
    if (own != EXIT_GOOD) code = own;
  }
  return code;
}

/* ---- the verb ---- */

static enum exit_code trace_do(const struct trace_flags *flags, const char *what, int count, char **paths) {
  enum { FORMS = 7 };
  static const char *const forms[FORMS] = {"list", "clean", "dump", "diff", "export", "archive", "pack"};
  const struct trace_clean clean = {flags->job, flags->older_minutes * 60, flags->dry_run};
  if (!strcmp(what, "list")) return trace_list(count, paths, flags->json);
  if (!strcmp(what, "clean")) return trace_clean(count, paths, &clean);
  if (!strcmp(what, "dump") && count > 0) return trace_dump_all(flags->json, count, paths);
  if (!strcmp(what, "pack") && count == 2) return trace_pack(paths[0], paths[1]);
  if (!strcmp(what, "diff") && count == 2) return trace_diff(paths[0], paths[1], flags->json);
  if (!strcmp(what, "export") && count > 0) return export_files(flags->to, flags->output, count, paths);
  if (!strcmp(what, "archive") && count > 0) return trace_archive(flags->output, count, paths);
  if (*what && names_find(forms, FORMS, what, strlen(what)) < 0) {
    verb_no_such("trace", "form", what, forms, FORMS);
    return EXIT_USAGE;
  }
  fprintf(stderr,
          "tutti trace: what is asked for? `tutti trace list`, `clean`, `dump FILE...`, `pack TEXT FILE`, "
          "`diff A B`, `export --to FORMAT FILE...` or `archive FILE...` (`tutti help trace` says more)\n");
  return EXIT_USAGE;
}

static enum exit_code trace_run(int argc, char **argv) {
  struct trace_flags flags = {0};
  int operand;
  setenv("NCCL_DEBUG", "NONE", 0); /* a failure is reported once, by this program */
  enum exit_code code;
  if (!verb_parse(&trace_options, argc, argv, &flags, &operand, &code)) return code;
  const char *what = operand < argc ? argv[operand++] : "";
  return trace_do(&flags, what, argc - operand, argv + operand);
}

const struct verb verb_trace = {
    "trace",
    "list, remove, print, compare, export and compress traces",
    "list [--json] [PLACE...]\n"
    "clean [--job JOB] [--older MINUTES] [--dry-run] [PLACE...]\n"
    "dump [--json] FILE...\n"
    "diff [--json] A B\n"
    "export --to FORMAT [-o PLACE] FILE...\n"
    "archive [-o PLACE] FILE...\n"
    "pack TEXT FILE",
    "list|clean|dump|diff|export|archive|pack FILE",
    "  tutti bench all_reduce --ranks 4 --seed 1 --trace run.tr\n"
    "  tutti trace dump run.tr\n"
    "  tutti trace list\n"
    "  tutti trace clean --older 60 --dry-run\n"
    "  tutti trace pack traces/count/0.txt count.trace\n"
    "  tutti trace dump count.trace | head\n"
    "  tutti trace dump --json count.trace | head\n"
    "  tutti trace diff traces/count/0.txt traces/absent/0.txt\n"
    "  tutti trace export --to perfetto -o job.json traces/count/*.txt\n"
    "  tutti trace export --to flight -o nccl_trace_rank_ traces/count/*.txt\n"
    "  tutti trace archive count.trace\n"
    "  tutti explain - <count.trace.zst\n",
    "`dump` prints files of records (TUTTI_TRACE), one line for each header, communicator, row and record; "
    "and the scheduler events that the guarded emulator wrote (TUTTI_EVENTS), which are the same, byte for "
    "byte, for the same seed. `pack` turns the text of records back into a binary file. traces/README.md "
    "describes both formats.\n"
    "\n"
    "`diff` compares two files of scheduler events, or two of records, and prints the first difference as "
    "both files have it. It ignores what differs in records from run to run: times, addresses, processes. "
    "The exit code is 0 if both are the same, 1 if they differ.\n"
    "\n"
    "With --json, `dump` prints an array with an object for each FILE, its lines in `rows`; `diff` prints an "
    "object with `same`, and where that is false, `what` differs and both lines.\n"
    "\n"
    "`export` converts all FILEs together: `perfetto`, JSON for ui.perfetto.dev and chrome://tracing, in "
    "which a hang is a slice that does not end; `flight`, a dump for each rank in the format of PyTorch's "
    "Flight Recorder, for torchfrtrace, and `flight-json`, the same as JSON; `prometheus`, metrics for "
    "node_exporter's textfile collector.\n"
    "\n"
    "`list` prints the record files in a folder (default: that of TUTTI_TRACE, or /dev/shm), job by job: the "
    "job, host, process, whether the process is live or dead, how long ago it gave its last sign of life, "
    "its "
    "ranks and how many there are, size and name. `clean` removes the files of dead processes; never those "
    "of live "
    "processes, of other users, or of processes of other hosts and containers, which it cannot see.\n"
    "\n"
    "`archive` compresses each FILE with zstd. Every command that reads traces takes compressed files.\n",
    &trace_options,
    trace_run,
};
