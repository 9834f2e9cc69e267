/* records.c: detects a file's format by its first bytes, and converts it to a file of records. */
#include "files/records.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "base/os.h"
#include "files/archive.h"
#include "files/digest.h"
#include "files/import.h"
#include "files/pickle.h"
#include "trace/record_text.h"

/* The state of one call of records_read. */
struct reading {
  const char *verb;
  enum records_use use;
  struct records *records;
  struct nccl_log *log; /* NULL: no log has been read yet */
};

static void finding_print(void *argument, const struct record_finding *finding) {
  fprintf(stderr, "tutti %s: %s: byte %" PRIu64 ": %s\n", (const char *)argument, finding->file,
          finding->offset, finding->text);
}

static void refuse(struct reading *reading, const char *path) {
  fprintf(stderr, "tutti %s: %s\n", reading->verb, log_own_error());
  reading->records->refused_paths[reading->records->refused++] = path;
}

static bool records_reserve(struct records *records) {
  if (records->count < records->capacity) return true;
  const uint32_t capacity = records->capacity > 0 ? 2 * records->capacity : 8;
  if (!array_resize(&records->files, capacity, sizeof *records->files) ||
      !array_resize(&records->memory, capacity, sizeof *records->memory))
    return false;
  records->capacity = capacity;
  return true;
}

/* Replaces the file and its bytes. */
static ncclResult_t file_shrink(struct record_file *file, void **bytes) {
  struct record_file digest;
  void *memory = digest_make(file, &digest);
  if (memory == NULL) return log_no_memory("%s: its records", file->name);
  record_file_free(file);
  os_free(*bytes);
  *file = digest;
  *bytes = memory;
  return ncclSuccess;
}

/* Whether the process that wrote the file still runs; not known of another host's. */
static void file_look_at_process(struct record_file *file) {
  const struct record_header *header = &file->header;
  const struct os_process maker = {header->process_realm, header->process_born, (int32_t)header->process};
  struct os_process self;
  os_process_self(&self);
  file->gone = os_process_gone(&maker);
  file->live = !file->gone && header->state == RECORD_OPEN && maker.realm != 0 && maker.realm == self.realm;
  if (file->live) file->taken_ns = os_time_ns();
  file->stopped = file->live && os_process_stopped(maker.number);
}

/* Takes ownership of the bytes. */
static ncclResult_t file_add(struct reading *reading, const char *path, void *bytes, size_t byte_count,
                             enum record_source source) {
  struct records *records = reading->records;
  struct record_listener listener = {finding_print, (void *)(uintptr_t)reading->verb, 0};
  struct record_file file;
  ncclResult_t result = ncclSuccess;
  memset(&file, 0, sizeof file);
  if (!records_reserve(records)) result = log_no_memory("%s: reading it", path);
  if (result == ncclSuccess) result = record_file_read(path, bytes, byte_count, &listener, &file);
  if (result == ncclSuccess && reading->use == RECORDS_DIAGNOSED) result = file_shrink(&file, &bytes);
  if (result != ncclSuccess) {
    record_file_free(&file);
    os_free(bytes);
    return result;
  }
  records->files[records->count] = file;
  records->memory[records->count++] = bytes;
  records->sources |= (uint32_t)source;
  return ncclSuccess;
}

static ncclResult_t image_add(struct reading *reading, const char *path, const struct image *image,
                              enum record_source source) {
  size_t byte_count = 0;
  void *bytes = image_make(image, &byte_count);
  if (bytes == NULL) return log_no_memory("%s: its calls", path);
  return file_add(reading, path, bytes, byte_count, source);
}

static ncclResult_t text_add(struct reading *reading, const char *path, const struct archive *archive) {
  void *packed = NULL;
  size_t byte_count = 0;
  TRY(record_text_pack(path, archive->bytes, archive->byte_count, &packed, &byte_count));
  return file_add(reading, path, packed, byte_count, SOURCE_RECORDS);
}

static ncclResult_t json_read(const char *path, const struct archive *archive, json_t **dump) {
  json_error_t error;
  *dump = json_loadb(archive->bytes, archive->byte_count, 0, &error);
  if (*dump != NULL) return ncclSuccess;
  return log_fail(ncclInvalidArgument, "%s:%d: no JSON, at byte %d: %s", path, error.line, error.position,
                  error.text);
}

static ncclResult_t flight_add(struct reading *reading, const char *path, const struct archive *archive,
                               bool pickled) {
  struct import import = {reading->verb, path, 0};
  struct image image;
  json_t *dump = NULL;
  TRY(pickled ? pickle_read(path, archive->bytes, archive->byte_count, &dump)
              : json_read(path, archive, &dump));
  ncclResult_t result = flight_import(&import, dump, &image);
  json_decref(dump);
  if (result != ncclSuccess) return result;
  result = image_add(reading, path, &image, SOURCE_FLIGHT);
  image_free(&image);
  return result;
}

