/* trace.c: the verb `trace`: looks into binary traces. `dump FILE` prints the header and one line a record.
 * The spelling of a record is the library's (trace_record_text), so that it is the same everywhere. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "trace/trace.h"
#include "verb.h"

enum { LINE_BYTES = 256 };

static enum exit_code records_print(const char *path, const void *bytes, size_t byte_count) {
  struct trace_reader reader;
  if (trace_reader_open(&reader, bytes, byte_count) != ncclSuccess) {
    fprintf(stderr, "tutti trace dump: %s: %s\n", path, log_last_error());
    return EXIT_INPUT;
  }
  printf("# trace version %u, seed %llu, slots %u, flag bits %u\n", reader.header.version,
         (unsigned long long)reader.header.seed, reader.header.slots, reader.header.flag_bits);
  struct trace_record record;
  bool torn = false;
  while (trace_reader_next(&reader, &record, &torn)) {
    char line[LINE_BYTES];
    trace_record_text(&record, line, sizeof line);
    puts(line);
  }
  if (!torn) return EXIT_GOOD;
  fprintf(stderr, "tutti trace dump: %s: record %llu, at byte %zu of %zu, is cut off (writer stopped?)\n",
          path, (unsigned long long)reader.record_index, reader.offset, byte_count);
  return EXIT_INPUT;
}

static enum exit_code trace_dump(const char *path) {
  size_t byte_count = 0;
  char *bytes = os_file_read(path, &byte_count);
  if (!bytes) {
    fprintf(stderr, "tutti trace dump: %s: cannot be read: %s\n", path, strerror(errno));
    return EXIT_INPUT;
  }
  enum exit_code code = records_print(path, bytes, byte_count);
  os_free(bytes);
  return code;
}

static enum exit_code trace_run(int argc, char **argv) {
  if (argc == 3 && !strcmp(argv[1], "dump")) return trace_dump(argv[2]);
  if (argc == 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) {
    char help[] = "help", verb[] = "trace";
    char *arguments[] = {help, verb, NULL};
    return verb_help.run(2, arguments);
  }
  fprintf(stderr, "tutti trace: what is asked for? `tutti trace dump FILE` (`tutti help trace` says more)\n");
  return EXIT_USAGE;
}

const struct verb verb_trace = {
    "trace",
    "print a binary trace as text",
    "dump FILE",
    "  tutti bench all_reduce --ranks 4 --seed 1 --trace run.tr\n"
    "  tutti trace dump run.tr | less\n"
    "  diff <(tutti trace dump one.tr) <(tutti trace dump two.tr) | head\n",
    "Prints the records of a trace that the guarded emulator wrote, one line each, in the order in which "
    "they\n"
    "happened. The same seed gives the same trace, byte for byte.\n",
    NULL,
    trace_run,
};