static ncclResult_t log_add(struct reading *reading, const char *path, const struct archive *archive) {
  struct import import = {reading->verb, path, 0};
  if (reading->log == NULL) reading->log = nccl_log_open();
  if (reading->log == NULL) return log_no_memory("%s: reading it", path);
  return nccl_log_read(reading->log, &import, archive->bytes, archive->byte_count);
}

/* The first byte that is not white space. */
static char first_of(const struct archive *archive) {
  size_t at = 0;
  while (at < archive->byte_count && strchr(" \t\r\n", archive->bytes[at]) != NULL &&
         archive->bytes[at] != '\0')
    at++;
  return at < archive->byte_count ? archive->bytes[at] : '\0';
}

/* Sets *keeps if the records own the bytes now. */
static ncclResult_t bytes_add(struct reading *reading, const char *path, struct archive *archive,
                              bool *keeps) {
  const char *bytes = archive->bytes;
  const size_t count = archive->byte_count;
  *keeps = false;
  if (record_is_text(bytes, count)) return text_add(reading, path, archive);
  if (!record_is_file(bytes, count)) {
    if (pickle_is(bytes, count)) return flight_add(reading, path, archive, true);
    if (first_of(archive) == '{') return flight_add(reading, path, archive, false);
    if (nccl_log_is(bytes, count)) return log_add(reading, path, archive);
  }
  *keeps = true;
  TRY(file_add(reading, path, archive->bytes, count, SOURCE_RECORDS));
  file_look_at_process(&reading->records->files[reading->records->count - 1]);
  return ncclSuccess;
}

static void path_read(struct reading *reading, const char *path) {
  struct archive archive;
  bool keeps = true;
  ncclResult_t result = archive_read(path, &archive);
  if (result == ncclSuccess) {
    if (archive.damage[0] != '\0')
      fprintf(stderr, "tutti %s: %s: %s; what is in front of it is used\n", reading->verb, path,
              archive.damage);
    result = bytes_add(reading, path, &archive, &keeps);
    if (!keeps) os_free(archive.bytes);
  }
  if (result != ncclSuccess) refuse(reading, path);
}

static void logs_add(struct reading *reading) {
  struct import import = {reading->verb, "logs", 0};
  nccl_log_finish(reading->log, &import);
  for (uint32_t i = 0; i < nccl_log_processes(reading->log); i++) {
    const char *path;
    const struct image *image = nccl_log_image(reading->log, i, &path);
    if (image_add(reading, path, image, SOURCE_LOG) != ncclSuccess)
      fprintf(stderr, "tutti %s: %s\n", reading->verb, log_own_error());
  }
  nccl_log_close(reading->log);
}

bool records_read(const char *verb, enum records_use use, int path_count, char **paths,
                  struct records *records) {
  struct reading reading = {verb, use, records, NULL};
  memset(records, 0, sizeof *records);
  records->refused_paths = (const char **)os_alloc((size_t)path_count * sizeof *records->refused_paths);
  if (records->refused_paths == NULL) {
    fprintf(stderr, "tutti %s: %d files" LOG_OUT_OF_MEMORY "\n", verb, path_count);
    return false;
  }
  for (int i = 0; i < path_count; i++) path_read(&reading, paths[i]);
  if (reading.log != NULL) logs_add(&reading);
  return true;
}

void records_free(struct records *records) {
  for (uint32_t i = 0; i < records->count; i++) {
    record_file_free(&records->files[i]);
    os_free(records->memory[i]);
  }
  os_free(records->files);
  os_free(records->memory);
  os_free(records->refused_paths);
  memset(records, 0, sizeof *records);
}

bool records_mixed(const char *verb, const struct records *records) {
  static const char *const names[] = {"files of records", "Flight Recorder dumps", "logs"};
  if ((records->sources & (records->sources - 1)) == 0) return false;
  fprintf(stderr, "tutti %s: these are", verb);
  const char *comma = " ";
  for (uint32_t i = 0; i < 3; i++) {
    if ((records->sources & 1u << i) == 0) continue;
    fprintf(stderr, "%s%s", comma, names[i]);
    comma = " and ";
  }
  fprintf(stderr, ", which name communicators differently; give one kind at a time\n");
  return true;
}

const char *records_lack(const struct records *records) {
  if (records->sources == SOURCE_FLIGHT)
    return "Flight Recorder dumps do not record operators, roots, streams, channels and steps, what a kernel "
           "waits for, nor the parts of an all-to-all; records of this library (TUTTI_TRACE) do";
  if (records->sources == SOURCE_LOG)
    return "logs record what was called, not what was launched, has started or ended, nor what a kernel "
           "waits "
           "for; records of this library (TUTTI_TRACE) do";
  return NULL;
}
